"""docs/reference/log-lines.md has each line that the program logs: event, levels, fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from tests.support.repository import ROOT, name, trees

LEVELS: Final = {
    "exception": "error",
    **{level: level for level in ("debug", "info", "warning", "error")},
}
ROW: Final = re.compile(r"^\| `([^`]+)` \| ([a-z, ]+) \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE)
PAGE: Final = (ROOT / "docs" / "reference" / "log-lines.md").read_text("utf-8")


@dataclass
class LoggedKind:
    """Lines with one event: their levels, the fields that the calls name, and whether a call may
    add others.
    """

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    others: bool = False


@cache
def calls() -> list[tuple[str, ast.Call, str]]:
    """Each call of a logger of structlog: where it is, the call, its level."""
    log_calls: list[tuple[str, ast.Call, str]] = []
    for path, tree in trees("forwarder", "get_logger("):
        loggers = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and "get_logger(" in ast.unparse(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        log_calls += [
            (f"{name(path)}:{node.lineno}", node, node.func.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and getattr(node.func.value, "id", "") in loggers
        ]
    return log_calls


def logged() -> dict[str, LoggedKind]:
    """What the program logs, by event."""
    kinds: defaultdict[str, LoggedKind] = defaultdict(LoggedKind)
    for _, call, method in calls():
        kind = kinds[ast.literal_eval(call.args[0])]
        kind.levels.add(LEVELS[method])
        kind.fields |= {keyword.arg for keyword in call.keywords if keyword.arg} - {"exc_info"}
        kind.others |= any(keyword.arg is None for keyword in call.keywords)
    return dict(kinds)


def test_every_event_is_a_fixed_text() -> None:
    """What differs between lines of one kind is in fields; the text is no sentence: it has neither
    a capital nor a full stop.
    """
    assert len(calls()) > 100
    wrong = [
        where
        for where, call, method in calls()
        if method not in LEVELS
        or len(call.args) != 1
        or not isinstance(call.args[0], ast.Constant)
        or not re.fullmatch(r"[a-z][^{}%A-Z]*[^.{}%]", str(call.args[0].value))
    ]
    assert wrong == []


def test_the_page_has_every_line() -> None:
    """With its levels and its fields, what to do, and no other."""
    rows = {
        event: (set(levels.split(", ")), set(re.findall(r"`(\w+)`", fields)))
        for event, levels, fields, _ in ROW.findall(PAGE)
    }
    assert len(rows) == len(ROW.findall(PAGE))
    assert rows.keys() == logged().keys()
    for event, kind in logged().items():
        levels, fields = rows[event]
        assert levels == kind.levels, event
        assert fields >= kind.fields, event
        assert fields == kind.fields or kind.others, event
