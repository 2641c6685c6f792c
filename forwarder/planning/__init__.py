"""Capacity: what a load needs, computed from what was measured (`figures.py`) and from what the
code counts.

`capacity.py` has the formulas, `plan.py` what a person gets of them: each figure with the limit
that it comes from and the key that moves it, the limits in the order in which they are reached,
and the settings to write. Nothing here measures, opens a file or asks a daemon.
"""
