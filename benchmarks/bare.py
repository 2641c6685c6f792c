"""The first floor: a server that reads requests and drops them. Nothing that takes events over
HTTP in Python can be faster.
"""

from __future__ import annotations

import sys

from benchmarks.server import OK, Exchange, serve


class Bare(Exchange):
    """Answers every request alike."""

    def on_message_complete(self) -> None:
        """Called by httptools."""
        self.answer(OK)


if __name__ == "__main__":
    serve(Bare, int(sys.argv[1]))
