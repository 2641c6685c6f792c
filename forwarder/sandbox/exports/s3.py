"""A bucket of an S3-compatible object store as the destination of an export.

obstore signs, and `network` sends: obstore's own client follows redirects and resolves names anew.
What is used is the destination's config and nothing else: neither credentials nor endpoints of the
environment, which are the operator's. A part is one object, written by one request. Buckets are
named in the path unless `use_virtual_style_addressing` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Executor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from forwarder.core.error_text import error_text
from forwarder.core.installation import install_extra
from forwarder.sandbox.exports.jobs import (
    DestinationFailed,
    DestinationPolicy,
    ExportJob,
    ExportMisconfigured,
)
from forwarder.sandbox.exports.network import DestinationRequest, DestinationUrl, scrub, send
from forwarder.sandbox.protocol.times import parse_time

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

TIMEOUT: Final = 60.0
"""Seconds for one object."""
_VALID: Final = 900
"""Seconds that a signature is valid: clocks differ."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}").fullmatch
_REGION: Final = re.compile(r"[A-Za-z0-9-]{1,64}").fullmatch
_SAID: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>").search
_VARIABLE: Final = re.compile(r"\{(\w+)\}")
_DEFAULT_REGION: Final = "us-east-1"


class S3Destination:
    """Objects below a prefix of a bucket. Raises `ExportMisconfigured`."""

    def __init__(
        self,
        job: ExportJob,
        config: Mapping[str, Any],
        policy: DestinationPolicy,
        executor: Executor,
    ) -> None:
        self._policy = policy
        self._executor = executor
        self._bucket = _text(config, "bucket_name")
        region = _text(config, "region", _DEFAULT_REGION)
        if not _BUCKET(self._bucket):
            raise ExportMisconfigured(
                f"bucket_name of the destination is {self._bucket!r}, which is not the name of a "
                "bucket."
            )
        if not _REGION(region):
            raise ExportMisconfigured(
                f"region of the destination is {region!r}, which is not a region. Write it as "
                f"{_DEFAULT_REGION}."
            )
        self._prefix = "".join(
            f"{part}/" for part in _expand(_text(config, "prefix", ""), job).split("/") if part
        )
        if {".", ".."} & {*self._prefix.split("/")}:
            raise ExportMisconfigured(
                "prefix of the destination has a part `.` or `..`, which object stores don't have."
            )
        self._keys = _text(config, "aws_access_key_id"), _text(config, "aws_secret_access_key")
        self._url = DestinationUrl.parse(
            config.get("endpoint_url") or f"https://s3.{region}.amazonaws.com", "endpoint_url"
        )
        if "@" in self._url.parts.netloc:
            raise ExportMisconfigured(
                "endpoint_url of the destination holds credentials. Set aws_access_key_id and "
                "aws_secret_access_key."
            )
        virtual = config.get("use_virtual_style_addressing") is True
        if virtual:
            parts = self._url.parts
            self._url = DestinationUrl.parse(
                parts._replace(netloc=f"{self._bucket}.{parts.netloc}").geturl(), "endpoint_url"
            )
        self._store = self._connect(region, virtual=virtual)

    async def write(self, name: str, content: bytes) -> None:
        """Write an object in the place of one of that name. Raises `DestinationFailed` and
        `ExportMisconfigured`.

        Cancellation may leave the object written or not.
        """
        target = self._sign(self._prefix + name)
        request = DestinationRequest(
            "PUT", target, content, (*self._keys, target.partition("?")[2])
        )
        answer = await send(request, self._url, self._policy, self._executor, TIMEOUT)
        if answer is not None:
            said = _SAID(answer)
            why = scrub(f"{said[1]}: {said[2]}" if said else answer, request.secrets)
            raise DestinationFailed(
                f"The bucket {self._bucket} at {self._url.shown} can't be written to: {why}"
            )

    def _sign(self, key: str) -> str:
        """The URL that an object can be written by."""
        # The dependency is optional; `_connect` has checked that it is installed.
        import obstore  # noqa: PLC0415
        from obstore.exceptions import BaseError  # noqa: PLC0415

        try:
            return obstore.sign(self._store, "PUT", key, timedelta(seconds=_VALID))
        except (BaseError, ValueError) as error:
            raise self._unusable(error) from None

    def _connect(self, region: str, *, virtual: bool) -> S3Store:
        try:
            from obstore.exceptions import BaseError  # noqa: PLC0415 - an optional dependency
            from obstore.store import S3Store  # noqa: PLC0415
        except ImportError:
            raise ExportMisconfigured(
                f"S3 can't be written to without obstore. {install_extra('import')}"
            ) from None
        try:
            return S3Store(
                self._bucket,
                endpoint=self._url.shown.rstrip("/"),
                region=region,
                virtual_hosted_style_request=virtual,
                s3_express=False,
                skip_signature=False,
                credential_provider=self._credentials,
                client_options={"allow_http": True},
            )
        except (BaseError, ValueError, TypeError) as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> ExportMisconfigured:
        why = scrub(error_text(error), self._keys)
        return ExportMisconfigured(f"The bucket {self._bucket} can't be used: {why}")

    def _credentials(self) -> S3Credential:
        access_key, secret = self._keys
        return {
            "access_key_id": access_key,
            "secret_access_key": secret,
            "token": None,
            "expires_at": None,
        }


def _expand(prefix: str, job: ExportJob) -> str:
    """A prefix with its variables replaced, as the service does: parts of the time at the
    interval's end, its bounds, the model.
    """
    end = parse_time(job.last)
    values = {"data_interval_start": job.first, "data_interval_end": job.last, "table": job.model}
    if end is not None:
        codes = {
            "year": "%Y",
            "month": "%m",
            "day": "%d",
            "hour": "%H",
            "minute": "%M",
            "second": "%S",
        }
        values |= {name: end.strftime(code) for name, code in codes.items()}
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), prefix)


def _text(config: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = config.get(name)
    if value is None or value == "":
        value = default
    if not isinstance(value, str):
        raise ExportMisconfigured(
            f"{name} of the destination is {'missing' if value is None else 'not text'}. Set it "
            "in its config."
        )
    return value
