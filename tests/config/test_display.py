"""The configuration as it is shown: what is in effect, and the schema of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from forwarder.config.display import DIALECT, as_json, as_yaml, effective, inline, json_schema
from forwarder.config.keys import FIRST, dotted, keys, leaves, sections
from forwarder.config.layers import DEFAULT
from forwarder.config.load import Loaded, load_settings
from forwarder.config.settings import Settings
from tests.support.cases import cases
from tests.support.certificates import make_certificate

KEY = "phc_0123456789abcdefSECRETlast"
OWN = {key.name for key in keys().values() if FIRST not in key.path}
"""The keys that are there without any item in a list."""
CLUSTER = {
    "bootstrap_servers": ["a:9092", "b:9092"],
    "topics": ["events"],
    "api_key_header": "project",
    "format": "json",
    "mapping": {
        "event": '"signed up"',
        "timestamp": {"from": ".at", "format": "%d/%b/%Y:%H:%M:%S %z"},
        "properties": {"odd: name": ".a # b", "[x]": "{}"},
        "set": "{plan: .p}",
        "drop": [".a,b"],
    },
    "halt_after": "never",
}


def loaded(folder: Path) -> Loaded:
    """Settings from all three places, with secrets."""
    file = folder / "forwarder.yaml"
    file.write_text("upstream:\n  timeout: 90s\n  proxy: http://user:hunter2@proxy:3128\n")
    environ = {
        "FORWARDER_UPSTREAM__URL": "https://h.example.com",
        "FORWARDER_SOURCES__HTTP__API_KEYS": f"{KEY},short",
    }
    return load_settings(file, environ)


def test_yaml_shows_each_value_and_where_it_came_from(tmp_path: Path) -> None:
    """One line a key, the origin behind it."""
    lines = [line.split() for line in as_yaml(loaded(tmp_path)).splitlines()]
    assert ["timeout:", "90s", "#", f"{tmp_path}/forwarder.yaml:2"] in lines
    assert ["url:", "https://h.example.com", "#", "FORWARDER_UPSTREAM__URL"] in lines
    assert ["max_events:", "5000", "#", "default"] in lines
    assert sum("#" in line for line in lines) == len(OWN)


def test_the_yaml_can_be_read_again(tmp_path: Path) -> None:
    """Apart from the secrets it is a configuration with the same effect."""
    sources = {
        "http": {"listen": "[::1]:8320", "trusted_proxies": ["10.0.0.0/8"]},
        "kafka": [CLUSTER, {**CLUSTER, "name": "other"}],
    }
    settings = Settings.parse({"upstream": {"url": "https://h"}, "sources": sources})
    file = tmp_path / "shown.yaml"
    origins = {dotted(path): DEFAULT for path, _ in leaves(settings.as_document())}
    file.write_text(as_yaml(Loaded(settings, origins, None)))
    assert effective(load_settings(file, {}).settings) == effective(settings)


def test_keys_that_are_not_set_show_what_they_amount_to(tmp_path: Path) -> None:
    """What the buffer's kind decides is shown decided, as a default."""
    for kind, limit, letters_limit in (("memory", "64MiB", "16MiB"), ("disk", "1GiB", "256MiB")):
        loaded = load_settings(
            None,
            {"FORWARDER_BUFFER__KIND": kind},
            default_file=tmp_path / "none",
            require_upstream=False,
        )
        shown = as_json(loaded)
        assert shown["settings"]["buffer"] == {
            "kind": kind,
            "path": "/var/lib/forwarder",
            "max_bytes": limit,
            "ack": kind,
            "ack_timeout": "5s",
            "when_full": "reject",
        }
        assert shown["settings"]["dead_letters"]["max_bytes"] == letters_limit
        assert shown["origins"]["buffer.max_bytes"] == shown["origins"]["buffer.ack"] == "default"


def test_json_holds_settings_origins_and_file(tmp_path: Path) -> None:
    """For programs: the same, as an object."""
    shown = as_json(loaded(tmp_path))
    assert shown["settings"]["upstream"]["timeout"] == "90s"
    assert shown["origins"]["batch.max_age"] == "default"
    assert shown["file"] == str(tmp_path / "forwarder.yaml")
    assert set(shown["origins"]) == OWN


def test_secrets_are_masked_in_both(tmp_path: Path) -> None:
    """Keys keep their last four characters, the proxy its host."""
    settings = loaded(tmp_path)
    for text in (as_yaml(settings), str(as_json(settings)), str(effective(settings.settings))):
        assert "hunter2" not in text
        assert "SECRET" not in text
        assert "short" not in text
        assert "phc_…last" in text
        assert "http://…@proxy:3128" in text


def test_items_of_lists_show_each_key_and_where_it_came_from(tmp_path: Path) -> None:
    """Each item has its dash, its keys with their defaults, and their origins."""
    file = tmp_path / "forwarder.yaml"
    file.write_text(
        "sources:\n  kafka:\n    - {bootstrap_servers: 'a:1', topics: x}\n    - name: two\n      "
        "bootstrap_servers: b:1\n"
    )
    authority = str(make_certificate(tmp_path).cert_file)
    environ = {
        "FORWARDER_SOURCES__KAFKA__1__TOPICS": "y",
        "FORWARDER_SOURCES__KAFKA__1__SECURITY__CA_FILE": authority,
    }
    environ |= {"FORWARDER_SOURCES__KAFKA__1__SECURITY__PROTOCOL": "ssl"}
    settings = load_settings(file, environ, require_upstream=False)
    lines = [line.split() for line in as_yaml(settings).splitlines()]
    assert ["kafka:", "#", f"{file}:2"] in lines
    assert ["-", "name:", "kafka", "#", "default"] in lines
    assert ["-", "name:", "two", "#", f"{file}:4"] in lines
    assert ["topics:", "[y]", "#", "FORWARDER_SOURCES__KAFKA__1__TOPICS"] in lines
    assert ["protocol:", "SSL", "#", "FORWARDER_SOURCES__KAFKA__1__SECURITY__PROTOCOL"] in lines
    origins = as_json(settings)["origins"]
    assert origins["sources.kafka[1].bootstrap_servers"] == f"{file}:5"
    assert origins["sources.kafka[0].security.ca_file"] == "default"
    assert len(origins) == len(OWN) + 2 * sum(
        path[:3] == ("sources", "kafka", FIRST) for path in keys()
    )


def test_a_list_that_the_environment_makes_is_shown_so(tmp_path: Path) -> None:
    """The whole list in one variable, or an item made key by key, has the variable as
    its origin.
    """
    for name, value in (
        ("", '[{"bootstrap_servers": "a:1", "topics": ["x"]}]'),
        ("__0__TOPICS", "x"),
    ):
        environ = {
            f"FORWARDER_SOURCES__KAFKA{name}": value,
            "FORWARDER_SOURCES__KAFKA__0__BOOTSTRAP_SERVERS": "b:1",
        }
        origins = load_settings(
            None, environ, default_file=tmp_path / "none", require_upstream=False
        ).origins
        assert str(origins["sources.kafka"]) == f"FORWARDER_SOURCES__KAFKA{name}"
        assert str(origins["sources.kafka[0].topics"]) == f"FORWARDER_SOURCES__KAFKA{name}"
        assert (
            str(origins["sources.kafka[0].bootstrap_servers"])
            == "FORWARDER_SOURCES__KAFKA__0__BOOTSTRAP_SERVERS"
        )


def test_secrets_of_items_are_masked(tmp_path: Path) -> None:
    """Of a password nothing is shown, whatever it looks like; of a key its last four characters,
    also if it comes from a file.
    """
    secret = tmp_path / "key"
    secret.write_text(KEY)
    security = {
        "protocol": "SASL_SSL",
        "mechanism": "PLAIN",
        "username": "u",
        "password": "http://hunter2hunter2",
    }
    clusters = [{**CLUSTER, "security": security, "api_key_file": str(secret)}]
    clusters.append({**CLUSTER, "name": "b", "api_key": KEY})
    client = {"token_url": "https://t", "client_id": "c", "client_secret": "hunter2hunter2"}
    security = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", **client}
    clusters.append({**CLUSTER, "name": "c", "security": security})
    environ = {"FORWARDER_SOURCES__KAFKA": json.dumps(clusters)}
    settings = load_settings(None, environ, default_file=tmp_path / "none", require_upstream=False)
    for text in (as_yaml(settings), str(as_json(settings)), repr(settings.settings)):
        assert "hunter2" not in text
        assert "SECRET" not in text
    assert [
        cluster["api_key"] for cluster in as_json(settings)["settings"]["sources"]["kafka"]
    ] == ["phc_…last", "phc_…last", None]


def test_what_may_be_in_flight_is_shown_as_it_amounts_to() -> None:
    """Where it isn't set, it follows from the buffer."""
    for given, shown in (
        ({}, "16MiB"),
        ({"buffer": {"kind": "disk"}}, "32MiB"),
        ({"workers": 4}, "4MiB"),
        ({"workers": 20}, "1MB"),
    ):
        settings = Settings.parse({"sources": {"kafka": [CLUSTER]}, **given})
        assert effective(settings)["sources"]["kafka"][0]["max_in_flight"] == shown
        logs = Settings.parse({"sources": {"logs": [{"stdin": True}]}, **given})
        assert effective(logs)["sources"]["logs"][0]["max_in_flight"] == shown


def test_values_stay_on_one_line() -> None:
    """Long lists are not folded, and text that looks like something else is quoted."""
    assert yaml.safe_load(inline(["x" * 80] * 5)) == ["x" * 80] * 5
    assert "\n" not in inline(["x" * 80] * 5)
    assert inline("null") == "'null'"
    assert inline(None) == "null"


EXAMPLES = Path(__file__).parents[2] / "config"


def errors(document: Any) -> list[str]:
    """Where the schema finds fault with a document."""
    return [error.json_path for error in Draft202012Validator(json_schema()).iter_errors(document)]


def objects(
    schema: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
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
    """Keys that don't exist are errors for an editor too; each key has its meaning and
    its default.
    """
    schemas = dict(objects(json_schema()))
    assert set(schemas) == {(), *sections()}
    assert all(schema["additionalProperties"] is False for schema in schemas.values())
    for path, key in keys().items():
        leaf = schemas[path[:-1]]["properties"][path[-1]]
        assert (leaf["description"], leaf["default"]) == (key.description, key.default)


@cases(
    "file",
    sorted(set(EXAMPLES.glob("*.yaml")) - {EXAMPLES / "sandbox-seed.yaml"}),
    ids=lambda file: file.name,
)
def test_the_examples_are_valid(file: Path) -> None:
    """What we give as an example an editor must not find fault with."""
    assert errors(yaml.safe_load(file.read_text("utf-8"))) == []


@cases(
    "document",
    [
        {},
        {"upstream": None, "log": {"level": None}},
        {
            "upstream": {
                "url": "${URL}",
                "timeout": "${T:-5s}",
                "max_body": 1_000_000,
                "verify_keys": "${VERIFY}",
            }
        },
        {
            "sources": {
                "http": {"api_keys": "a,b", "trusted_proxies": ["10.0.0.0/8"], "max_lanes": 5}
            }
        },
        {"delivery": {"concurrency": 5, "ordering": "strict", "retry": {"give_up_after": "never"}}},
        {
            "buffer": {
                "kind": "disk",
                "path": "/srv/x",
                "max_bytes": None,
                "ack": "delivered",
                "when_full": "drop_oldest",
            },
            "workers": 4,
        },
        {
            "sources": {
                "kafka": [
                    {
                        "name": "a",
                        "bootstrap_servers": "h:1,i:2",
                        "topics": ["t"],
                        "halt_after": "never",
                    },
                    {},
                    None,
                ]
            }
        },
        {"sources": {"kafka": "${CLUSTERS}"}},
        {
            "sources": {
                "kafka": [
                    {
                        "security": {
                            "protocol": "sasl_SSL",
                            "mechanism": "scram-sha-512",
                            "password": "${PASSWORD}",
                        }
                    }
                ]
            }
        },
        {
            "sources": {
                "kafka": [
                    {
                        "mapping": {
                            "properties": {"a b": ".a", "n": None},
                            "set": "{plan}",
                            "timestamp": ".at",
                        }
                    }
                ]
            }
        },
        {
            "sources": {
                "kafka": [
                    {
                        "mapping": {
                            "timestamp": {"from": ".at", "zone": "UTC"},
                            "hash": {"field": ".a"},
                            "drop": [".b"],
                        }
                    }
                ]
            }
        },
        {"batch": {"max_age": 0, "max_bytes": "1.5 mib"}},
    ],
)
def test_takes_what_forwarder_takes(document: Any) -> None:
    """Each way of writing a value, references and empty keys too."""
    assert errors(document) == []


@cases(
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
