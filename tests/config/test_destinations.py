"""Several destinations and routes in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.config.display import as_json, as_yaml
from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from forwarder.config.values import RouteTarget

TWO = (
    "upstreams:\n  us: {url: https://us.example.com}\n  eu: {url: https://eu.example.com, "
    "api_keys: {phc_a: phc_b}}\n"
)


def load(tmp_path: Path, text: str, **environ: str) -> Settings:
    """The settings that a file says."""
    file = tmp_path / "forwarder.yaml"
    file.write_text(text, "utf-8")
    return load_settings(file, environ).settings


def test_a_mapping_of_names(tmp_path: Path) -> None:
    """Each destination has its name and its keys; what holds for one is as if it were
    the only one.
    """
    settings = load(
        tmp_path,
        TWO
        + "routes:\n  - match: {event: 'order*'}\n    to: [us, {eu: {sample: 0.05}}]\n  - to: eu\n",
    )
    assert settings.destinations == ("us", "eu")
    assert settings.of_destination("eu").upstream.url == "https://eu.example.com"
    assert settings.of_destination("eu").destination.api_keys == {"phc_a": "phc_b"}
    assert settings.of_destination().destination.name == "us"
    assert settings.routes[0].to == (RouteTarget("us"), RouteTarget("eu", 0.05))
    assert settings.routes[1].to == (RouteTarget("eu"),)
    assert settings.other_keys == {"phc_a": ["phc_b"]}


def test_no_key_is_shown_whole(tmp_path: Path) -> None:
    """Neither the one that a destination uses nor the one that stands for it."""
    file = tmp_path / "forwarder.yaml"
    file.write_text(
        "upstreams: {eu: {url: https://eu.example.com, api_keys: "
        "{phc_hunter2hunter2from: phc_hunter2hunter2goes}}}\n"
    )
    loaded = load_settings(file, {})
    for shown in (as_yaml(loaded), str(as_json(loaded))):
        assert "hunter2" not in shown
        assert "phc_…from" in shown
        assert "phc_…goes" in shown


def test_from_the_environment(tmp_path: Path) -> None:
    """As JSON, or key by key over the file."""
    listed = (
        '[{"name": "us", "url": "https://us.example.com"}, {"name": "eu", "url": '
        '"https://eu.example.com"}]'
    )
    settings = load(
        tmp_path,
        "{}",
        FORWARDER_UPSTREAMS=listed,
        FORWARDER_ROUTES='[{"to": ["us", {"eu": {"sample": 0.5}}]}]',
    )
    assert settings.destinations == ("us", "eu")
    assert settings.routes[0].to == (RouteTarget("us"), RouteTarget("eu", 0.5))
    assert (
        load(tmp_path, TWO, FORWARDER_UPSTREAMS__1__REQUIRED="false").upstreams[1].required is False
    )


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        (
            f"upstream: {{url: https://h.example.com}}\n{TWO}",
            "upstream",
            "can't be beside upstreams",
        ),
        ("upstreams:\n  us: {}\n", "upstreams[0].url", "of us is missing"),
        (
            "upstreams:\n  US: {url: https://us.example.com}\n",
            "upstreams[0].name",
            "can't be a name",
        ),
        ("upstreams:\n  - {url: https://us.example.com}\n", "upstreams[0].name", "is missing"),
        (f"{TWO}  us: {{url: https://h.example.com}}\n", "upstreams.us", "is given twice"),
        (f"{TWO}routes: [{{to: [us, ue]}}]\n", "routes[0].to", "ue is no destination"),
        (f"{TWO}routes: [{{to: [us, us]}}]\n", "routes[0].to", "has us twice"),
        (f"{TWO}routes: [{{}}]\n", "routes[0].to", "is missing"),
        (f"{TWO}routes: [{{to: [{{eu: {{sample: 0.1}}}}]}}]\n", "routes[0].to", "has only samples"),
        (
            f"{TWO}routes: [{{to: [us, {{eu: {{sample: 5}}}}]}}]\n",
            "routes[0].to[1]",
            "it is no share of people",
        ),
        (
            f"{TWO}routes: [{{to: us, match: {{distinct_id_file: /x}}}}]\n",
            "routes[0].match.distinct_id_file",
            "is only for rules",
        ),
        (
            f"{TWO}passthrough: {{destination: asia}}\n",
            "passthrough.destination",
            "asia is no destination",
        ),
        (
            "upstream: {url: https://h.example.com}\nroutes: [{to: us}]\n",
            "routes[0]",
            "needs upstreams",
        ),
        (
            "upstreams:\n  us: {url: https://us.example.com, required: false}\n",
            "upstreams[0].required",
            "is false for all destinations",
        ),
        (
            "upstreams:\n  us: {url: https://us.example.com, max_body: 1MB}\n",
            "batch.max_bytes",
            "upstreams[0].max_body",
        ),
    ],
)
def test_what_doesnt_fit(tmp_path: Path, text: str, key: str, what: str) -> None:
    """Is said with its key."""
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path, text)
    assert [problem.key for problem in caught.value.problems if what in problem.message] == [key]
