"""An analytics service as the destination of an export: `/batch/` requests over HTTP.

A URL without a path is a service's host and gets `/batch/`; any other is used as it is. The body's
key is the config's `token`, and without one the project's own. Events go out as historical ones,
with their own times and no `sent_at`, so that the receiver doesn't move them; a repeated request
has the same uuids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from json.encoder import encode_basestring
from typing import Any, Final

from forwarder.sandbox.exports.export_records import ColumnKind, ExportRecord
from forwarder.sandbox.exports.files import json_lines
from forwarder.sandbox.exports.jobs import (
    DestinationFailed,
    DestinationPolicy,
    ExportJob,
    ExportMisconfigured,
)
from forwarder.sandbox.exports.network import DestinationRequest, DestinationUrl, scrub, send

TIMEOUT: Final = 30.0
"""Seconds for one request."""
_SENT: Final = (
    "uuid",
    "event",
    "distinct_id",
    "timestamp",
    "properties",
    "$set",
    "$set_once",
    "$unset",
)


class HttpDestination:
    """A service that is posted to. Raises `ExportMisconfigured`."""

    def __init__(
        self,
        job: ExportJob,
        config: Mapping[str, Any],
        policy: DestinationPolicy,
        executor: Executor,
    ) -> None:
        if job.model != "events":
            raise ExportMisconfigured(
                "An HTTP destination accepts events only. Set the export's model to `events`."
            )
        token = config.get("token")
        self._api_key = token if isinstance(token, str) and token else job.api_key
        self._policy = policy
        self._executor = executor
        self._url = DestinationUrl.parse(config.get("url"), "url")
        parts = self._url.parts
        self._target = (parts if parts.path.strip("/") else parts._replace(path="/batch/")).geturl()
        self._secrets = (
            self._api_key,
            job.api_key,
            parts.password or "",
            parts.username or "",
            parts.query,
        )

    async def write(
        self, columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord]
    ) -> None:
        """Post events in one request. Raises `DestinationFailed` and `ExportMisconfigured`.
        Cancellation may leave them accepted or not.
        """
        body = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._body, columns, records
        )
        request = DestinationRequest("POST", self._target, body, self._secrets)
        answer = await send(request, self._url, self._policy, self._executor, TIMEOUT)
        if answer is not None:
            raise DestinationFailed(f"{self._url.shown} answered {scrub(answer, self._secrets)}")

    def _body(self, columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord]) -> bytes:
        head = (
            f'{{"api_key":{encode_basestring(self._api_key)},"historical_migration":true,"batch":['
        )
        return b"".join([head.encode(), b",".join(json_lines(columns, records, _SENT)), b"]}"])
