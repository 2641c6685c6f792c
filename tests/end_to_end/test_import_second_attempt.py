"""A source that was imported before, under other options: what it brought can't be taken back."""

from __future__ import annotations

import json
from pathlib import Path

from forwarder.sources.imports.checkpoint import FILE
from tests.end_to_end.importing import RunningSandbox, imported, manifest_of

COUNT = 40


def export(folder: Path) -> Path:
    """Mixpanel's events, whose times are what clocks of the project showed."""
    path = folder / "export.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "event": "seen",
                    "properties": {
                        "time": 1_704_067_200 + number,
                        "distinct_id": f"p{number}",
                        "$insert_id": f"i{number}",
                    },
                }
            )
            + "\n"
            for number in range(COUNT)
        )
    )
    return path


def arrived(service: RunningSandbox, key: str) -> int:
    """The events of a project."""
    return len(service.ask(f"events?api_key={key}&limit=1000")["results"])


def test_another_state_folder_does_not_repair_a_wrong_zone(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """The second attempt stops: it says what is there, that it stays, and what can be done. In the
    old folder the advice is no other folder.
    """
    key = "phc_second_attempts_000001"
    command = ("mixpanel", export(tmp_path))
    wrong = imported(service, tmp_path / "one", *command, "--zone", "UTC", key=key)
    assert wrong.code == 0, wrong.out + wrong.err
    right = (*command, "--zone", "America/Los_Angeles")

    same = imported(service, tmp_path / "one", *right, key=key)
    assert same.code == 2
    assert "`--zone` was 'UTC', now it is 'America/Los_Angeles'" in same.err
    assert "can't be taken back" in same.err
    assert "belong in another project" in same.err

    for lost in (False, True):  # then only the manifest says it
        if lost:
            (tmp_path / "one" / FILE).unlink()
        second = imported(service, tmp_path / "two", *right, key=key)
        assert second.code == 1
        words = " ".join(second.out.split())
        assert f"{COUNT} events are there of import {manifest_of(tmp_path / 'one').job.id}" in words
        assert "`--zone` was 'UTC', now it is 'America/Los_Angeles'" in words
        assert "--accept imported-before" in words
        assert arrived(service, key) == COUNT


def test_another_project_and_the_same_options_are_no_second_attempt(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """A rehearsal doesn't stop the import; nor does the same import in another folder, of which
    the service counts nothing twice. What was accepted is sent.
    """
    key = "phc_second_attempts_000002"
    command = ("mixpanel", export(tmp_path))
    assert imported(service, tmp_path / "one", *command, "--zone", "UTC", key=key).code == 0
    other = imported(
        service, tmp_path / "two", *command, "--zone", "Europe/Berlin", key=f"{key}_other"
    )
    assert other.code == 0, other.out
    again = imported(service, tmp_path / "three", *command, "--zone", "UTC", key=key)
    assert again.code == 0, again.out
    assert arrived(service, key) == COUNT
    accepted = ("--zone", "Europe/Berlin", "--accept", "imported-before")
    assert imported(service, tmp_path / "four", *command, *accepted, key=key).code == 0
    assert arrived(service, key) == 2 * COUNT
