"""Values for documented fields: some that are accepted, and some that are not, by the type and the
rule of the row.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tests.contract.tables import FieldRow, fields, spans
from tests.support import management as seed

WRONG: Final[dict[str, list[Any]]] = {
    "string": [7, True, ["a"], {}],
    "UUID": [7, "x"],
    "time": [7, "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00"],
    "e-mail address": [
        7,
        "",
        "ann",
        "ann@",
        "@example.com",
        "ann@example",
        "a b@example.com",
        "ann@exa mple.com",
    ],
    "integer": ["7", 1.5, True, [1]],
    "boolean": ["true", 1, 0, []],
    "object": [7, "x", []],
    "JSON": [],
}
"""By type, whatever the rule is. JSON is never wrong."""
RIGHT: Final[dict[str, list[Any]]] = {
    "string": ["a text", "ä \u4e2d \U0001f600"],
    "time": ["2026-01-31T12:00:00Z"],
    "integer": [3],
    "boolean": [True, False],
    "JSON": [{"a": [1, None, {"b": "c"}]}, ["x"], "text", 1.5, True, None],
}
ODD: Final[dict[str, list[Any]]] = {
    "domain": [
        "a",
        "-a.example.com",
        "exa_mple.com",
        "a..example.com",
        "a.example.com/",
        ".".join(["a" * 64, "com"]),
    ],
    "timezone": ["Nowhere/At_All", ""],
    "primary_dashboard": [seed.UNKNOWN_NUMBER],
    "private_project_access": [
        *(
            [{"id": project, "level": "member"}]
            for project in (seed.UNKNOWN_NUMBER, seed.OTHER_PROJECT)
        ),
        *([{"id": seed.PROJECT, "level": level}] for level in (1, "owner", None)),
        [{"id": seed.PROJECT}],
        {"id": seed.PROJECT, "level": "member"},
    ],
    "destination": [
        {},
        {"config": {}},
        {"type": ""},
        {"type": 7, "config": {}},
        {"type": "x" * 65},
        "S3",
    ],
}
"""What is wrong by what a row says in words."""
FITTING: Final[dict[str, list[Any]]] = {
    "domain": ["sub.example.net"],
    "timezone": ["Europe/Berlin", "UTC"],
    "primary_dashboard": [1, None],
    "target_email": ["new@example.com"],
    "private_project_access": [
        None,
        [],
        [{"id": seed.PROJECT, "level": "admin"}, {"id": seed.SECOND_PROJECT, "level": "member"}],
    ],
    "destination": [
        {"type": "Postgres", "config": {"host": "db.example.com", "port": 5432}},
        {"type": "NoOp", "config": None},
    ],
    "end_at": ["2099-01-31T12:00:00Z"],
}
"""What is right, where the type isn't enough to tell."""


def right(field: FieldRow) -> list[Any]:
    """Values that the field takes, each as it is answered afterwards; the extremes of its rule
    among them.
    """
    if field.name in FITTING:
        return FITTING[field.name]
    none = [None] if field.null != "no" and field.type != "JSON" else []
    if field.rule.startswith("one of"):
        return [*_choices(field), *none]
    if field.rule.startswith("0 to 1 with"):
        return ["0", "0.5", "0.25", "1", "1.00"]
    if match := re.match(r"([\d,]+) to ([\d,]+)\b(?! characters|,)", field.rule):
        return [*map(_number, match.groups()), *none]
    if match := re.match(r"at most ([\d,]+) of at most ([\d,]+) characters", field.rule):
        return [[], ["a"], ["a" * _number(match[2])], ["a"] * _number(match[1])]
    longest = re.match(r"(?:1 to|at most) ([\d,]+) characters", field.rule)
    return [*RIGHT[field.type], *(["a" * _number(longest[1])] if longest else []), *none]


def wrong(field: FieldRow) -> list[Any]:
    """Values that the field doesn't take."""
    values = [*WRONG.get(field.type, []), *ODD.get(field.name, [])]
    if field.null == "no":
        values.append(None)
    if field.rule.startswith("one of"):
        choices = _choices(field)
        values += (
            [str(choices[0]), max(choices) + 1]
            if isinstance(choices[0], int)
            else ["x", "", choices[0].swapcase()]
        )
    if field.rule.startswith("0 to 1 with"):
        values += ["", "2", "1.01", "-0.1", "0.123", ".5", "1e-1", "\u0660"]
    elif match := re.match(r"([\d,]+) to ([\d,]+)\b(?! characters|,)", field.rule):
        values += [_number(match[1]) - 1, _number(match[2]) + 1]
    if field.type.startswith("list of string"):
        longest = re.match(r"at most ([\d,]+) of at most ([\d,]+) characters", field.rule)
        assert longest, field
        values += [
            "a",
            {},
            [7],
            [None],
            ["a" * (_number(longest[2]) + 1)],
            ["a"] * (_number(longest[1]) + 1),
        ]
    elif longest := re.match(r"(1 to|at most) ([\d,]+) characters", field.rule):
        values.append("a" * (_number(longest[2]) + 1))
        values += [""] if longest[1] == "1 to" else []
    if "not blank" in field.rule:
        values.append(" \t")
    return values


def _choices(field: FieldRow) -> list[Any]:
    listed = spans(field.rule.partition(";")[0])
    return [int(choice) for choice in listed] if field.type == "integer" else list(listed)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def read_only(heading: str, operation: str) -> dict[str, Any]:
    """Values for every field of a resource that an operation doesn't accept,
    none of which is anything's.
    """
    others = (field for field in fields(heading) if operation not in field.written_by)
    return {field.name: _STRANGE.get(field.type, "strange") for field in others}


_STRANGE: Final[dict[str, Any]] = {
    "UUID": seed.UNKNOWN,
    "time": "1999-12-31T23:59:59Z",
    "integer": seed.UNKNOWN_NUMBER,
    "boolean": "neither",
    "User": {"id": seed.UNKNOWN_NUMBER},
    "JSON": {"strange": True},
}
