"""What a person was told to be today isn't what an old export says: the formats that set
properties of persons, by the command alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.end_to_end.importing import Service, imported

WHO: Final = "ann@example.com"
_TIME: Final = "2024-05-01T10:00:00Z"
_OLD: Final = {"plan": "free", "city": "Paris"}
RULES: Final = {
    "event": ".what",
    "distinct_id": ".who",
    "timestamp": {"from": ".at"},
    "set": {"plan": ".plan", "city": ".city"},
}
RECORDS: Final[dict[str, Any]] = {
    "native": {"event": "e", "distinct_id": WHO, "timestamp": _TIME, "$set": _OLD},
    "amplitude": {
        "event_type": "e",
        "user_id": WHO,
        "event_time": "2024-05-01 10:00:00.000000",
        "user_properties": _OLD,
    },
    "mixpanel-profiles": {
        "$distinct_id": WHO,
        "$properties": {"$last_seen": "2024-05-01T10:00:00", **_OLD},
    },
    "segment": {
        "type": "identify",
        "messageId": "m1",
        "userId": WHO,
        "timestamp": _TIME,
        "traits": _OLD,
    },
    "csv": (
        "event,distinct_id,timestamp,$set\n"
        f'e,{WHO},{_TIME},"{{""plan"":""free"",""city"":""Paris""}}"\n'
    ),
    "mapping": {"what": "e", "who": WHO, "at": _TIME, **_OLD},
}
"""Of each format, a record that sets two properties of a person."""
OPTIONS: Final = {"mixpanel-profiles": ["--time-offset", "0"], "csv": ["--json-column", "$set"]}


@pytest.mark.parametrize("form", RECORDS)
def test_a_live_property_outlives_an_import_unless_that_is_asked_for(
    form: str, service: Service, tmp_path: Path
) -> None:
    """An old value is only set where there is none; with `--person-properties set` it wins, and
    that has to be accepted.
    """
    key = f"phc_persons_of_{form.replace('-', '_')}_1"
    source = tmp_path / ("export.csv" if form == "csv" else "export.jsonl")
    record = RECORDS[form]
    source.write_text(record if isinstance(record, str) else json.dumps(record) + "\n")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    options = (
        ["--mapping", str(tmp_path / "rules.yaml")] if form == "mapping" else OPTIONS.get(form, [])
    )
    live = {"event": "live", "distinct_id": WHO, "properties": {"$set": {"plan": "enterprise"}}}
    service.capture({"api_key": key, **live})

    command: tuple[str | Path, ...] = (form, source, *options)
    done = imported(service, tmp_path / "state", *command, key=key)
    assert done.code == 0, done.err
    assert service.person(key, WHO).items() >= {"plan": "enterprise", "city": "Paris"}.items()

    wanted = (*command, "--person-properties", "set")
    refused = imported(service, tmp_path / "set", *wanted, key=key)
    assert refused.code == 1
    assert "--accept overwrites-persons" in refused.out + refused.err
    assert service.person(key, WHO)["plan"] == "enterprise"

    other_key = key + "_set"
    service.capture({"api_key": other_key, **live})
    forced = imported(
        service, tmp_path / "set", *wanted, "--accept", "overwrites-persons", key=other_key
    )
    assert forced.code == 0, forced.err
    assert service.person(other_key, WHO).items() >= {"plan": "free", "city": "Paris"}.items()
