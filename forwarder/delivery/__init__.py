"""Delivery: from batches to the upstream's answers, and from those to settled events.

The core is pure (times and numbers come in as arguments): `classify` (reply to outcome), `pausing` and `limiter` (how long, how many),
`groups`, `lanes` and `ordering` (what a lane may send now), `probing` and `halting` (lanes that stand still), `rulings` (what an outcome
does to a lane), `scheduler` (whose turn it is). The shell around it is `delivery` (tasks and timers), `sink` (HTTP) and `keys` (the key
check).
"""
