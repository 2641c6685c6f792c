"""What schemathesis gets beside its own checks, in its own process: a check of empty bodies, a
list of answers, better bodies.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response

from tests.support.management import TOKEN

ANSWERED = "ANSWERED"
"""The variable that names the file to which each operation's id and status are written."""


@schemathesis.check
def a_body_only_where_described(
    _context: CheckContext, response: Response, case: Case[Any]
) -> None:
    """Fail an answer that has a body, or says what kind of body it has, where the document has
    none; list it in any case.
    """
    if case.method != case.operation.method.upper():
        return  # a method that the path doesn't have, and the document neither
    name = case.operation.definition.raw["operationId"]
    with Path(os.environ[ANSWERED]).open("a") as answered:
        answered.write(f"{name} {response.status_code}\n")
    described = case.operation.definition.raw["responses"].get(str(response.status_code), {})
    if "content" not in described:
        assert not response.content, f"a body where none is described: {response.content[:100]!r}"
        assert "content-type" not in response.headers, "a content type without a body"


@schemathesis.hook
def before_call(_context: HookContext, case: Case[Any], _options: dict[str, Any]) -> None:
    """Put in what a schema can't say: most keys are a project's, most names and addresses good;
    JSON isn't called compressed.
    """
    if isinstance(case.body, dict):
        case.query.pop("compression", None)
        word = hashlib.sha256(repr(case.body).encode(errors="replace")).hexdigest()[:12]
        likely = {
            "api_key": TOKEN,
            "distinct_id": word,
            "domain": f"{word}.example.net",
            "target_email": f"{word}@example.net",
        }
        case.body = {
            name: likely.get(name, value) if _is_chosen(value) else value
            for name, value in case.body.items()
        }


def _is_chosen(value: Any) -> bool:
    return isinstance(value, str) and len(value) % 8 < 7
