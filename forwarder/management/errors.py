"""The one exception of the client. It holds what a program wants to tell apart, a person wants to read, and nothing that is secret."""

from __future__ import annotations

from forwarder.core.errors import ForwarderError


class ApiError(ForwarderError):
    """A call that didn't do what it was made for. `hint` says what to do about it."""

    code = "management"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int | None = None,
        type: str = "",  # noqa: A002 - named as in the service's errors
        code: str = "",
        detail: str = "",
        field: str | None = None,
        retry_after: float | None = None,
        unsure: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """Of the answer; None if there is none, or nothing was sent."""
        self.type = type
        """As the service names it; `connection_error`, `answer_error` and `usage_error` are the client's own."""
        self.code = code
        self.detail = detail
        self.field = field
        """The field that it is about, if it is about one."""
        self.retry_after = retry_after
        """Seconds after which the service wants to be asked again, if it says so."""
        self.unsure = unsure
        """Whether the service may have done it nevertheless."""


class InvalidCall(ApiError, ValueError):
    """The call can't be made as it is: nothing was sent."""

    def __init__(self, message: str, *, hint: str = "", field: str | None = None) -> None:
        super().__init__(message, hint=hint, type="usage_error", code="invalid_call", detail=message, field=field)
