"""What is wrong with rules is said at the start, with the key and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.section import keys_of
from forwarder.config.source_settings import (
    HashSettings,
    KafkaSettings,
    MappingSettings,
    TimestampSettings,
)
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.mappings import kafka_mapping, mapping_of, rules_of
from forwarder.mapping import HashRule, MappingRules, TimestampRule
from tests.mapping.mapped import mapping
from tests.support.cases import cases

KEY = "sources.kafka[0].mapping"


@cases(
    ("rules", "key", "problem", "hint"),
    [
        ({"event": ""}, "event", "is missing", "signed up"),
        ({"event": "signup"}, "event", "signup/0 is not defined", """'"signup"'"""),
        ({"event": "signed up"}, "event", "jq can't compile", '.["signed up"]'),
        ({"event": ".a ."}, "event", "jq can't compile", "mapping try"),
        ({"event": "1) | (2"}, "event", "jq can't compile", "mapping try"),
        ({"event": "def f: 1;"}, "event", "Top-level program not given", "mapping try"),
        ({"event": 'include "x"; .a'}, "event", "include can't be used", "a field"),
        ({"event": "# nothing"}, "event", "jq can't compile", "mapping try"),
        ({"event": ".user.$id"}, "event", "jq can't compile", "mapping try"),
        ({"where": "level == 1"}, "where", "level/0 is not defined", "mapping try"),
        ({"distinct_id": ".a |"}, "distinct_id", "jq can't compile", "mapping try"),
        ({"timestamp": TimestampRule("created")}, "timestamp", "created/0", ".created"),
        (
            {"timestamp": TimestampRule(".a", "soon")},
            "timestamp.format",
            "'soon' is no format",
            "unix_ms",
        ),
        (
            {"timestamp": TimestampRule(".a", zone="Nowhere")},
            "timestamp.zone",
            "'Nowhere' is no zone",
            "Europe/Berlin",
        ),
        ({"uuid": "$x"}, "uuid", "$x is not defined", '.["$x"]'),
        ({"properties": {"a b": "b c"}}, "properties.a b", "jq can't compile", '.["b c"]'),
        ({"set": {"p": "plan"}}, "set.p", "plan/0", ".plan"),
        ({"groups": "{"}, "groups", "jq can't compile", "mapping try"),
        ({"drop": ("email",)}, "drop", "'email' is no path", "Did you mean .email? Paths"),
        ({"drop": (".",)}, "drop", "'.' is the whole record", ".user.email"),
        ({"drop": (".a", ".b | .c")}, "drop", "'.b | .c' is no path", ".user.email"),
        ({"drop": ("..",)}, "drop", "'..' is no path", ".user.email"),
    ],
)
def test_a_rule_that_cant_be_used(rules: dict[str, Any], key: str, problem: str, hint: str) -> None:
    """The key of the rule, what is wrong with it in few words, and how to repair it."""
    with pytest.raises(ConfigurationError) as caught:
        mapping(**rules)
    assert caught.value.message.startswith(f"{KEY}.{key}: ")
    assert problem in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


@cases("content", [None, b"", b" \n"])
def test_a_salt_that_isnt_there(tmp_path: Path, content: bytes | None) -> None:
    """A hash without a key could be guessed."""
    file = tmp_path / "salt"
    if content is not None:
        file.write_bytes(content)
    for salt_file in (file, Path("a\0b"), tmp_path):
        with pytest.raises(
            ConfigurationError, match=r"^sources\.kafka\[0\]\.mapping\.hash\.salt_file: "
        ) as caught:
            mapping(hash=HashRule((".a",), salt_file))
        assert "openssl" in caught.value.hint


def test_a_field_to_hash_that_is_no_path(tmp_path: Path) -> None:
    """The key is that of the field."""
    (tmp_path / "salt").write_bytes(b"x")
    with pytest.raises(ConfigurationError, match=r"mapping\.hash\.field: 'email' is no path"):
        mapping(hash=HashRule(("email",), tmp_path / "salt"))


def test_settings_are_rules() -> None:
    """Every field of the section has its rule."""
    settings = MappingSettings.parse(
        {
            "where": ".w",
            "event": ".e",
            "distinct_id": ".d",
            "timestamp": {"from": ".t", "format": "unix", "zone": "+01:00"},
            "uuid": ".u",
            "properties": {"a": ".b"},
            "set": ".s",
            "set_once": {"o": ".o"},
            "groups": ".g",
            "drop": [".x"],
            "hash": {"field": [".h"], "salt_file": "/salt"},
        }
    )
    assert rules_of(settings, "mapping") == MappingRules(
        event=".e",
        where=".w",
        distinct_id=".d",
        timestamp=TimestampRule(".t", "unix", "+01:00"),
        uuid=".u",
        properties={"a": ".b"},
        set=".s",
        set_once={"o": ".o"},
        groups=".g",
        drop=(".x",),
        hash=HashRule((".h",), Path("/salt")),
    )
    assert set(keys_of(MappingSettings)) == set(MappingRules.__dataclass_fields__)


def test_what_isnt_set_is_no_rule() -> None:
    """A timestamp that is only an expression is ISO 8601, and UTC where it says nothing else."""
    assert rules_of(MappingSettings(event=".e"), "mapping") == MappingRules(event=".e")
    settings = MappingSettings(event=".e", timestamp=TimestampSettings.parse({"from": ".t"}))
    assert rules_of(settings, "mapping").timestamp == TimestampRule(".t", "iso", "UTC")


@cases(
    ("settings", "key"),
    [
        (MappingSettings(event=".e", timestamp=TimestampSettings(format="unix")), "timestamp.from"),
        (MappingSettings(event=".e", hash=HashSettings(field=(".a",))), "hash.salt_file"),
        (MappingSettings(event=".e", hash=HashSettings(salt_file=Path("/salt"))), "hash.field"),
        (MappingSettings(), "event"),
    ],
)
def test_half_a_rule(settings: MappingSettings, key: str) -> None:
    """A rule of which a part is missing isn't passed over: fields would go
    out that were to be hashed.
    """
    with pytest.raises(ConfigurationError, match="^" + re.escape(f"{KEY}.{key}: is missing")):
        mapping_of(settings, "kafka", KEY)


def test_the_mapping_of_a_cluster() -> None:
    """Natural keys belong to the cluster of that name; one whose records are events has no
    mapping; NaN is null.
    """
    cluster = KafkaSettings(
        name="orders", format="json", mapping=MappingSettings(event='"e"', uuid=".id")
    )
    mapping = kafka_mapping(cluster, 3)
    other = kafka_mapping(replace(cluster, name="others"), 3)
    assert mapping is not None
    assert other is not None
    assert mapping.map(b'{"id":"1"}') != other.map(b'{"id":"1"}')
    assert mapping.map(b'{"a":NaN}') == b'{"event":"e","properties":{"a":null}}'
    assert kafka_mapping(KafkaSettings(), 0) is None
    with pytest.raises(ConfigurationError, match=r"^sources\.kafka\[3\]\.mapping\.event: "):
        kafka_mapping(replace(cluster, mapping=MappingSettings(event="x")), 3)
