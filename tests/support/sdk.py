"""Stand-ins for the official Python SDK, for tests that need to see or spoil what it sends."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any


class RecordingSdk:
    """Keeps what it is asked to send; `after` hears how many events there are after each."""

    def __init__(self, after: Callable[[int], object] = lambda _: None) -> None:
        self.events: list[dict[str, Any]] = []
        self._after = after

    def capture(self, event: str, **kwargs: Any) -> None:
        """Keep an event."""
        self._keep({"event": event, **kwargs})

    def alias(self, *, previous_id: str, distinct_id: str, uuid: str) -> None:
        """Keep an alias."""
        self._keep(
            {
                "event": "$create_alias",
                "distinct_id": previous_id,
                "properties": {"alias": distinct_id},
                "uuid": uuid,
            }
        )

    def group_identify(
        self, *, group_type: str, group_key: str, properties: dict[str, Any], uuid: str
    ) -> None:
        """Keep a group."""
        group = {"$group_type": group_type, "$group_key": group_key, "$group_set": properties}
        self._keep(
            {"event": "$groupidentify", "distinct_id": group_key, "properties": group, "uuid": uuid}
        )

    def shutdown(self) -> None:
        """Nothing is queued."""

    def _keep(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._after(len(self.events))


class PostingSdk(RecordingSdk):
    """Sends everything in one request when it is shut down, after `spoil` has had
    its way with the events.
    """

    def __init__(
        self,
        host: str,
        api_key: str,
        spoil: Callable[[list[dict[str, Any]]], object] = lambda _: None,
    ) -> None:
        super().__init__()
        self._host = host.removeprefix("http://")
        self._api_key = api_key
        self._spoil = spoil

    def shutdown(self) -> None:
        """Send."""
        self._spoil(self.events)
        connection = http.client.HTTPConnection(self._host, timeout=10)
        try:
            connection.request(
                "POST", "/batch/", json.dumps({"api_key": self._api_key, "batch": self.events})
            )
            assert connection.getresponse().read() == b'{"status":"Ok"}'
        finally:
            connection.close()
