"""What can be a project key."""

from __future__ import annotations

import pytest

from forwarder.core.errors import InvalidToken
from forwarder.wire.token import check_token


@pytest.mark.parametrize("token", ["phc_abc", "x", "sTMFPsFhdP1Ssg", "a" * 64, "with space", '"quoted"', "PHX_upper"])
def test_a_token_is_taken(token: str) -> None:
    """Any non-empty ASCII text of at most 64 bytes can be one."""
    assert check_token(token) == token


@pytest.mark.parametrize("token", ["", "a" * 65, "phx_personal", "schlüssel", "phc_\0", "\ufffd"])
def test_a_token_is_refused(token: str) -> None:
    """Empty, long, personal, with a NUL or anything but ASCII: refused."""
    with pytest.raises(InvalidToken):
        check_token(token)


def test_a_refused_token_is_not_quoted() -> None:
    """It may be a secret that was sent to the wrong place."""
    with pytest.raises(InvalidToken) as caught:
        check_token("phx_topsecret")
    assert "topsecret" not in f"{caught.value.message}{caught.value.hint}"
