"""The JSON Schema of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from forwarder.config.display import DIALECT, json_schema
from forwarder.config.keys import FIRST, keys, sections

EXAMPLES = Path(__file__).parents[2] / "config"


def errors(document: Any) -> list[str]:
    """Where the schema finds fault with a document."""
    return [error.json_path for error in Draft202012Validator(json_schema()).iter_errors(document)]


def objects(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every object of the schema."""
    if "properties" in schema:
        yield path, schema
        for name, inner in schema["properties"].items():
            yield from objects(inner, (*path, name))
            for alternative in inner.get("anyOf", []):
                yield from objects(alternative.get("items", {}), (*path, name, FIRST))


def test_is_a_valid_schema() -> None:
    """Draft 2020-12, by that draft's own schema."""
    Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$schema"] == DIALECT


def test_has_every_section_closed_and_every_key_described() -> None:
    """Keys that don't exist are errors for an editor too; each key has its meaning and its default."""
    found = dict(objects(json_schema()))
    assert set(found) == {(), *sections()}
    assert all(schema["additionalProperties"] is False for schema in found.values())
    for path, key in keys().items():
        leaf = found[path[:-1]]["properties"][path[-1]]
        assert (leaf["description"], leaf["default"]) == (key.description, key.default)


@pytest.mark.parametrize("file", sorted(set(EXAMPLES.glob("*.yaml")) - {EXAMPLES / "sandbox-seed.yaml"}), ids=lambda file: file.name)
def test_the_examples_are_valid(file: Path) -> None:
    """What we give as an example an editor must not find fault with."""
    assert errors(yaml.safe_load(file.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"upstream": None, "log": {"level": None}},
        {"upstream": {"url": "${URL}", "timeout": "${T:-5s}", "max_body": 1_000_000, "verify_keys": "${VERIFY}"}},
        {"sources": {"http": {"api_keys": "a,b", "trusted_proxies": ["10.0.0.0/8"], "max_lanes": 5}}},
        {"delivery": {"concurrency": 5, "ordering": "strict", "retry": {"give_up_after": "never"}}},
        {"buffer": {"kind": "disk", "path": "/srv/x", "max_bytes": None, "ack": "delivered", "when_full": "drop_oldest"}, "workers": 4},
        {"sources": {"kafka": [{"name": "a", "bootstrap_servers": "h:1,i:2", "topics": ["t"], "halt_after": "never"}, {}, None]}},
        {"sources": {"kafka": "${CLUSTERS}"}},
        {"sources": {"kafka": [{"security": {"protocol": "sasl_SSL", "mechanism": "scram-sha-512", "password": "${PASSWORD}"}}]}},
        {"sources": {"kafka": [{"mapping": {"properties": {"a b": ".a", "n": None}, "set": "{plan}", "timestamp": ".at"}}]}},
        {"sources": {"kafka": [{"mapping": {"timestamp": {"from": ".at", "zone": "UTC"}, "hash": {"field": ".a"}, "drop": [".b"]}}]}},
        {"batch": {"max_age": 0, "max_bytes": "1.5 mib"}},
    ],
)
def test_takes_what_forwarder_takes(document: Any) -> None:
    """Each way of writing a value, references and empty keys too."""
    assert errors(document) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"upsteam": {}}, "$"),
        ({"upstream": {"timout": "1s"}}, "$.upstream"),
        ({"upstream": {"timeout": 30}}, "$.upstream.timeout"),
        ({"upstream": {"timeout": "never"}}, "$.upstream.timeout"),
        ({"upstream": {"max_body": "20M"}}, "$.upstream.max_body"),
        ({"delivery": {"concurrency": 0}}, "$.delivery.concurrency"),
        ({"delivery": {"ordering": "sorted"}}, "$.delivery.ordering"),
        ({"buffer": {"ack": "fsync"}}, "$.buffer.ack"),
        ({"workers": 0}, "$.workers"),
        ({"sources": {"kafka": {"name": "a"}}}, "$.sources.kafka"),
        ({"sources": {"kafka": [{"topic": "a"}]}}, "$.sources.kafka"),
        ({"sources": {"kafka": [{"security": {"mechanism": "GSSAPI"}}]}}, "$.sources.kafka"),
        ({"sources": {"kafka": [{"mapping": {"set": {"a": 1}}}]}}, "$.sources.kafka"),
        ({"sources": {"http": {"cors_origins": [1]}}}, "$.sources.http.cors_origins"),
    ],
)
def test_refuses_what_forwarder_refuses(document: Any, path: str) -> None:
    """The common mistakes are found in the editor."""
    assert errors(document) == [path]
