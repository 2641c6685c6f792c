"""The table of keys."""

from __future__ import annotations

from typing import Any

from forwarder.config.keys import dotted, in_table, keys, leaves, lists, parts, sections, variable
from forwarder.config.section import keys_of
from forwarder.config.settings import Settings


def test_knows_every_setting_by_its_dotted_name() -> None:
    """Keys are the leaves of the settings, in their order."""
    names = [key.name for key in keys().values()]
    assert names[0] == "upstream.url"
    assert {"sources.http.tls.cert_file", "delivery.retry.give_up_after", "log.level"} <= set(names)
    assert {path[0] for path in keys()} == set(keys_of(Settings))
    assert not set(keys()) & set(sections())


def test_every_key_says_what_it_means() -> None:
    """A key without a description would be undocumented everywhere."""
    assert [key.name for key in keys().values() if not key.description.endswith((".", ")"))] == []


def test_defaults_are_as_people_write_them() -> None:
    """Sizes and times as text, nothing as None."""
    assert keys()["upstream", "timeout"].default == "30s"
    assert keys()["batch", "max_bytes"].default == "5MB"
    assert keys()["delivery", "retry", "give_up_after"].default == "never"
    assert keys()["upstream", "proxy"].default is None
    assert keys()["buffer", "max_bytes"].default is None
    assert (keys()["workers",].default, keys()["workers",].variable) == (1, "FORWARDER_WORKERS")


def test_secrets_are_known() -> None:
    """What must never be shown whole."""
    ours = {
        f"sources.kafka[0].{name}"
        for name in ("api_key", "security.password", "security.client_secret")
    }
    ours |= {
        "sources.logs[0].api_key",
        "sources.http.otlp.api_key",
        "management.api_key",
        "management.proxy",
        "import.api_key",
        "import.store",
    }
    of_destinations = {
        "upstreams[0].proxy",
        "upstreams[0].api_keys",
        "upstreams[0].archive.store",
        "routes[0].match.api_key",
    }
    assert {key.name for key in keys().values() if key.secret} == {
        "sources.http.api_keys",
        "rules[0].match.api_key",
        "upstream.proxy",
        *of_destinations,
        *ours,
    }


def test_a_list_of_sections_stands_in_the_table_with_its_first_item() -> None:
    """As a key by itself, and as the section and the keys that each item has."""
    assert keys()["sources", "kafka"].default == []
    assert lists() == {
        ("upstreams",),
        ("routes",),
        ("sources", "kafka"),
        ("sources", "logs"),
        ("rules",),
    }
    assert ("sources", "kafka", "0") in sections()
    group = keys()["sources", "kafka", "0", "group_id"]
    assert (group.name, group.variable, group.default) == (
        "sources.kafka[0].group_id",
        "FORWARDER_SOURCES__KAFKA__0__GROUP_ID",
        "forwarder",
    )


def test_every_item_is_known_by_the_first() -> None:
    """Numbers lead to item 0 of the table; names that the user chose, and numbers that are none,
    lead nowhere.
    """
    assert in_table(("sources", "kafka", "17", "name")) == ("sources", "kafka", "0", "name")
    assert in_table(("sources", "kafka", "07", "name")) not in keys()
    assert dotted(("sources", "kafka", "17", "name")) == "sources.kafka[17].name"
    assert parts("sources.kafka[17].name") == ("sources", "kafka", "17", "name")


def test_leaves_are_keys() -> None:
    """Every leaf of settings stands in the table, those of all items too, and none is left out."""
    several: dict[str, Any] = {"upstreams": [{}, {}], "routes": [{}], "rules": [{}]}
    settings = Settings.parse(
        {
            **several,
            "sources": {"kafka": [{}, {"mapping": {"properties": {"a": ".a"}}}], "logs": [{}]},
        }
    )
    leaf_values = dict(leaves(settings.as_document()))
    assert [in_table(path) for path in leaf_values if "1" not in path] == list(keys())
    assert leaf_values["sources", "kafka", "1", "mapping", "properties"] == {"a": ".a"}


def test_variables_follow_from_the_path() -> None:
    """Sections and keys share the rule."""
    assert variable(("sources", "http")) == "FORWARDER_SOURCES__HTTP"
