"""The manifest of an import."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.manifest import encode, read, write
from tests.sources.imports.samples.manifests import manifest


def test_it_says_what_was_read_and_what_became_of_it() -> None:
    """Of each file and of all together, with times that people can read."""
    made = manifest(days=2)
    assert (made.started, made.ended) == ("2025-06-15T15:06:40.000Z", "2025-06-15T18:06:40.000Z")
    assert (made.first, made.last) == ("2024-01-01T00:00:00.000Z", "2024-01-02T00:00:06.000Z")
    assert list(made.days) == ["2024-01-01", "2024-01-02"]
    assert made.books.difference == 0
    assert made.books.read == sum(file.books.read for file in made.files)
    assert made.events == sum(made.names.values()) == sum(day.delivered for day in made.days.values())
    assert made.source_events == made.events + made.books.refused["rejected_400"]
    assert list(made.names.values()) == sorted(made.names.values(), reverse=True)
    assert made.complete


def test_an_import_that_goes_on_is_not_complete() -> None:
    """One file that isn't read to its end is enough."""
    assert not manifest(days=1, ended=False).complete


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """A former one is replaced; people can read it as well."""
    path = tmp_path / "manifest.json"
    write(manifest(days=1), path)
    write(manifest(days=3), path)
    assert read(path) == manifest(days=3)
    assert path.read_text().startswith('{\n  "version": 1,')


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"version": 1', '"version": 7', "it is of version 7, this forwarder reads version 1"),
        ('"complete": true', '"complete": "yes"', "Expected `bool`"),
        ('"repeats": ', '"repeats": 1', "books don't balance"),
        ('"mended": ', '"mended": 9', "books don't balance"),
        ('"events": ', '"events": 1', "days don't add up"),
        ("{", "", "malformed|Expected"),
    ],
)
def test_one_that_was_changed_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    """What doesn't add up verifies nothing."""
    path = tmp_path / "manifest.json"
    path.write_text(encode(manifest(days=1)).decode().replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=words):
        read(path)


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The hint says which file is meant."""
    with pytest.raises(ConfigurationError, match="No such file") as caught:
        read(tmp_path / "manifest.json")
    assert "manifest.json" in caught.value.hint


def test_it_is_the_same_for_the_same_checkpoint() -> None:
    """Byte for byte: two of them can be compared by anything."""
    assert encode(manifest(days=2)) == encode(manifest(days=2))
    assert msgspec.json.decode(encode(manifest(days=2)))["job"]["format"] == "mixpanel"
