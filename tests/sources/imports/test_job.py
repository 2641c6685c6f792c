"""The identity of an import."""

from __future__ import annotations

from uuid import UUID

import pytest

from forwarder.sources.imports.job import job_id

OPTIONS = {"person_properties": "set_once", "geoip": False, "since": None}
SOURCES = ["aa", "bb"]


def test_it_never_changes() -> None:
    """The same import has this id in every version and on every machine: it stands on events that can't be deleted."""
    assert job_id("mixpanel", OPTIONS, SOURCES) == "a1c2bfb2-4549-5ae9-95be-f9a4a9a3ecbe"
    assert UUID(job_id("mixpanel", OPTIONS, SOURCES)).version == 5


def test_order_and_options_that_arent_set_make_no_difference() -> None:
    """Neither the order of options nor that of files matters, and an option without a value is as good as absent."""
    expected = job_id("mixpanel", OPTIONS, SOURCES)
    assert job_id("mixpanel", {"geoip": False, "person_properties": "set_once"}, ["bb", "aa"]) == expected
    assert job_id("mixpanel", dict(reversed(OPTIONS.items())), iter(SOURCES)) == expected


@pytest.mark.parametrize(
    ("format_name", "options", "sources"),
    [
        ("amplitude", OPTIONS, SOURCES),
        ("mixpanel", {**OPTIONS, "geoip": True}, SOURCES),
        ("mixpanel", {**OPTIONS, "time_offset": 0}, SOURCES),
        ("mixpanel", OPTIONS, ["aa"]),
        ("mixpanel", OPTIONS, ["aa", "bb", "bb"]),
        ("mixpanel", OPTIONS, ["aabb"]),
    ],
)
def test_whatever_differs_makes_another_job(format_name: str, options: dict[str, object], sources: list[str]) -> None:
    """Another format, option or file is another job."""
    assert job_id(format_name, options, sources) != job_id("mixpanel", OPTIONS, SOURCES)


def test_options_are_json() -> None:
    """What can't be written the same everywhere is no option."""
    with pytest.raises(TypeError):
        job_id("mixpanel", {"events": {"a", "b"}}, SOURCES)
    with pytest.raises(ValueError, match="JSON"):
        job_id("mixpanel", {"rate": float("nan")}, SOURCES)
