"""A process between a broker and the process that started it, so that the broker never outlives
that one.

It is run as a file, by a bare Python, and does what the lines of its standard input say: `start`,
`stop` (SIGTERM), `kill` (SIGKILL), `look`. After each it writes a line: the program's exit code,
nothing while it runs, `none` before it was started. When its input ends, as it does with the
process at the other end, or when it is ended itself, it kills the program and removes its folder.
The program's output goes to `broker.log` there.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path


def main(folder: str, *command: str) -> None:
    """Obey standard input until it ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    child: subprocess.Popen[bytes] | None = None
    try:
        for order in sys.stdin:
            match order.strip(), child:
                case "start", _:
                    with Path(folder, "broker.log").open("ab") as output:
                        child = subprocess.Popen(  # noqa: S603
                            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                        )
                case "stop", subprocess.Popen():
                    child.terminate()
                case "kill", subprocess.Popen():
                    child.kill()
                    child.wait()
            code = "none" if child is None else child.poll()
            print("" if code is None else code, flush=True)
    finally:
        if child is not None:
            child.kill()
            child.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
