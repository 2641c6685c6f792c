"""The shape of the house: names that say what they are, rooms that import one way, and the page
that describes them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from forwarder.telemetry.books import Books
from tests.support.documents import page
from tests.support.repository import ROOT, files, name, trees

SHARED: Final = 0.03
"""The share of class names that may occur twice; none of them public."""
LINE: Final = 100
"""The most characters of a line."""
PAGE: Final = page("architecture")
_CLASS: Final = re.compile(r"^ *class ([A-Za-z]\w*)\b(?=[(:])", re.MULTILINE)
_NAMED: Final = re.compile(r"`((?:forwarder|tests|docs|benchmarks)/[\w./-]+)`")
_MODULE: Final = re.compile(r"`(?:[a-z_]+/)*([a-z_0-9]+\.py)`")


class Module(NamedTuple):
    """What a module of the product defines and imports."""

    path: Path
    classes: list[tuple[str, int]]
    """Names and lines."""
    imports: list[str]
    """Modules, and what is imported from them: `package.module`, `package.module.name`."""


@cache
def modules() -> dict[str, Module]:
    """Each module of the product by its dotted name."""
    by_name = {}
    for path, tree in trees("forwarder"):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        by_name[dotted] = module = Module(path, [], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                module.classes.append((node.name, node.lineno))
            elif isinstance(node, ast.Import):
                module.imports.extend(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                module.imports.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return by_name


def test_a_class_name_means_one_thing() -> None:
    """No public class has the name of another, and few private ones do."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules().values():
        for class_name, line in module.classes:
            where[class_name].append(f"{name(module.path)}:{line}")
    shared = {class_name: places for class_name, places in where.items() if len(places) > 1}
    assert {
        class_name: places
        for class_name, places in shared.items()
        if not class_name.startswith("_")
    } == {}
    assert len(shared) <= SHARED * len(where), shared


def test_a_class_name_of_the_tests_means_one_thing() -> None:
    """No public class of the tests has the name of another one."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in files(".py", "tests"):
        for class_name in _CLASS.findall(path.read_text()):
            where[class_name].append(name(path))
    assert {class_name: places for class_name, places in where.items() if len(places) > 1} == {}


def _package(module: str) -> str:
    return module if modules()[module].path.name == "__init__.py" else module.rpartition(".")[0]


def _imports(module: Module) -> set[str]:
    known = modules()
    return {
        imported if imported in known else imported.rpartition(".")[0]
        for imported in module.imports
    } & known.keys()


def test_packages_import_one_way() -> None:
    """Of two packages at most one imports the other, a package and what is inside it too;
    `forwarder` itself holds the version only.
    """
    edges = Counter(
        (_package(dotted), _package(other))
        for dotted, module in modules().items()
        for other in _imports(module)
        if _package(dotted) != _package(other)
        and "forwarder" not in (_package(dotted), _package(other))
    )
    assert sorted({tuple(sorted(edge)) for edge in edges if edge[::-1] in edges}) == []


def test_every_file_on_the_page_exists() -> None:
    """The page on the architecture names files and folders that are there, and every room."""
    text = PAGE.read_text()
    named = _NAMED.findall(text)
    assert [file for file in named if not (ROOT / file).exists()] == []
    rooms = {path.parent.name for path in (ROOT / "forwarder").glob("*/__init__.py")}
    assert [
        room
        for room in sorted(rooms)
        if f"`forwarder/{room}/" not in text and f"`{room}/`" not in text
    ] == []


def test_every_module_that_a_docstring_names_exists() -> None:
    """A reader who follows `module.py` in a comment or docstring finds it."""
    there = {path.name for path in files(".py")}
    named = [
        (name(module.path), filename)
        for module in modules().values()
        for filename in _MODULE.findall(module.path.read_text())
    ]
    assert [(path, filename) for path, filename in named if filename not in there] == []


def test_no_line_is_too_long() -> None:
    """Every line of a Python file has at most 100 characters: ruff's own check leaves out lines
    that end with a pragma.
    """
    long = list[str]()
    for path in files(".py"):
        lines = path.read_text().splitlines()
        long += [f"{name(path)}:{at}" for at, line in enumerate(lines, 1) if len(line) > LINE]
    assert long == []


BOOKS: Final = ROOT / "forwarder" / "telemetry" / "books.py"
READERS: Final = frozenset({"forwarder/daemon/observation.py"})
"""The modules that read the accounts, and may not change them."""
_VERBS: Final = re.compile(r"changed only by the verbs (.+? and `\w+`)", re.DOTALL)


def test_only_the_books_verbs_change_accounts() -> None:
    """The module and the page name all verbs, no other module assigns to an account, and only one
    reads them.
    """
    verbs = [name for name, value in vars(Books).items() if callable(value) and name[0] != "_"]
    for text in (BOOKS.read_text(), PAGE.read_text()):
        [named] = _VERBS.findall(text)
        assert re.findall(r"`(\w+)`", named) == verbs
    changed: list[str] = []
    for path, tree in trees("forwarder", ".accounts"):
        if path != BOOKS:
            allowed = name(path) in READERS
            changed += [f"{name(path)}:{line}" for line in _account_uses(tree, reads=allowed)]
    assert changed == []


def test_a_changed_account_is_found() -> None:
    """Assigned, added to, deleted, or changed by one of its methods."""
    for text in (
        "books.accounts[lane].delivered += 1",
        "books.accounts.others.delivered = 1",
        "books.accounts.others.received.update(figures)",
        "del self._books.accounts[lane]",
        "for books.accounts[lane].delivered in counts: pass",
    ):
        assert _account_uses(ast.parse(text), reads=True) == [1], text
    reads = ast.parse("account = books.accounts[lane]\nlanes = file.accounts()")
    assert (_account_uses(reads, reads=True), _account_uses(reads, reads=False)) == ([], [1])


def _account_uses(tree: ast.Module, *, reads: bool) -> list[int]:
    """Lines that change accounts, and, unless `reads`, those that read them. `accounts()` is a
    method of another class.
    """
    methods = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    lines = set[int]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Subscript):
            continue
        inside = [
            child
            for child in ast.walk(node)
            if isinstance(child, ast.Attribute)
            and child.attr == "accounts"
            and child not in methods
        ]
        changes = not isinstance(node.ctx, ast.Load) or (
            isinstance(node, ast.Attribute) and node.attr in _CHANGING and node in methods
        )
        if inside and (changes or not reads):
            lines.add(node.lineno)
    return sorted(lines)


_CHANGING: Final = frozenset({"add", "clear", "pop", "popitem", "setdefault", "update"})


DATA_PATH: Final = frozenset(
    {"archive", "buffer", "core", "daemon", "deadletter", "delivery", "intake", "mapping"}
    | {"rules", "sources", "storage", "upstream", "wire"}
)
"""Packages that events pass: what an error's frames hold there may be megabytes."""


def test_no_error_is_kept_where_its_own_traceback_leads() -> None:
    """A local that holds an error is part of that error's traceback once it is raised: together
    they wait for the garbage collector, with all that their frames hold.

    A handler keeps its error without a traceback only, and what raises a local deletes it:
    `try: raise error` with `finally: del error`.
    """
    problems: list[str] = []
    for path, tree in trees("forwarder", "raise ", "except "):
        if path.relative_to(ROOT).parts[1] in DATA_PATH:
            problems += [f"{name(path)}:{line}" for line in _kept_errors(tree, frozenset())]
    assert problems == []


def _kept_errors(node: ast.AST, allowed: frozenset[str]) -> list[int]:
    """Lines that raise a local which isn't deleted, or assign what a handler caught. `allowed`:
    names of handlers, and of what is deleted at the end.
    """
    lines: list[int] = []
    for child in ast.iter_child_nodes(node):
        inside = allowed
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = frozenset()
        elif isinstance(child, ast.ExceptHandler) and child.name is not None:
            inside = allowed | {child.name}
        elif isinstance(child, ast.Try):
            inside = allowed | {
                target.id
                for statement in child.finalbody
                if isinstance(statement, ast.Delete)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
        elif isinstance(child, ast.Raise):
            raised = child.exc
            if isinstance(raised, ast.Attribute) or (
                isinstance(raised, ast.Name) and raised.id.islower() and raised.id not in allowed
            ):
                lines.append(child.lineno)
        elif (
            isinstance(child, ast.Assign | ast.AnnAssign)
            and isinstance(child.value, ast.Name)
            and child.value.id in allowed
        ):
            lines.append(child.lineno)
        lines += _kept_errors(child, inside)
    return lines
