"""An application with an older posthog for Python, which sends marked events.

    python program.py --host http://127.0.0.1:8320 --key phc_… --name python-3.7 --count 100
    --parts 3

It sends a part of its events, says so by a line, and waits for one before the next part.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from datetime import UTC, datetime

import posthog


def main() -> None:
    """Read the command line, and send."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--host", "--key", "--name"):
        parser.add_argument(name, required=True)
    for name in ("--count", "--parts"):
        parser.add_argument(name, type=int, required=True)
    wanted = parser.parse_args()
    client = posthog.Posthog(wanted.key, host=wanted.host, flush_interval=0.2)
    pace = threading.Event()
    for part in range(1, wanted.parts + 1):
        if part > 1:
            sys.stdin.readline()
        for n in range(wanted.count):
            at = datetime.now(UTC)
            properties = {
                "mark": f"{wanted.name}:{part}:{n}:",
                "at": at.isoformat(),
                "text": "Zoë 茶碗 😀",
            }
            client.capture(
                distinct_id=f"user-{wanted.name}", event="page read", properties=properties
            )
            pace.wait(0.005)
        print(json.dumps({"part": part}), flush=True)
    sys.stdin.readline()
    client.shutdown()


if __name__ == "__main__":
    main()
