"""Addresses of object stores that hold credentials, or are mistyped."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.origins import check_addresses, redact
from forwarder.sources.files.source import open_source

USER, SECRET = "AKIAEXAMPLEUSER", "wJalr/XUtn+FEMI"
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
def test_no_credentials_are_repeated(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, absolute: bool) -> None:
    """Neither by the message nor by its hint, also where it was taken for a path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        open_source([str(Path(address).absolute()) if absolute and "@" in address else address])
    told = raised.value.message + raised.value.hint
    assert not any(part in told for part in (USER, SECRET, *SECRET.split("/")))
    assert "bucket" in told or "example" in told or "container" in told


def test_other_addresses_and_paths_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's name stands before an @, keys of objects may hold anything, and so may names of files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    container = "abfss://container@account.example.net/x"
    check_addresses(["s3://bucket/a:b@c.json", container, "gs://bucket", "data/a:b.json", "-", "s3:/x.json"])
    for path in ("data/me@example.json", container, "plain", "s3://bucket/a b"):
        assert redact(path) == path
