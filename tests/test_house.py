"""The shape of the house: names that say what they are, rooms that import one way, and the page that describes them."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.documents import page
from tests.support.repository import ROOT, files, name

SHARED: Final = 0.03
"""The share of class names that may occur twice; none of them public."""
PAGE: Final = page("architecture")
_NAMED: Final = re.compile(r"`((?:forwarder|tests|docs|benchmarks)/[\w./-]+)`")
_MODULE: Final = re.compile(r"`(?:[a-z_]+/)*([a-z_0-9]+\.py)`")


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Each module of the product by its dotted name."""
    found = {}
    for path in files(".py", "forwarder"):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[dotted] = (path, ast.parse(path.read_text()))
    return found


def test_a_class_name_means_one_thing() -> None:
    """No public class has the name of another, and few private ones do."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(f"{name(path)}:{node.lineno}")
    shared = {each: places for each, places in where.items() if len(places) > 1}
    assert {each: places for each, places in shared.items() if not each.startswith("_")} == {}
    assert len(shared) <= SHARED * len(where), shared


def _package(module: str) -> str:
    return module if modules()[module][0].name == "__init__.py" else module.rpartition(".")[0]


def _imports(tree: ast.Module) -> set[str]:
    known = modules()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found |= {whole} if whole in known else {node.module} & known.keys()
    return found


def test_packages_import_one_way() -> None:
    """Of two packages at most one imports the other, a package and what is inside it too; `forwarder` itself holds the version only."""
    edges = Counter(
        (_package(module), _package(other))
        for module, (_, tree) in modules().items()
        for other in _imports(tree)
        if _package(module) != _package(other) and "forwarder" not in (_package(module), _package(other))
    )
    assert sorted({tuple(sorted(edge)) for edge in edges if edge[::-1] in edges}) == []


def test_every_file_on_the_page_exists() -> None:
    """The page on the architecture names files and folders that are there, and every room."""
    text = PAGE.read_text()
    named = _NAMED.findall(text)
    assert [each for each in named if not (ROOT / each).exists()] == []
    rooms = {path.parent.name for path in (ROOT / "forwarder").glob("*/__init__.py")}
    assert [room for room in sorted(rooms) if f"`forwarder/{room}/" not in text and f"`{room}/`" not in text] == []


def test_every_module_that_a_docstring_names_exists() -> None:
    """A reader who follows `module.py` in a comment or docstring finds it."""
    there = {path.name for path in files(".py")}
    named = [(name(path), each) for path, _ in modules().values() for each in _MODULE.findall(path.read_text())]
    assert [(path, each) for path, each in named if each not in there] == []
