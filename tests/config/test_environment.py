"""The layer of the environment."""

from __future__ import annotations

from forwarder.config.environment import read_environment
from forwarder.config.keys import keys, lists
from tests.support.cases import cases


def test_every_key_has_its_variable() -> None:
    """Each key can be set by FORWARDER_, its sections and its name, with two
    underscores between.
    """
    layer = read_environment(
        {key.variable: "[]" if path in lists() else "x" for path, key in keys().items()}
    )
    assert {*layer.values, *layer.lists} == set(keys())
    assert layer.problems == []
    assert (
        keys()["sources", "http", "tls", "cert_file"].variable
        == "FORWARDER_SOURCES__HTTP__TLS__CERT_FILE"
    )


def test_an_empty_variable_is_not_set() -> None:
    """Compose files pass on variables that no one set as empty ones."""
    layer = read_environment({"FORWARDER_UPSTREAM__PROXY": "", "FORWARDER_LOG__LEVEL": " "})
    assert not layer.values
    assert not layer.problems


@cases(
    ("name", "hint"),
    [
        ("FORWARDER_UPSTREAM_URL", "FORWARDER_UPSTREAM__URL"),
        ("FORWARDER_BATCH__MAX_EVENT", "FORWARDER_BATCH__MAX_EVENTS"),
        ("FORWARDER_LOG", "FORWARDER_LOG__LEVEL"),
        ("FORWARDER_upstream__url", "FORWARDER_UPSTREAM__URL"),
        ("FORWARDER_LISTEN", "FORWARDER_SOURCES__HTTP__LISTEN or FORWARDER_ADMIN__LISTEN"),
        ("FORWARDER_PORT", "config show"),
        ("FORWARDER_XYZZY", "config show"),
        (
            "FORWARDER_SOURCES__KAFKA__12__TOPIC",
            "did you mean FORWARDER_SOURCES__KAFKA__12__TOPICS?",
        ),
        (
            "FORWARDER_SOURCES__KAFKA__2__SECURITY",
            "its keys are FORWARDER_SOURCES__KAFKA__2__SECURITY__PROTOCOL, ",
        ),
        ("FORWARDER_SOURCES__KAFKA__0", "its keys are FORWARDER_SOURCES__KAFKA__0__NAME, "),
        ("FORWARDER_SOURCES__KAFKA__TOPICS", "FORWARDER_SOURCES__KAFKA__0__TOPICS"),
        ("FORWARDER_SOURCES__KAFKA__01__TOPICS", "FORWARDER_SOURCES__KAFKA__0__TOPICS"),
        ("FORWARDER_SOURCES__KAFKA__99999__TOPICS", "FORWARDER_SOURCES__KAFKA__0__TOPICS"),
        ("FORWARDER_SOURCES__KAFKA__-1__TOPICS", "FORWARDER_SOURCES__KAFKA__0__TOPICS"),
        (
            "FORWARDER_SOURCES__KAFKA__0__MAPPING__PROPERTIES__PLAN",
            "FORWARDER_SOURCES__KAFKA__0__MAPPING__PROPERTIES",
        ),
    ],
)
def test_an_unknown_variable_is_a_problem_with_a_suggestion(name: str, hint: str) -> None:
    """A variable with our prefix that sets nothing is a mistake, not noise."""
    (problem,) = read_environment({name: "8320"}).problems
    assert problem.where == name
    assert hint in problem.hint


@cases(
    ("name", "value"),
    [
        ("FORWARDER_SERVICE_HOST", "10.0.0.1"),
        ("FORWARDER_SERVICE_PORT", "8320"),
        ("FORWARDER_SERVICE_PORT_HTTP", "8320"),
        ("FORWARDER_PORT", "tcp://10.0.0.1:8320"),
        ("FORWARDER_PORT_8320_TCP", "tcp://10.0.0.1:8320"),
        ("FORWARDER_PORT_8320_TCP_ADDR", "10.0.0.1"),
        ("FORWARDER_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("FORWARDER_FAILPOINTS", "commit.begin=kill"),
        ("OTHER_UPSTREAM__URL", "x"),
        ("PATH", "/bin"),
    ],
)
def test_passes_over_what_is_not_for_it(name: str, value: str) -> None:
    """Kubernetes puts the addresses of a service named forwarder into every pod."""
    layer = read_environment({name: value})
    assert not layer.problems
    assert not layer.values
