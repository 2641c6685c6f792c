"""The table of keys."""

from __future__ import annotations

from forwarder.config.keys import keys, sections, variable
from forwarder.config.settings import Settings


def test_knows_every_setting_by_its_dotted_name() -> None:
    """Keys are the leaves of the settings, in their order."""
    names = [key.name for key in keys().values()]
    assert names[0] == "upstream.url"
    assert {"sources.http.tls.cert_file", "delivery.retry.give_up_after", "log.level"} <= set(names)
    assert {path[0] for path in keys()} == set(Settings.model_fields)
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
    assert {key.name for key in keys().values() if key.secret} == {"sources.http.api_keys", "upstream.proxy"}


def test_variables_follow_from_the_path() -> None:
    """Sections and keys share the rule."""
    assert variable(("sources", "http")) == "FORWARDER_SOURCES__HTTP"
