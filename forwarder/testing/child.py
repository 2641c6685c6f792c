"""`python -m forwarder.testing.child ARGUMENTS` is `forwarder ARGUMENTS` that ends with the
process that started it.

The end of standard input is the sign: it comes however that process ends, so that an aborted run
of tests leaves no server behind.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from forwarder.cli.main import main


def _end_with_parent() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main()
