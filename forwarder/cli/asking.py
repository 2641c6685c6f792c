"""Asks whoever typed a command before something is gone for good."""

from __future__ import annotations

import sys


def can_ask() -> bool:
    """Whether standard input and standard error are a terminal, so that a question can be answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def may(question: str, *, yes: bool) -> bool:
    """Whether the person who is asked agrees; where nobody can be asked, nobody does."""
    if yes:
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not (answer and sys.stdin.isatty()):  # nobody's Enter has ended the line
        sys.stderr.write("\n")
    agreed = answer.strip().lower() in ("y", "yes")
    if not agreed:
        sys.stderr.write("Nothing was changed; --yes goes on without asking.\n")
    return agreed
