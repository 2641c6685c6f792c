"""The configurations under which mutants are read. Each is built by `forwarder.daemon.pipeline`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from forwarder.config.settings import Settings

KEY: Final = "phc_differential_good_0001"
SHOP: Final = "phc_differential_shop_0002"
SHOP_EU: Final = "phc_differential_shop_eu_3"
OTHER: Final = "phc_differential_other_004"
KAFKA_KEY: Final = "phc_differential_kafka_005"
LOG_KEY: Final = "phc_differential_logs_0006"
OTLP_KEY: Final = "phc_differential_otlp_0007"

PLAIN: Final = "plain"
ORDERED: Final = "ordered"
RULED: Final = "rules"
ROUTED: Final = "routes"
EVERYTHING: Final = "everything"
KEYS: Final = "keys"
SMALL: Final = "small"
DROP_OLDEST: Final = "drop oldest"
DROP_NEWEST: Final = "drop newest"
DELIVERED: Final = "delivered"
HALTED: Final = "halted"
DRAINING: Final = "draining"
WEIGHTS: Final = {
    PLAIN: 18,
    ORDERED: 10,
    RULED: 12,
    ROUTED: 12,
    EVERYTHING: 10,
    KEYS: 6,
    SMALL: 8,
    DROP_OLDEST: 6,
    DROP_NEWEST: 6,
    DELIVERED: 10,
    HALTED: 5,
    DRAINING: 1,
}
"""How often each is drawn."""
FULL: Final = frozenset({SMALL, DROP_OLDEST, DROP_NEWEST, HALTED})
"""Those whose buffers keep what they got: what a mutant does depends on those before it."""

BUFFER_BYTES: Final = 14_000
LETTER_BYTES: Final = 12_000

_MAPPING: Final = {
    "where": '.type != "heartbeat"',
    "event": ".type",
    "distinct_id": ".user.id",
    "timestamp": {"from": ".at", "format": "unix_ms"},
    "properties": {"plan": ".account.plan", "amount": ".cents / 100"},
    "set": {"email": ".user.email"},
    "drop": [".user.password"],
}
_CLUSTER: Final = {"bootstrap_servers": ["127.0.0.1:9"], "topics": ["events"]}
CLUSTERS: Final[list[dict[str, Any]]] = [
    {**_CLUSTER, "name": "usual", "api_key": KAFKA_KEY},
    {
        **_CLUSTER,
        "name": "headers",
        "api_key": KAFKA_KEY,
        "api_key_header": "project",
        "key_is_distinct_id": True,
    },
    {
        **_CLUSTER,
        "name": "foreign",
        "format": "json",
        "api_key": KAFKA_KEY,
        "mapping": _MAPPING,
    },
    {**_CLUSTER, "name": "keyless"},
]
_WEB: Final = {
    "event": '"page viewed"',
    "distinct_id": ".remote_addr",
    "properties": {"path": ".path", "status": ".status"},
}
_MESSAGE: Final = {"event": '"logged"', "distinct_id": ".host", "properties": "."}
LOGS: Final[list[dict[str, Any]]] = [
    {
        "format": "json",
        "mapping": {"where": ".user != null", "event": ".type", "distinct_id": ".user"},
    },
    {
        "format": "logfmt",
        "mapping": {"event": ".event", "distinct_id": ".user", "uuid": ".request"},
    },
    {"format": "combined", "mapping": _WEB},
    {"format": "common", "mapping": _WEB},
    {"format": "syslog", "mapping": _MESSAGE},
    {
        "format": "cri",
        "message_format": "json",
        "mapping": {"event": ".message.type", "distinct_id": ".message.user"},
    },
    {
        "format": "regex",
        "pattern": r"^(?P<user>\S+) (?P<what>\w+) ?(?P<rest>.*)$",
        "mapping": {"event": ".what", "distinct_id": ".user", "properties": {"rest": ".rest"}},
    },
    {
        "format": "json",
        "multiline": {"start": r"^\{"},
        "max_line": "1kB",
        "mapping": {"event": ".type", "distinct_id": ".user"},
    },
]


@dataclass(frozen=True)
class Configuration:
    """Settings, and what a pipeline of them is made to be once it is built."""

    name: str
    settings: Settings

    @property
    def keeps(self) -> bool:
        """Whether its buffers keep what they got."""
        return self.name in FULL


def _base() -> dict[str, Any]:
    return {
        "upstream": {"url": "http://127.0.0.1:9", "verify_keys": False, "max_event": "2kB"},
        "sources": {
            "http": {
                "listen": "127.0.0.1:0",
                "max_body": "200kB",
                "otlp": {
                    "api_key": OTLP_KEY,
                    "mapping": {
                        "where": '.severity != "debug"',
                        "event": ".event_name",
                        "distinct_id": ".attributes.user",
                        "properties": {"body": ".body", "n": ".attributes.n"},
                    },
                },
            },
            "kafka": [CLUSTERS[0]],
            "logs": [
                {
                    "stdin": True,
                    "api_key": LOG_KEY,
                    "host": "web-1",
                    "mapping": {"event": ".type", "distinct_id": ".user"},
                }
            ],
        },
        "admin": {"listen": "127.0.0.1:0"},
        "buffer": {"max_bytes": "64MiB"},
        "dead_letters": {"max_bytes": "1GiB"},
    }


def _rules(folder: Path) -> list[dict[str, Any]]:
    salt = str(folder / "salt")
    return [
        {"name": "noise", "match": {"event": ["noise", "$auto*"]}, "drop": True},
        {"name": "half", "match": {"event": "sampled"}, "sample": 0.5},
        {"name": "listed", "match": {"distinct_id_file": str(folder / "ids")}, "drop": True},
        {
            "name": "expensive",
            "match": {"where": ".properties.n > 5 and .properties.plan != null"},
            "set": {".properties.expensive": True, ".properties.of.rules": [1, "é"]},
        },
        {"name": "secrets", "remove": [".properties.password", '.properties["$set"].secret']},
        {
            "name": "hashed",
            "hash": {
                "field": [".properties.email", '.properties["$set"].email'],
                "salt_file": salt,
            },
        },
        {
            "name": "strict",
            "match": {"where": '.properties.code | startswith("a")'},
            "remove": ".properties.code",
        },
        {
            "name": "lenient",
            "match": {"where": ".properties.n % 2 == 0", "source": ["http", "kafka"]},
            "set": {".properties.even": True},
            "on_error": "keep",
        },
        {
            "name": "shop",
            "match": {"api_key": [SHOP], "where": "(.properties.n // 0) * 2 > 3"},
            "set": {".properties.shop": None},
            "on_error": "dead_letter",
        },
        {"name": "renamed", "rename": {".properties.old": ".properties.new"}},
        {"name": "named", "rename_event": {"Signed Up": "user signed up"}},
    ]


def _destinations(*, second: dict[str, Any]) -> dict[str, Any]:
    common = {"url": "http://127.0.0.1:9", "verify_keys": False, "max_event": "2kB"}
    return {
        "upstreams": [
            {**common, "name": "us"},
            {**common, "name": "eu", **second},
        ],
        "routes": [
            {"match": {"api_key": SHOP}, "to": ["us", "eu"]},
            {"match": {"event": ["order*", "click"]}, "to": ["us", {"eu": {"sample": 0.5}}]},
            {"match": {"where": ".properties.n > 3"}, "to": ["eu"]},
            {"match": {"source": ["logs"], "event": "page*"}, "to": ["eu"]},
        ],
    }


def _sections(name: str, folder: Path) -> dict[str, Any]:
    base = _base()
    http = base["sources"]["http"]
    if name in (ORDERED, EVERYTHING):
        base["delivery"] = {"ordering": "per_distinct_id"}
    if name in (RULED, EVERYTHING):
        base["rules"] = _rules(folder)
    if name in (ROUTED, EVERYTHING):
        del base["upstream"]
        second: dict[str, Any] = {"api_keys": {SHOP: SHOP_EU}}
        if name == ROUTED:
            second["required"] = False
        base |= _destinations(second=second)
    if name in (DELIVERED, EVERYTHING):
        base["buffer"] |= {"ack": "delivered", "ack_timeout": "2s"}
    if name in FULL:  # built often: without conditions, which take long to compile
        del http["otlp"]["mapping"]["where"]
    if name == KEYS:
        http |= {"api_keys": [KEY, OTHER], "max_lanes": 3}
    if name == SMALL:
        http["max_body"] = "3kB"
        base["upstream"]["max_event"] = "1kB"
    if name in (DROP_OLDEST, DROP_NEWEST):
        base["buffer"]["when_full"] = name.replace(" ", "_")
    return base


def configurations(folder: Path) -> dict[str, Configuration]:
    """All of them by name. `folder` has the files `salt` and `ids`."""
    by_name = {}
    for name in WEIGHTS:
        settings = Settings.parse(_sections(name, folder))
        if name in FULL:  # smaller than can be configured
            settings = replace(
                settings,
                buffer=replace(settings.buffer, max_bytes=BUFFER_BYTES),
                dead_letters=replace(settings.dead_letters, max_bytes=LETTER_BYTES),
            )
        by_name[name] = Configuration(name, settings)
    return by_name


def source_settings() -> Settings:
    """Settings that name all clusters and all logs, for the policies of their sources."""
    base = _base()
    base["sources"]["kafka"] = CLUSTERS
    base["sources"]["logs"] = [
        {
            "name": f"log-{number}",
            "path": [f"/var/log/differential/{number}.log"],
            "api_key": LOG_KEY,
            "host": "web-1",
            **source,
        }
        for number, source in enumerate(LOGS)
    ]
    return Settings.parse(base)
