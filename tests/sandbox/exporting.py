"""A project's batch export in a management half."""

from __future__ import annotations

import json
from typing import Any, Final

from forwarder.contract.endpoints import GET_BATCH_EXPORT, UPDATE_BATCH_EXPORT
from tests.sandbox.half import ManagementTables

NOT_FOUND: Final = (404, "not_found", None)
NOW: Final = "2026-01-01T00:00:00.000000Z"
"""When a half begins."""
LATER: Final = "2026-01-01T01:00:00.000000Z"
_S3: Final = '{"type": "S3", "config": {"bucket_name": "b", "aws_secret_access_key": "hidden"}}'


class Exports:
    """A project with a batch export that goes to S3."""

    def __init__(self, half: ManagementTables) -> None:
        self.half = half
        self.project = half.project()
        self.id = half.export(self.project, _S3)

    def get(self) -> dict[str, Any]:
        """The export as it is shown."""
        return self.half.answer(GET_BATCH_EXPORT, project=self.project, id=self.id)

    def update(self, **body: Any) -> dict[str, Any]:
        """The export after a change."""
        return self.half.answer(UPDATE_BATCH_EXPORT, body, project=self.project, id=self.id)

    def call(self, endpoint: Any, body: Any = None, **rest: Any) -> Any:
        """Whatever an endpoint of the project answers."""
        return self.half.call(endpoint, body, project=self.project, id=self.id, **rest)

    def error(self, endpoint: Any, body: Any = None) -> tuple[int, str, str | None]:
        """The error that an endpoint of the project answers."""
        return self.half.error(endpoint, body, project=self.project, id=self.id)

    def secret(self) -> Any:
        """What is kept of the secret."""
        ((destination,),) = self.half.database.execute(
            "SELECT destination FROM batch_exports WHERE id = ?", (self.id,)
        )
        return json.loads(destination)["config"].get("aws_secret_access_key")
