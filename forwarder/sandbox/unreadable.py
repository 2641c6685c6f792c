"""What the log says of requests that are no HTTP: that there was one, and what kind of fault it had.

aiohttp quotes the line that it can't read, and that line may be an Authorization header with a key in it.
"""

from __future__ import annotations

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError


class _WithoutQuotes(logging.Filter):
    """Leaves out the exception of a request that can't be read; every other one stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets everything through."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args, record.exc_info = "a request could not be read as HTTP: %s", (type(error).__name__,), None
        return True


LOG: Final = logging.getLogger(__name__)
"""For aiohttp to log with."""
LOG.addFilter(_WithoutQuotes())
