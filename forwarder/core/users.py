"""The user that this process runs as, for messages about permissions."""

from __future__ import annotations

import os


def user_name() -> str:
    """The name of the effective user, or `uid 1000` where the system knows none."""
    import pwd  # noqa: PLC0415 - only messages need it

    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
