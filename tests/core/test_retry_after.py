"""The header Retry-After."""

from __future__ import annotations

import pytest

from forwarder.core.retry_after import retry_after
from tests.support.clock import MIDNIGHT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("²", None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("9" * 40, 999_999_999.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 00:00:30", 30.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 99999 00:00:30 GMT", None),
        (f"Thu, 01 Jan {'9' * 30} 00:00:30 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    """Both forms of the header are read; what can't be read is no wish."""
    assert retry_after(value, MIDNIGHT) == seconds
