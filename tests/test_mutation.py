"""The tool that draws defects."""

from __future__ import annotations

from pathlib import Path

from tests import mutation
from tests.support.repository import ROOT

MODULE = """\
def held(count: int, limit: int = 10) -> bool:
    '''Two lines,\n    in two languages: ä.'''
    log(f"{count + 1}")
    self.count += count - limit
    return not (count < limit and 'ä' in names)
"""


def test_each_kind_of_defect_is_valid_python(tmp_path: Path) -> None:
    """A defect replaces exactly its own part of a module."""
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    source = path.read_bytes()
    drawn = list(mutation.mutants(path))
    assert [(mutant.kind, mutant.after) for mutant in drawn] == [
        ("off by one", "11"),
        ("removed call", "pass"),
        ("dropped statement", "pass"),
        ("swapped operands", "(limit - count)"),
        ("dropped not", "(count < limit and 'ä' in names)"),
        ("changed operator", "(count < limit or 'ä' in names)"),
        ("changed comparison", "(count <= limit)"),
        ("changed comparison", "('ä' not in names)"),
    ]
    for mutant in drawn:
        replaced = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
        compile(replaced, str(path), "exec")


def test_tests_named_for_a_module_run_first() -> None:
    """The rest of its package's tests follow, and a source has only its own."""
    path = ROOT / "forwarder" / "sources" / "http" / "connection.py"
    assert mutation.tests_of(path) == [
        "tests/sources/http/test_connection.py",
        "tests/sources/http",
    ]
