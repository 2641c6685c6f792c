"""Project keys: what can be one (wire facts: How the service decodes a body)."""

from __future__ import annotations

from typing import Final

from forwarder.core.errors import InvalidToken, NoKey

MAX_TOKEN_BYTES: Final = 64
PERSONAL_KEY_PREFIX: Final = "phx_"


def check_token(token: str) -> str:
    """The token, if it can be a project key. Raises `InvalidToken`, without quoting it: it may be a secret sent to the wrong place."""
    if not token:
        raise NoKey("no project key: send api_key (or token)")
    if token.startswith(PERSONAL_KEY_PREFIX):
        raise InvalidToken("this is a personal API key, which must stay secret; send the project's key")
    if len(token) > MAX_TOKEN_BYTES or not token.isascii() or "\0" in token:
        raise InvalidToken(f"malformed project key: it must be ASCII, at most {MAX_TOKEN_BYTES} bytes")
    return token
