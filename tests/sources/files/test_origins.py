"""Addresses that hold credentials, or are mistyped; object stores: memory and local ones stand for
those of a cloud.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from unittest.mock import patch

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra
from forwarder.sources.files import origins
from forwarder.sources.files.origins import check_addresses, connect, redact
from forwarder.sources.files.record_blocks import BrokenSource, ReadOptions
from forwarder.sources.files.source import FileSource, open_source
from tests.support.packed import numbered, zipped

# its runtime has files of its own, for the whole process: opened before a test is asked what it
# left
obstore.list(MemoryStore()).collect()

USER = "AKIAEXAMPLEUSER"
SECRET = "wJalr/XUtn+FEMI"
MISTYPED = [
    f"s3:/{USER}:{SECRET}@bucket/export.json",
    f"s3://{USER}:{SECRET}@bucket/export.json",
    f"s3://{USER}@bucket/export.json",
    f"s3://{USER}:{SECRET}",
    f"S3://{USER}:{SECRET}@bucket/export.json",
    f"s4://{USER}:{SECRET}@bucket/*.json",
    f"gs://{USER}:{SECRET}@bucket/export.json",
    f"az://{USER}:{SECRET}@container/export.json",
    f"abfss://{USER}:{SECRET}@account.example.net/export.json",
    f"https://{USER}:{SECRET}@files.example.com/export.json",
    f"s3:{USER}:{SECRET}@bucket/export.json",
    f"s3//{USER}:{SECRET}@bucket/export.json",
    f"{USER}:{SECRET}@bucket/*.json",
]


@pytest.mark.parametrize("address", MISTYPED)
@pytest.mark.parametrize("absolute", [False, True])
def test_no_credentials_are_repeated(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, absolute: bool
) -> None:
    """Neither by the message nor by its hint, also where it was taken for a path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        open_source([str(Path(address).absolute()) if absolute and "@" in address else address])
    reported = raised.value.message + raised.value.hint
    assert not any(part in reported for part in (USER, SECRET, *SECRET.split("/")))
    assert "bucket" in reported or "example" in reported or "container" in reported


def test_other_addresses_and_paths_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's name stands before an @, keys of objects may hold anything, and so may names
    of files.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    container = "abfss://container@account.example.net/x"
    check_addresses(
        ["s3://bucket/a:b@c.json", container, "gs://bucket", "data/a:b.json", "-", "s3:/x.json"]
    )
    for path in ("data/me@example.json", container, "plain", "s3://bucket/a b"):
        assert redact(path) == path


A = b'{"n":1}\n{"n":2}\n'
IN_A = [(1, b'{"n":1}'), (2, b'{"n":2}')]


def filled(store: ObjectStore) -> ObjectStore:
    """A bucket with an export."""
    for name in ("export/2025/9.json", "export/2025/10.json", "export/.hidden", "other/a b#1.json"):
        obstore.put(store, name, A)
    obstore.put(store, "export/z.zip", zipped({"m.gz": gzip.compress(A), "n": A}))
    return store


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A store of either kind."""
    return filled(MemoryStore() if request.param == "memory" else LocalStore(tmp_path))


def opened(store: ObjectStore, *urls: str, options: ReadOptions | None = None) -> FileSource:
    """The source of URLs in a store."""
    with patch.object(origins, "connect", return_value=store) as connected:
        source = open_source(urls, options)
    assert [call.args[0] for call in connected.mock_calls] == ["s3://bucket"] * len(urls)
    return source


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("export/2025", ["export/2025/9.json", "export/2025/10.json"]),
        ("export/2025/9.json", ["export/2025/9.json"]),
        ("other/", ["other/a b#1.json"]),
        ("export/20*/*.json", ["export/2025/9.json", "export/2025/10.json"]),
        ("export/*", ["export/z.zip"]),
        ("**/*.json", ["export/2025/9.json", "export/2025/10.json", "other/a b#1.json"]),
        ("export/.*", ["export/.hidden"]),
        ("export/", ["export/2025/9.json", "export/2025/10.json", "export/z.zip"]),
    ],
)
def test_a_url_is_an_object_a_prefix_or_a_pattern(
    store: ObjectStore, key: str, names: list[str]
) -> None:
    """In the order of the names, numbers by value; hidden objects are left out."""
    with opened(store, f"s3://bucket/{key}") as source:
        assert [origin.name for origin in source.origins] == [
            f"s3://bucket/{name}" for name in names
        ]


def test_a_part_is_read_and_the_whole_identifies(store: ObjectStore) -> None:
    """Every second object of a prefix, in the order of their names; what is read changes nothing
    of what the source is.
    """
    with (
        opened(store, "s3://bucket/export/") as whole,
        patch.object(origins, "connect", return_value=store),
    ):
        parts = [
            open_source(["s3://bucket/export/"], part=slice(number, None, 2)) for number in range(2)
        ]
    assert [[origin.name.rpartition("/")[2] for origin in part.origins] for part in parts] == [
        ["9.json", "z.zip"],
        ["10.json"],
    ]
    assert {part.identity for part in parts} == {whole.identity}
    assert [file.name.rpartition("/")[2] for file in parts[1].files()] == ["10.json"]


def test_a_star_stays_in_its_folder(store: ObjectStore) -> None:
    """As in a shell: what lies deeper isn't brought in by a pattern that doesn't say so."""
    with pytest.raises(ConfigurationError, match="there is no such object"):
        opened(store, "s3://bucket/export/*.json")


def test_objects_are_read_and_sought_in(store: ObjectStore) -> None:
    """An archive of a store needs no copy on disk."""
    with opened(store, "s3://bucket/export/", options=ReadOptions(max_spool=0)) as source:
        records = {
            file.name.removeprefix("s3://bucket/export/"): numbered(list(source.blocks(file)))
            for file in source.files()
        }
    assert records == {
        "2025/9.json": IN_A,
        "2025/10.json": IN_A,
        "z.zip!m.gz": IN_A,
        "z.zip!n": IN_A,
    }


def test_an_object_is_known_by_its_tag_and_size() -> None:
    """One that is written again is another, even of equal size."""
    store = filled(MemoryStore())
    with opened(store, "s3://bucket/other") as source, opened(store, "s3://bucket/other") as again:
        assert source.identity == again.identity
    obstore.put(store, "other/a b#1.json", A)
    with opened(store, "s3://bucket/other") as changed:
        assert changed.identity != source.identity
        assert changed.origins[0].fingerprint.size == len(A)


def test_an_object_that_is_replaced_while_it_is_read_is_broken() -> None:
    """Never half of one and half of the other."""
    store = MemoryStore()
    obstore.put(store, "big", A * 400_000)
    with opened(store, "s3://bucket/big") as source:
        files = source.files()
        reading = source.blocks(next(files))
        next(reading)
        obstore.put(store, "big", A * 400_000)
        with pytest.raises(BrokenSource, match="the object was replaced while it was read"):
            list(reading)
        list(files)


def test_what_names_no_object_is_an_error() -> None:
    """As with files."""
    with pytest.raises(ConfigurationError, match="there is no such object"):
        opened(filled(MemoryStore()), "s3://bucket/nothing")


@pytest.mark.parametrize("name", ["allow_http", "AWS_ALLOW_HTTP"])
def test_options_of_the_client_and_the_store_are_distinguished(name: str) -> None:
    """A store in the same network, without TLS: all of its options are said in one place."""
    store = connect(
        "s3://bucket",
        {"region": "eu", "endpoint": "http://127.0.0.1:9000", name: "true", "timeout": "5s"},
    )
    assert isinstance(store, S3Store)
    assert store.config == {"bucket": "bucket", "endpoint": "http://127.0.0.1:9000", "region": "eu"}
    assert store.client_options == {"allow_http": "true", "timeout": "5s"}


def test_a_store_is_made_from_the_url_of_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options are checked; without obstore the error says what to install."""
    with pytest.raises(ConfigurationError, match="s3://bucket"):
        open_source(["s3://bucket/x"], ReadOptions(store={"no_such_option": "1"}))
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigurationError, match="without obstore") as caught:
        open_source(["gs://bucket/x"])
    assert caught.value.hint == install_extra("import")
