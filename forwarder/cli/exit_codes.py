"""The exit codes of every command; `docs/reference/commands.md` has the same table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    NO = 1
    """The command ran, and the answer is no: a check failed, events are left, or the question was
    answered with no.
    """
    WRONG_USAGE = 2
    """A wrong command line or configuration, or a file that can't be used."""
    UNREACHABLE = 3
    """The service or the daemon can't be reached, or refuses."""
    INTERRUPTED = 130
