"""What happens on a machine that lacks a tool, and when an archive isn't what was pinned."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.sdks import proxies
from tests.sdks.installing import checked
from tests.sdks.toolchains import missing, require


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A path with nothing on it."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_what_is_missing_is_named() -> None:
    """The reason names the SDK and each tool; Python's needs none."""
    assert missing("java") == "java: not on the path: java, javac, mvn"
    assert missing("python") is None


def test_a_missing_tool_skips_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a developer's machine the test is skipped, and says why."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="go: not on the path: go"):
        require("go")


def test_a_missing_tool_fails_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous integration has every tool, so there nothing is skipped."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="node: not on the path: node, npm"):
        require("node")


def test_an_archive_that_isnt_the_pinned_one_is_found(tmp_path: Path) -> None:
    """A jar with another checksum, one more and one less are each named."""
    for name in ("same", "other", "more"):
        (tmp_path / f"{name}.jar").write_bytes(name.encode())
    digest = hashlib.sha256(b"same").hexdigest()
    (tmp_path / "checksums.txt").write_text(
        "".join(f"{digest}  {name}.jar\n" for name in ("same", "other", "less"))
    )
    with pytest.raises(ValueError, match=r"less[.]jar, more[.]jar, other[.]jar"):
        checked(tmp_path, tmp_path / "checksums.txt")


def test_a_missing_web_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """nginx and Caddy are skipped and required as the SDKs' tools are."""
    monkeypatch.setattr(proxies, "_path", lambda: "/nonexistent")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="nginx: not on the path"):
        proxies.require("nginx")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="caddy: not on the path"):
        proxies.require("caddy")
