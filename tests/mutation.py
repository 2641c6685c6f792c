"""Draws defects from the code and says for each which quick test of its package finds it:
`python -m tests.mutation`. One seed draws the same defects as long as the code is the same.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.repository import NOT_OURS, ROOT, files, name

PACKAGES: Final = ("intake", "delivery", "buffer", "sources", "rules")
EACH: Final = 12
"""Defects of a package."""
LIMIT: Final = 200
"""Seconds of CPU for one defect: on a busy machine they may take long."""
HANGS: Final = 180
"""Seconds after which a test is taken to hang. Pytest ends without a summary then."""
NOT_FOUND: Final = "(not found)"
_SWAPS: Final[dict[type, Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.And: ast.Or,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Defect(NamedTuple):
    """A defect: what replaces a part of a module, which is named by its offsets in bytes."""

    path: Path
    kind: str
    line: int
    start: int
    end: int
    before: str
    after: str


def mutants(path: Path) -> Iterator[Defect]:
    """Every defect that a module can have."""
    source = path.read_bytes()
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in _walk(ast.parse(source)):
        for kind, after in _changes(node):
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            yield Defect(path, kind, node.lineno, start, end, ast.unparse(node), after)


def _walk(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What runs, without parts of f-strings, whose offsets are wrong before Python 3.12."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.expr | ast.stmt):
                    yield child
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from _walk(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(left, [operator], [right]):
            compared = ast.Compare(left, [_SWAPS[type(operator)]()], [right])
            yield "changed comparison", f"({ast.unparse(compared)})"
        case ast.BoolOp(operator, values):
            swapped = ast.BoolOp(_SWAPS[type(operator)](), values)
            yield "changed operator", f"({ast.unparse(swapped)})"
        case ast.BinOp(ast.Name() | ast.Attribute() | ast.Call() as left, operator, right):
            if isinstance(operator, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
                yield "swapped operands", f"({ast.unparse(ast.BinOp(right, operator, left))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "dropped not", f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield "changed constant", repr(not value)
        case ast.Constant(int() as value):
            yield "off by one", f"{value + 1}"
        case ast.Expr(ast.Call() | ast.Await()):
            yield "removed call", "pass"
        case ast.AugAssign() | ast.Assign([ast.Attribute()]):
            yield "dropped statement", "pass"


def draw(package: str, seed: int) -> list[Defect]:
    """Defects of a package, of all kinds alike."""
    kinds: defaultdict[str, list[Defect]] = defaultdict(list)
    for path in files(".py", f"forwarder/{package}"):
        for mutant in mutants(path):
            kinds[mutant.kind].append(mutant)
    chance = random.Random(f"{seed} {package}")
    drawn: dict[Defect, None] = {}
    while len(drawn) < EACH:
        drawn[chance.choice(kinds[chance.choice(sorted(kinds))])] = None
    return list(drawn)


def tests_of(path: Path) -> list[str]:
    """The tests that concern a module, those named for it first."""
    package, *parts = path.relative_to(ROOT / "forwarder").parts
    folder = ROOT / "tests" / package / (parts[0] if package == "sources" else "")
    if not folder.is_dir():
        return [f"tests/{package}/test_{path.stem}.py"]
    also = ["tests/intake/test_rules.py", "tests/intake/test_gate.py"] * (package == "rules")
    return [*map(name, sorted(folder.rglob(f"test_{path.stem}*.py"))), name(folder), *also]


def run(tree: Path, mutant: Defect) -> str:
    """The test that finds a defect in a copy of the repository, or a word in brackets."""
    module = tree / mutant.path.relative_to(ROOT)
    source = module.read_bytes()
    module.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    try:
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-xq", "-m", "not slow", "--hypothesis-profile=quick",
             "-o", f"timeout={HANGS}", "-p", "no:cacheprovider", "--tb=no", *tests_of(mutant.path)],
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", "CI": "true"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT)),
            cwd=tree, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    finally:
        module.write_bytes(source)
    failed = _FAILED.search(tests.stdout)
    return NOT_FOUND if tests.returncode == 0 else failed[1] if failed else "(hangs)"


def main() -> None:
    """Print a line for each defect, and how many are found."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--packages", choices=PACKAGES, nargs="+", default=PACKAGES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_OURS))
        for package in options.packages:
            outcomes = []
            for mutant in draw(package, options.seed):
                outcomes.append(run(tree, mutant))
                change = f"{mutant.kind}\t{mutant.before[:80]!r} -> {mutant.after[:80]!r}"
                print(f"{name(mutant.path)}:{mutant.line}\t{change}\t{outcomes[-1]}", flush=True)
            print(f"{package}: {EACH - outcomes.count(NOT_FOUND)} of {EACH} found", flush=True)


if __name__ == "__main__":
    main()
