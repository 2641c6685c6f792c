"""What a flag or a cohort from a person may have: what the service accepts when one is written
(PostHog/posthog, products/feature_flags/backend/api/filters_schema.py at 2d8dc36821ca). A stored
one is read with less care.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forwarder.contract.flag_form import COHORT, FLAG, find_unknown_member
from forwarder.sandbox.flags.definitions import CONDITION_TYPES, InvalidDefinition
from forwarder.sandbox.flags.stored import DefinitionKind

_FORMS = {DefinitionKind.FLAG: FLAG, DefinitionKind.COHORT: COHORT}


def reject_unknown_members(kind: DefinitionKind, content: object) -> None:
    """Raise `InvalidDefinition` for a member that the form of its kind doesn't have: a test that
    misspells one would pass. Other kinds than flags and cohorts may have any.
    """
    form = _FORMS.get(kind)
    unknown = None if form is None else find_unknown_member(content, form)
    if unknown is not None:
        raise InvalidDefinition(unknown.path, f"there is no such member, {unknown.hint}")
    if kind is DefinitionKind.FLAG and isinstance(content, dict):
        filters = content.get("filters")
        _reject_wrong_values(filters if isinstance(filters, dict) else {})


def _reject_wrong_values(filters: Mapping[str, Any]) -> None:
    """Raise `InvalidDefinition` for a type of conditions that there is not, and for a payload that
    no SDK can read. What has another form altogether is left to `definitions`.
    """
    for at, group in _objects(filters.get("groups")):
        for number, condition in _objects(group.get("properties")):
            kind = condition.get("type")
            if kind is not None and kind not in CONDITION_TYPES:
                path = f"filters.groups[{at}].properties[{number}].type"
                raise InvalidDefinition(path, f"must be one of {', '.join(CONDITION_TYPES)}")
    payloads = filters.get("payloads")
    for variant, payload in payloads.items() if isinstance(payloads, dict) else ():
        if isinstance(payload, str) and not _is_json(payload):
            path = f"filters.payloads.{variant}"
            raise InvalidDefinition(path, "must be JSON: a text has quotation marks in it")


def _objects(value: object) -> list[tuple[int, dict[str, Any]]]:
    entries = enumerate(value if isinstance(value, list) else ())
    return [(at, item) for at, item in entries if isinstance(item, dict)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
