"""Delivery: makes batches of what waits in the buffer, sends them to the upstream, and settles
events by its answers.

The core is pure (times and numbers are arguments): `batching` (what goes together), `turns` (whose
turn it is), `classify` (reply to outcome), `limiter` (how many requests), `ordering`, `splitting`
and `suspects` (parts of a batch), `lanes` (the state of a lane), `halting` (halted lanes and their
probes), `outcomes` (what an outcome does to a lane), `scheduler` (the next request). The shell
around it is `delivery` (tasks and timers), `sink` (HTTP) and `keys` (the key check).
"""
