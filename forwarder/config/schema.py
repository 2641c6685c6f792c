"""The JSON Schema (draft 2020-12) of the configuration file, for editors and for checks outside of forwarder.

Made from the settings: one object a section, closed, and an array of them a list; each key with its description and its default as it is
written in YAML. Beside its own values each key may be null (not set) or a reference to the environment.
"""

from __future__ import annotations

from typing import Any, Final

from forwarder.config.keys import FIRST, Path, keys, lists, sections, short_forms
from forwarder.config.settings import Settings

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = {
    "description": "A value from the environment: ${VAR} or ${VAR:-default}.",
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^${}]*)?\}",
}


def json_schema() -> dict[str, Any]:
    """The schema of the whole file."""
    generated = Settings.model_json_schema()
    models = generated.pop("$defs")
    whole = _section(generated, models, ())
    return {"$schema": DIALECT, "title": "forwarder", **whole, "$defs": {"reference": _REFERENCE}}


def _section(model: dict[str, Any], models: dict[str, Any], path: Path) -> dict[str, Any]:
    properties = {name: _property(found, models, (*path, name)) for name, found in model["properties"].items()}
    description = sections().get(path, model.get("description", ""))
    types = ["object", "null", *(["string"] if path in short_forms() else [])]
    return {"description": description, "type": types, "additionalProperties": False, "properties": properties}


def _property(found: dict[str, Any], models: dict[str, Any], path: Path) -> dict[str, Any]:
    resolved = _resolved(found, models)
    if path in sections():
        return _section(resolved, models, path)
    if path in lists():
        alternatives = [{"type": "array", "items": _section(resolved["items"], models, (*path, FIRST))}]
    else:
        values = resolved.get("anyOf") or [{name: value for name, value in resolved.items() if name not in {"default", "description"}}]
        alternatives = [value for value in values if value != {"type": "null"}]
    key = keys()[path]
    anything_else = [{"$ref": "#/$defs/reference"}, {"type": "null"}]
    return {"description": key.description, "default": key.default, "anyOf": [*alternatives, *anything_else]}


def _resolved(found: Any, models: dict[str, Any]) -> Any:
    """`found` with pydantic's references to other models replaced by those, without the titles that it makes up."""
    if isinstance(found, list):
        return [_resolved(item, models) for item in found]
    if not isinstance(found, dict):
        return found
    if "$ref" in found:
        return _resolved(models[found["$ref"].removeprefix("#/$defs/")], models)
    return {name: _resolved(value, models) for name, value in found.items() if name != "title" or not isinstance(value, str)}
