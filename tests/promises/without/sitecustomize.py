"""Takes one guard out of each Python that is started with this folder on PYTHONPATH.

PROMISES_WITHOUT names the guard (`tests/promises/removals.py`); without it nothing is changed.
"""

import os

from tests.promises.removals import GUARDS

if name := os.environ.get("PROMISES_WITHOUT"):
    GUARDS[name].take_out()
