"""The schemas of the document: made from the types that the answers and bodies have, each once and by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

Schema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]
PLACE: Final = "#/components/schemas/"


def fields(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """The schema of an object with these fields, and maybe others."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _names(schema: object) -> set[str]:
    return set(re.findall(rf'"{PLACE}(\w+)"', json.dumps(schema)))


class _Untitled(GenerateJsonSchema):
    """Without a title for each field, which would only say its name again."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # noqa: ARG002 - as pydantic calls it
        """Never."""
        return False


class Schemas:
    """The schemas that were asked for, by name. `shown` has the fields of a type that are shown otherwise than they are kept."""

    def __init__(self, shown: Mapping[str, Mapping[str, Schema]] | None = None) -> None:
        self.named: dict[str, Schema] = {}
        self._shown = shown or {}

    def body(self, kind: Any) -> Schema:
        """What is sent: the place of its schema."""
        return self._of(kind, kind.__name__, "validation")

    def described(self, kind: Any) -> Schema:
        """The schema itself of what is sent."""
        self.body(kind)
        return self.named[str(kind.__name__)]

    def answer(self, kind: Any, name: str | None = None) -> Schema:
        """What is answered: the place of its schema."""
        return self._of(kind, name or kind.__name__, "serialization")

    def add(self, name: str, schema: Schema) -> Schema:
        """A schema that no type says: its place. A name stands for one schema."""
        if self.named.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas are called {name}")
        return {"$ref": PLACE + name}

    def used(self, elsewhere: object) -> dict[str, Schema]:
        """Those that `elsewhere`, or one that it uses, names: by name, in order."""
        wanted = set[str]()
        todo = _names(elsewhere)
        while todo - wanted:
            wanted |= todo
            todo = _names([self.named[name] for name in wanted])
        return {name: self.named[name] for name in sorted(wanted)}

    def _of(self, kind: Any, name: str, mode: Mode) -> Schema:
        if name not in self.named:
            schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=PLACE + "{model}", schema_generator=_Untitled)
            for inner, described in schema.pop("$defs", {}).items():
                self.add(inner, self._as_shown(inner, described))
            self.named[name] = self._as_shown(name, schema)
        return {"$ref": PLACE + name}

    def _as_shown(self, name: str, schema: Schema) -> Schema:
        schema.pop("title", None)
        if name in self._shown:
            schema["properties"] = {**schema["properties"], **self._shown[name]}
            schema["required"] = list(schema["properties"])
        return schema
