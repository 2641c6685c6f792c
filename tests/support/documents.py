"""Reads documents: their links, their headings, the tests that they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.repository import ROOT

DOCS: Final = ROOT / "docs"
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def page(title: str) -> Path:
    """The document of this name, in whichever folder of docs/ it is."""
    [path] = DOCS.rglob(f"{title}.md")
    return path


def text_of(*documents: Path | str) -> str:
    """The text of documents, one after the other, by their files or their names."""
    return "\n".join(
        (document if isinstance(document, Path) else page(document)).read_text("utf-8")
        for document in documents
    )


GUIDES: Final = tuple(
    page(title)
    for title in (
        "connect-sdks",
        "what-happens-when",
        "alerts",
        "security",
        "hostile-senders",
        "kafka",
        "kafka-operate",
        "migration",
        "migration-exports",
        "repair-imports",
        "imports",
        "import-formats",
        "import-preflight",
        "first-party",
        "logs",
        "log-files",
        "log-recipes",
        "testing",
        "testing-http",
        "sandbox-faults",
        "sandbox",
        "sandbox-flags",
        "sandbox-exports",
    )
)


def proofs(text: str) -> list[tuple[str, str]]:
    """The tests that a text names: file and function."""
    return PROOF.findall(text)


@cache
def shown_in(path: str) -> frozenset[str]:
    """The test functions that a file defines; none if there is no such file."""
    file = ROOT / path
    if not file.exists():
        return frozenset()
    body = ast.parse(file.read_text("utf-8")).body
    functions = [
        node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return frozenset(name for name in functions if name.startswith("test_"))


def snippet(file: Path, language: str) -> str:
    """The one block of code in a language that a document has."""
    [block] = re.findall(rf"^```{language}\n(.*?)^```", text_of(file), re.DOTALL | re.MULTILINE)
    return str(block)


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.+)\n", _CODE.sub("", text), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def links(file: Path) -> Iterator[tuple[Path, str]]:
    """Where a document's relative links lead: file, and anchor or nothing."""
    for target, anchor in _LINK.findall(_CODE.sub("", text_of(file))):
        yield ((file.parent / target).resolve() if target else file), anchor


def anchors(file: Path) -> frozenset[str]:
    """What a link into a document can name, as forges spell it."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", text_of(file)), re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    )


def spans(text: str) -> set[str]:
    """What stands in backticks on one line."""
    return set(re.findall(r"`([^`\n]+)`", _CODE.sub("", text)))
