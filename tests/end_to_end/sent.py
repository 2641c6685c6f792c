"""What a sandbox has of an import."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.importing import RunningSandbox


def events_of(service: RunningSandbox, job: str) -> list[dict[str, Any]]:
    """The events of an import, at most 10,000, in the order of their times."""
    answer = service.ask(f"events?import={job}&limit=10000")
    assert answer["count"] == len(answer["results"])
    return sorted(answer["results"], key=lambda event: (event["timestamp"], event["uuid"]))
