"""Addresses, keys and ids, before anything is sent."""

from __future__ import annotations

import ssl
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from forwarder.contract.endpoints import (
    ENDPOINTS,
    GET_DOMAIN,
    LIST_PROJECTS,
    RETRY_BATCH_EXPORT_RUN,
)
from forwarder.core.errors import ConfigurationError
from forwarder.management import ApiError, Client, InvalidCall
from forwarder.management.addresses import (
    base_address,
    check_key,
    check_proxy_url,
    path_of,
    tls_context,
)
from tests.support.cases import cases

KEY = "phx_0123456789abcdefABCDEF"


@cases(
    ("url", "base"),
    [
        ("https://eu.example.com", "https://eu.example.com"),
        ("https://eu.example.com/", "https://eu.example.com"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("https://example.com/analytics/", "https://example.com/analytics"),
        ("HTTPS://Example.com", "https://example.com"),
        ("https://bücher.example/größe", "https://xn--bcher-kva.example/gr%C3%B6%C3%9Fe"),
    ],
)
def test_the_base_address_may_have_a_port_and_a_path(url: str, base: str) -> None:
    """A base address keeps its port and its path, and loses the slash at its end."""
    assert base_address(url) == base


@cases(
    "url",
    [
        "",
        "eu.example.com",
        "ftp://example.com",
        "https://",
        "https://user:s3cret@example.com",
        "https://example.com/?key=s3cret",
        "https://example.com/#s3cret",
        "https://example.com/a b s3cret",
        "https://example.com:99999/s3cret",
        "https://exa mple.com",
        "https://example.com\n",
        "https://example.com/s3cret/api/",
    ],
)
def test_an_address_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    """What can't be a base address is refused; the error names the setting, and nothing that may
    be secret.
    """
    with pytest.raises(ConfigurationError, match=r"^url: ") as caught:
        base_address(url)
    assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value.__context__}"


@cases(
    "key",
    [
        "",
        " phx_s3cret",
        "phx_s3cret ",
        "phx_s3cret\n",
        "phx_\r\nX-Other: s3cret",
        "phx_sécret s3cret",
        "Bearer phx_s3cret",
        "phx_s3cret\0",
    ],
)
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(key: str) -> None:
    """A key with spaces, line breaks or other than ASCII characters is refused, and not shown."""
    with pytest.raises(ConfigurationError, match=r"^api_key: ") as caught:
        check_key(key)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint


def test_the_key_of_a_project_is_refused_with_a_hint() -> None:
    """Who gives a project's key learns which one is required."""
    with pytest.raises(ConfigurationError, match="project's key") as caught:
        check_key("phc_0123456789abcdef")
    assert "phx_" in caught.value.hint
    assert "0123456789abcdef" not in f"{caught.value} {caught.value.hint}"


@cases("proxy", ["proxy:3128", "socks5://proxy:1080", "http://user:s3cret@proxy:3128/path"])
def test_a_proxy_that_is_none_is_refused(proxy: str) -> None:
    """What can't be an HTTP proxy is refused without being repeated."""
    with pytest.raises(ConfigurationError, match=r"^proxy: ") as caught:
        check_proxy_url(proxy)
    assert "s3cret" not in str(caught.value)


def test_a_proxy_may_have_credentials() -> None:
    """A login at the proxy is allowed, and no proxy is the default."""
    assert check_proxy_url("http://user:s3cret@proxy:3128") == "http://user:s3cret@proxy:3128"
    assert check_proxy_url(None) is None


def test_a_ca_file_that_is_no_use_is_refused(tmp_path: Path) -> None:
    """A file that isn't there, or holds no certificate, is named."""
    with pytest.raises(
        ConfigurationError, match=r"^ca_file: .*missing\.pem can't be read: No such file"
    ):
        tls_context("http://h", tmp_path / "missing.pem")
    (tmp_path / "other.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"^ca_file: .*other\.pem holds no certificate"):
        tls_context("https://h", tmp_path / "other.pem")


def test_the_system_authorities_are_trusted_by_default() -> None:
    """Certificates and host names are always checked, where there are any."""
    context = tls_context("https://h", None)
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert tls_context("http://h", None) is None


def test_ids_are_put_into_the_path() -> None:
    """Texts, numbers and UUIDs are ids."""
    uuid = UUID("01900000-0000-7000-8000-0000000000aa")
    ids = {"project_id": 7, "batch_export_id": uuid, "id": "x"}
    assert (
        path_of(RETRY_BATCH_EXPORT_RUN, ids)
        == f"/api/environments/7/batch_exports/{uuid}/runs/x/retry/"
    )


@cases("value", ["", None, ".", "..", "a/b", "/", "..\\x", "a\nb", "a\0", "x" * 201])
def test_an_id_that_would_lead_elsewhere_is_refused(value: object) -> None:
    """An id that is empty, made of dots, or holds slashes or control characters reaches no
    endpoint at all.
    """
    with pytest.raises(InvalidCall) as caught:
        path_of(GET_DOMAIN, {"organization_id": "o", "id": value})
    error = caught.value
    assert isinstance(error, ApiError)
    assert isinstance(error, ValueError)
    assert (error.status, error.code, error.field) == (None, "invalid_call", "id")
    assert str(error).startswith("domains get: id ")


@pytest.mark.parametrize(
    ("ids", "field"), [({}, "organization_id"), ({"organization_id": "o", "id": "x"}, "id")]
)
def test_ids_that_are_missing_or_too_many_are_named(ids: dict[str, object], field: str) -> None:
    """The names of the ids must be the path's."""
    with pytest.raises(InvalidCall) as caught:
        path_of(LIST_PROJECTS, ids)
    assert caught.value.field == field


@settings(deadline=None)
@given(
    st.sampled_from(ENDPOINTS),
    st.text(max_size=60)
    | st.sampled_from(["%2e%2e", "%2F", "?a=b", "#x", "..;", "%00", "a%2fb", "…"]),
)
def test_an_id_is_one_segment_or_refused(endpoint: object, text: str) -> None:
    """Whatever an id holds, the path that is sent has the segments of the endpoint's, also for who
    decodes and normalizes it.
    """
    assert endpoint in ENDPOINTS
    row = next(candidate for candidate in ENDPOINTS if candidate is endpoint)
    try:
        path = path_of(row, {parameter.name: text for parameter in row.parameters})
    except InvalidCall:
        return
    url = URL(f"http://host{path}", encoded=True)
    assert path.isascii()
    assert url.raw_path == path
    assert url.query_string == url.fragment == ""
    assert len(path.split("/")) == len(row.path.split("/"))
    assert URL(f"http://host{path}").path.count("/") == row.path.count("/")


@cases("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_must_be_one(timeout: float) -> None:
    """A client without a usable time limit isn't made."""
    with pytest.raises(ConfigurationError, match=r"^timeout: "):
        Client("https://example.com", KEY, timeout=timeout)
