"""Rules that hold for every file of the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

from forwarder import __version__
from tests.support.cases import cases
from tests.support.repository import ROOT, files, name

REGISTRY = re.compile(
    r"\b(?:pypi|pythonhosted|npmjs|rubygems|crates|anaconda|proxy[.]golang)\.(?:org|com|io)\b"
)
LOOSE_ENDS = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b")
UNCODED = re.compile(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)")
SLEEP = re.compile(r"\btime[.]sleep\(|asyncio[.]sleep\((?!0\))")
TEST = re.compile(r"^(?: {4})?(?:async )?def test_\w+", re.MULTILINE)
DOCUMENTED = re.compile(TEST.pattern + r"\([^()]*\)[^:\n]*:\n +\"\"\"\S", re.MULTILINE)
"""A test whose parameters have no parentheses in them, with its docstring."""
SKIP = re.compile(r"mark[.](?:skip|xfail)\(\s*\)|mark[.](?:skip|xfail)\s*$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
DOCUMENT = re.compile(r"(?<![\w/-])docs/[\w/-]+\.md")
PIN = re.compile(r"^[a-z0-9][a-z0-9._-]*==\S+(?: ; .+?)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")

TOGETHER = [
    ROOT / "requirements" / filename
    for filename in ("run.txt", "build.txt", "full.txt", "dev.txt", "browser.txt", "docs.txt")
]
REQUIREMENTS = [*TOGETHER, ROOT / "requirements" / "release.txt"]
WORKFLOWS = ROOT / ".github" / "workflows"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Where a pattern is found: file, line number and line."""
    return [
        f"{name(path)}:{number}: {line.strip()[:100]}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_package_registry() -> None:
    """From where packages come is the machine's setting, not the repository's."""
    assert lines_with(REGISTRY, files()) == []


def test_no_loose_ends() -> None:
    """What is left to do is an issue, not a comment."""
    assert lines_with(LOOSE_ENDS, files()) == []


def test_exceptions_from_lint_and_types_are_coded() -> None:
    """An exception names the one rule that it is from."""
    assert lines_with(UNCODED, files(".py")) == []


def test_no_test_sleeps() -> None:
    """Tests turn a fake clock, or wait for an event with a limit."""
    assert lines_with(SLEEP, files(".py", "tests")) == []


def test_no_test_is_skipped_without_a_reason() -> None:
    """A skipped test says why."""
    assert lines_with(SKIP, files(".py", "tests")) == []


def test_every_module_and_test_says_what_it_is_for() -> None:
    """Each module of the product has a docstring, and each test says the behaviour
    that it holds.
    """
    silent = [
        name(path)
        for under in ("forwarder", "benchmarks")
        for path in files(".py", under)
        if not (text := path.read_text("utf-8")).startswith('"""')
        and ast.get_docstring(ast.parse(text)) is None
    ]
    for path in files(".py", "tests"):
        text = path.read_text("utf-8")
        if len(TEST.findall(text)) == len(DOCUMENTED.findall(text)):
            continue  # to parse all of them takes seconds
        tree = ast.parse(text)
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        nodes = [*tree.body, *(node for test_class in classes for node in test_class.body)]
        functions = [
            node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        silent += [
            f"{name(path)}: {node.name}"
            for node in functions
            if node.name.startswith("test_") and not ast.get_docstring(node)
        ]
    assert silent == []


@cases("path", REQUIREMENTS, ids=name)
def test_requirements_are_pinned_with_hashes_and_name_no_index(path: Path) -> None:
    """Every line is a pin or one of its hashes, and every pin has at least one: there is no
    option, no address, no file.
    """
    lines = path.read_text().splitlines()
    assert [line for line in lines if not PIN.match(line) and not HASH.match(line)] == []
    assert [
        pin
        for pin, after in zip(lines, [*lines[1:], ""], strict=True)
        if PIN.match(pin) and not HASH.match(after)
    ] == []


@cases(
    ("path", "extras"),
    [
        ("run.txt", ()),
        ("build.txt", ("build",)),
        ("full.txt", ("", "demo", "import", "kafka-demo", "msk")),
        ("dev.txt", ("", "demo", "dev", "build")),
        ("browser.txt", ("", "browser")),
        ("docs.txt", ("docs",)),
    ],
    ids=["run", "build", "full", "dev", "browser", "docs"],
)
def test_requirements_cover_what_pyproject_asks_for(path: str, extras: tuple[str, ...]) -> None:
    """Each dependency that pyproject.toml names is pinned in the files that promise it."""
    project = PYPROJECT["project"]
    groups = {
        "": project["dependencies"],
        "build": PYPROJECT["build-system"]["requires"],
        **project["optional-dependencies"],
    }
    groups["docs"] = re.findall(
        r"^\w.*", (ROOT / "requirements" / "docs.in").read_text(), re.MULTILINE
    )
    wanted = {
        re.split(r"[^A-Za-z0-9._-]", line)[0].lower()
        for extra in extras or ("",)
        for line in groups[extra]
    }
    pinned = set(
        re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements" / path).read_text(), re.MULTILINE)
    )
    assert wanted - pinned == set()


def test_requirements_agree_with_each_other() -> None:
    """What is tested is what runs: no package is pinned to two versions."""
    pins = [
        dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE))
        for path in TOGETHER
    ]
    run, build, full, dev, browser, docs = pins
    assert {
        package: version
        for package, version in {**run, **build, **full}.items()
        if dev.get(package) != version
    } == {}
    assert {
        package: version
        for package, version in {**browser, **docs}.items()
        if dev.get(package, version) != version
    } == {}


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link in a Markdown file is a file of the repository."""
    links = [(path, link) for path in files(".md") for link in LINK.findall(path.read_text())]
    assert [
        f"{name(path)}: {link}" for path, link in links if not (path.parent / link).exists()
    ] == []


def test_documents_that_are_named_exist() -> None:
    """A comment, a message or a document that names a path in docs/ names a file."""
    named = [
        (path, document)
        for path in files()
        for document in DOCUMENT.findall(path.read_text(errors="replace"))
    ]
    assert [
        f"{name(path)}: {document}" for path, document in named if not (ROOT / document).exists()
    ] == []


def test_decisions_are_numbered_without_gaps() -> None:
    """Records in docs/decisions are numbered from 1, and their titles carry the same number."""
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [path.name[:4] for path in records] == [
        f"{number:04}" for number in range(1, len(records) + 1)
    ]
    assert [
        path.name for path in records if f"\n---\n# {int(path.name[:4])}. " not in path.read_text()
    ] == []


CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
LONGEST_ENTRY = 320


def test_the_changelog_begins_with_what_is_next() -> None:
    """The newest section is what is not released yet, or the version of the package; each release
    has its day.
    """
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\S+))?", CHANGELOG, re.MULTILINE)
    assert sections[0][0] in {"Unreleased", __version__}
    days = [date.fromisoformat(day) for name, day in sections if name != "Unreleased"]
    assert days == sorted(days, reverse=True)


def test_the_changelog_has_a_line_for_each_change() -> None:
    """Grouped as Keep a Changelog has it, and short enough to be read."""
    groups = re.findall(r"^### (.*)", CHANGELOG, re.MULTILINE)
    assert set(groups) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    below = CHANGELOG[CHANGELOG.index("\n## ") :].splitlines()
    assert [
        line for line in below if line.startswith(("-", " ")) and len(line) > LONGEST_ENTRY
    ] == []
    assert [line for line in below if line.startswith(" ")] == []


def test_layers_hold() -> None:
    """No package imports one above it or beside it."""
    command = Path(sys.executable).parent / "lint-imports"
    linter = subprocess.run(
        [command, "--no-logo"], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert linter.returncode == 0, linter.stdout


def test_ci_runs_the_tests_unattended() -> None:
    """`.ci/run` can be executed, and runs `make test` with CI set and nothing to read from."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(
        r"export CI=true\n(?:.*\n)*.*make test .*</dev/null$", script.read_text(), re.MULTILINE
    )


@cases("target", ["setup", "demo", "check", "test", "bench", "requirements", "clean", "help"])
def test_make_helps_with_its_targets(target: str) -> None:
    """`make help` lists every target that is meant for people."""
    assert re.search(rf"^{target}:.*  ## \S", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_supported_pythons_are_the_same_everywhere() -> None:
    """Classifiers, the README and the workflow name the same versions of Python."""
    project = PYPROJECT["project"]
    prefix = "Programming Language :: Python :: "
    versions = [
        classifier.removeprefix(prefix)
        for classifier in project["classifiers"]
        if classifier.startswith(prefix)
    ]
    assert project["requires-python"] == f">={versions[0]}"
    assert (
        f"Python {', '.join(versions[:-1])} or {versions[-1]}" in (ROOT / "README.md").read_text()
    )
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == versions[1:]
    setup = [step for step in jobs["everything"]["steps"] if "with" in step][-1]
    assert setup["with"]["python-version"] == versions[0]


def test_actions_are_pinned_by_commit() -> None:
    """Each action of a workflow has the version that its commit is of."""
    used = [
        action
        for path in WORKFLOWS.glob("*.yml")
        for action in re.findall(r"uses: (.*)", path.read_text())
    ]
    assert used
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [action for action in used if not pinned.fullmatch(action)] == []


def test_names_of_tests_are_the_same_in_every_process(request: pytest.FixtureRequest) -> None:
    """A gzip body in a test's name has no time in its header: processes that share the tests out
    must agree on their names.
    """
    marks = [
        name.partition("\\x1f\\x8b\\x08")[2][: len("\\x00" * 5)]
        for name in (item.nodeid for item in request.session.items)
    ]
    assert {mark for mark in marks if mark} <= {"\\x00" * 5}
