"""How single values are typed."""

from __future__ import annotations

import pytest

from forwarder.cli.import_request import character, moment, pairs, rate, time_offset
from forwarder.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2024-01-01", 1_704_067_200_000_000),
        ("2024-01-01T01:00:00+01:00", 1_704_067_200_000_000),
        ("2024-01-01 00:00:00.5", 1_704_067_200_500_000),
        ("1704067200", 1_704_067_200_000_000),
    ],
)
def test_times(text: str, micros: int) -> None:
    """Dates, ISO 8601, and epochs; UTC where no zone is named."""
    assert moment("--since", text) == micros


@pytest.mark.parametrize("text", ["yesterday", "48h", "", "2024-13-01"])
def test_a_time_that_moves_is_none(text: str) -> None:
    """The same command has to mean the same import tomorrow."""
    with pytest.raises(ConfigurationError, match=r"--until: .* is not a time"):
        moment("--until", text)


@pytest.mark.parametrize(
    ("text", "minutes"), [("0", 0), ("UTC", 0), ("z", 0), ("+02:00", 120), ("-0830", -510), ("+5:45", 345), ("-00:30", -30)]
)
def test_offsets(text: str, minutes: int) -> None:
    """With their sign, in hours and minutes."""
    assert time_offset(text) == minutes


@pytest.mark.parametrize("text", ["2", "120", "+2", "02:00", "+02:60", "+15:00", "Europe/Berlin", ""])
def test_an_offset_that_could_mean_two_things_is_none(text: str) -> None:
    """Two could be hours or minutes."""
    with pytest.raises(ConfigurationError, match="is not an offset"):
        time_offset(text)


@pytest.mark.parametrize(("text", "events"), [("2000", 2000), ("0.5", 0.5), ("2,000", 2000), ("unlimited", None), ("Unlimited", None)])
def test_rates(text: str, events: float | None) -> None:
    """Events a second, or no limit."""
    assert rate(text) == events


@pytest.mark.parametrize("text", ["0", "-1", "fast", "nan", "inf", "1e9", ""])
def test_what_is_no_rate(text: str) -> None:
    """Nothing and everything aren't rates."""
    with pytest.raises(ConfigurationError, match="invalid rate"):
        rate(text)


def test_options_of_a_store() -> None:
    """The text may hold an equals sign, and is in no error: it may be a secret."""
    assert pairs("--store", ["region=eu", "secret_access_key=a=b"]) == {"region": "eu", "secret_access_key": "a=b"}
    for wrong in ("hunter2", "=hunter2"):
        with pytest.raises(ConfigurationError) as raised:
            pairs("--store", [wrong])
        assert "hunter2" not in raised.value.message + raised.value.hint


def test_characters() -> None:
    """A tab can't be typed in most shells."""
    assert [character("--delimiter", text) for text in (";", r"\t", "tab", "\t")] == [";", "\t", "\t", "\t"]
    with pytest.raises(ConfigurationError, match="is not one character"):
        character("--delimiter", "ab")
