"""The schema of the chart's values: forwarder's own for what is configuration, and by hand for
what is the chart's.

.venv/bin/python -m tests.support.chart_schema      writes deploy/helm/forwarder/values.schema.json
again
"""

from __future__ import annotations

import json
from typing import Any, Final

from forwarder.config.display import json_schema
from tests.support.repository import ROOT

FILE: Final = ROOT / "deploy/helm/forwarder/values.schema.json"
_LEFT_OUT: Final = {"$schema", "$defs", "title", "description", "default", "format"}
"""What editors need, and helm doesn't."""


def current() -> str:
    """The file as it should be: what is written in it by hand, with forwarder's
    present settings.
    """
    schema = json.loads(FILE.read_text())
    configuration = json_schema()
    schema["definitions"]["reference"] = _plain(configuration["$defs"]["reference"])
    schema["definitions"]["configuration"] = _plain(configuration)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _plain(schema: Any) -> Any:
    """A schema without what only editors need; names of properties stay, whatever they are."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema.replace("#/$defs/", "#/definitions/") if isinstance(schema, str) else schema
    return {
        name: {key: _plain(subschema) for key, subschema in value.items()}
        if name == "properties"
        else _plain(value)
        for name, value in schema.items()
        if name not in _LEFT_OUT
    }


if __name__ == "__main__":
    FILE.write_text(current())
