"""Which files match paths and globs."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.sources.logs.discovery import Discovery


def _fail(path: str, error: OSError) -> None:
    raise AssertionError(path) from error


def discovered(root: Path, *globs: str, exclude: tuple[str, ...] = ()) -> list[str]:
    """The names of what matches below `root`."""
    discovery = Discovery([f"{root}/{glob}" for glob in globs], exclude, _fail)
    return sorted(
        file.path.removeprefix(f"{root}/") for file in discovery.scan(lambda _key: None).values()
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Some files."""
    for name in (
        "app.log",
        "app.log.1",
        "b[1].log",
        ".hidden",
        "x/app.log",
        "x/y/app.log",
        "x/.z/app.log",
        "w/app.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("app.log", ["app.log"]),
        ("app.log*", ["app.log", "app.log.1"]),
        ("*", ["app.log", "app.log.1", "b[1].log"]),
        (".h*", [".hidden"]),
        ("*/app.*", ["w/app.txt", "x/app.log"]),
        ("**/app.log", ["app.log", "x/app.log", "x/y/app.log"]),
        ("x/**", ["x/app.log", "x/y/app.log"]),
        ("app.log.[0-9]", ["app.log.1"]),
        ("app.log.[!0-9]", []),
        ("b[[]1].log", ["b[1].log"]),
        ("?pp.log", ["app.log"]),
        ("absent/*", []),
        ("app.log/*", []),
    ],
)
def test_globs(tree: Path, glob: str, names: list[str]) -> None:
    """As in a shell, with `**` for any number of directories."""
    assert discovered(tree, glob) == names


def test_exclusions(tree: Path) -> None:
    """By the file's name, or by the whole path."""
    assert discovered(tree, "**/app.*", exclude=("*.txt", f"{tree}/x/**/app.log")) == [
        "app.log",
        "app.log.1",
    ]


def test_directories(tree: Path) -> None:
    """Those that are listed, and those of the files that links lead to."""
    (tree / "w" / "link").symlink_to(tree / "x" / "y" / "app.log")
    discovery = Discovery([f"{tree}/w/*", f"{tree}/absent/a.log"], (), _fail)
    discovery.scan(lambda _key: None)
    assert discovery.directories == {f"{tree}/w", f"{tree}/x/y", f"{tree}/absent"}
    assert discovery.real(f"{tree}/w/link") == f"{tree}/x/y/app.log"


def test_a_known_name_is_kept(tree: Path) -> None:
    """Of a file with several names, the one that it was followed under is the one that it has."""
    (tree / "a-link.log").hardlink_to(tree / "app.log")
    discovery = Discovery([f"{tree}/*.log"], (), _fail)
    for name in ("app.log", "a-link.log"):
        path = f"{tree}/{name}"
        # mypy has no type for a default that binds the loop's value.
        files = discovery.scan(lambda _key, path=path: path)  # type: ignore[misc]
        assert path in {file.path for file in files.values()}
