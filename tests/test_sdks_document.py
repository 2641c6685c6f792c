"""`docs/reference/sdks.md` and the pins of tests/sdks agree, and every SDK is pinned as exactly as
its package client can.
"""

from __future__ import annotations

import json
import re

from tests.sdks.older import CLIENTS
from tests.sdks.toolchains import TOOLS
from tests.support.documents import text_of
from tests.support.repository import ROOT

PROGRAMS = ROOT / "tests" / "sdks" / "programs"
DOCUMENT = text_of("sdks")


def pinned() -> dict[str, str]:
    """The versions that are installed, by the SDK's name."""
    node, js = (
        json.loads((PROGRAMS / folder / "package.json").read_text())["dependencies"]
        for folder in ("node", "js")
    )
    return {
        "posthog": _found(r"^posthog==(\S+) ", "python/requirements.txt"),
        **node,
        **js,
        "posthog-go": _found(r"^require github\.com/posthog/posthog-go v(\S+)$", "go/go.mod"),
        "com.posthog:posthog-server": _found(
            r"<artifactId>posthog-server</artifactId>\s*<version>(.+)</version>", "java/pom.xml"
        ),
    }


def _found(pattern: str, name: str) -> str:
    match = re.search(pattern, (PROGRAMS / name).read_text(), re.MULTILINE)
    assert match is not None, name
    return match[1]


def older() -> list[tuple[str, str]]:
    """The older versions that are installed, by their packages' names, in the order of
    the clients.
    """
    js = json.loads((PROGRAMS / "older-js" / "package.json").read_text())["dependencies"].values()
    jars = re.findall(
        (
            r"<groupId>(com\.posthog[^<]*)</groupId>\s*<artifactId>([^<]+)</artifactId>\s*<version"
            r">([^<]+)</version>"
        ),
        _text("older-java/pom.xml"),
    )
    return [
        *[tuple_of(text.removeprefix("npm:").rpartition("@")) for text in js],
        *[
            ("posthog", _found(r"^posthog==(\S+) ", f"older-python/{version}.txt"))
            for version in ("3.7", "6.9")
        ],
        (
            "posthog-go",
            _found(r"^require github\.com/posthog/posthog-go v(\S+)$", "older-go/go.mod"),
        ),
        *[
            (
                "posthog-rs",
                _found(r'^posthog-rs = \{ version = "=([^"]+)"', f"rust/{name}/Cargo.toml"),
            )
            for name in ("older", "newest")
        ],
        *[(f"{group}:{artifact}", version) for group, artifact, version in jars],
    ]


def tuple_of(parts: tuple[str, str, str]) -> tuple[str, str]:
    """Name and version of what stands around an `@`."""
    return parts[0], parts[2]


def _text(name: str) -> str:
    return (PROGRAMS / name).read_text()


def _section(heading: str) -> str:
    return DOCUMENT.partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def _versions(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([^`]+)`[^|]*\| (\d[^ |]*) \|", text, re.MULTILINE)


def test_the_document_names_the_versions_that_are_tested() -> None:
    """The table's versions are those of the pins, SDK by SDK."""
    assert dict(_versions(DOCUMENT.partition("\n## ")[0])) == pinned()


def test_the_document_names_the_older_versions_that_are_tested() -> None:
    """Each older version that is pinned has its row, and no other; each client of the tests is one
    of them, or the newest.
    """
    assert sorted(_versions(_section("## Older versions"))) == sorted(older())
    short = {".".join(version.split(".")[:2]) for _, version in older()}
    assert {client.name.removesuffix("-v1").rpartition("-")[2] for client in CLIENTS} - short == {
        "newest"
    }


def test_the_versions_of_opentelemetry() -> None:
    """The document on log records names the versions that are tested."""
    node = json.loads(_text("otel-node/package.json"))["dependencies"]["@opentelemetry/sdk-logs"]
    python = _found(r"^opentelemetry-sdk==(\S+) ", "otel-python/requirements.txt")
    versions = re.findall(r"^\| `[^|]+ \| (\d+\.\d[^ |]*) \|", text_of("otlp"), re.MULTILINE)
    assert versions == [python, node]


def test_waiting_for_flags_is_said_of_every_sdk_that_waits() -> None:
    """Server SDKs whose flags are tested have a row in the table of how long an
    application waits.
    """
    rows = _section("## When the upstream is down").partition(
        "### How long an application waits for flags"
    )[2]
    for name, version in (*older(), *pinned().items()):
        if name in {"posthog", "posthog-node"}:
            assert f"| `{name}` | {'.'.join(version.split('.')[:2])} |" in rows


def test_the_python_sdk_is_the_one_of_all_other_tests() -> None:
    """The SDK's own folder and requirements/dev.txt have one version."""
    dev = re.search(
        r"^posthog==(\S+) ", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE
    )
    assert dev is not None
    assert dev[1] == pinned()["posthog"]


def test_lock_files_check_every_package_and_name_no_address() -> None:
    """Each package of npm has its checksum and no address; versions are exact."""
    for folder in ("node", "js"):
        lock = json.loads((PROGRAMS / folder / "package-lock.json").read_text())
        packages = [package for place, package in lock["packages"].items() if place]
        assert packages
        assert [
            package for package in packages if "integrity" not in package or "resolved" in package
        ] == []
        assert [
            name
            for name, version in lock["packages"][""]["dependencies"].items()
            if not re.fullmatch(r"\d+\.\d+\.\d+", version)
        ] == []


def test_java_archives_are_pinned() -> None:
    """The SDK's jar and those that it needs have checksums."""
    lines = (PROGRAMS / "java" / "checksums.txt").read_text().splitlines()
    assert [
        line for line in lines if not re.fullmatch(r"[0-9a-f]{64}  [A-Za-z0-9.-]+\.jar", line)
    ] == []
    assert any(
        line.endswith(f"posthog-server-{pinned()['com.posthog:posthog-server']}.jar")
        for line in lines
    )


def test_go_modules_are_pinned() -> None:
    """The SDK's module has its checksum."""
    assert (
        f"github.com/posthog/posthog-go v{pinned()['posthog-go']} h1:"
        in (PROGRAMS / "go" / "go.sum").read_text()
    )


def test_ci_installs_what_the_sdks_need() -> None:
    """Continuous integration has every tool that an SDK needs, so that none is skipped there."""

    wanted = {tool for tools in TOOLS.values() for tool in tools} | {"chromium"}
    assert (
        wanted
        - set(
            re.findall(r"need ([a-z]+) [a-z-]+$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
        )
        == set()
    )
