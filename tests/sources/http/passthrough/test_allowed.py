"""Which targets go through, and that no reading of them leads elsewhere."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forwarder.sources.http.passthrough.allowed import PassedRoutes
from forwarder.sources.http.routes import origin_form

PIECES = [
    b"/", b"//", b".", b"..", b"%2e", b"%2F", b"%5c", b"\\", b";", b"?", b"#", b"&", b"=", b"@", b":", b"http://h", b"x",
    b"decide", b"flags", b"definitions", b"api", b"feature_flag", b"local_evaluation", b"array", b"static", b"s", b"i", b"v0", b"e",
]  # fmt: skip
DEFINITIONS = {"/flags/definitions", "/api/feature_flag/local_evaluation", "/api/feature_flag"}
NAMES = {"/decide", "/flags", *DEFINITIONS, "/array", "/static", "/s", "/i"}


@given(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join))
@example(b"/static/%2e%2e/api")
@example(b"/static/..")
def test_no_way_out(url: bytes) -> None:
    """What goes through is the same path however often it is decoded and normalised, and is on the list; no other name is counted."""
    passed, target = PassedRoutes().find(url), origin_form(url)
    if passed is None:
        return
    path = target.partition(b"?")[0].decode()
    decoded = unquote_to_bytes(unquote_to_bytes(path)).decode().replace("\\", "/")
    assert posixpath.normpath(decoded) == (path.rstrip("/") or "/")
    assert "//" not in path
    assert path.startswith(passed.route.name)
    assert passed.route.name in NAMES
    assert url.endswith(target)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (b"/decide?v=3", "/decide"), (b"/flags/definitions/", "/flags/definitions"), (b"/static/array.js", "/static"),
        (b"/array/phc_x/config", "/array"), (b"/i/v0/ai/batch/", "/i"), (b"HTTP://h:1/s/?x", "/s"),
        (b"//flags/?v=2", "/flags"), (b"http://h////static/x", "/static"), (b"/api/feature_flag/?token=x", "/api/feature_flag"),
    ],
)  # fmt: skip
def test_names(url: bytes, name: str) -> None:
    """A route's name is its path without what follows it."""
    passed = PassedRoutes().find(url)
    assert passed is not None
    assert passed.route.name == name


def test_what_is_short() -> None:
    """An app waits for flags and definitions; definitions alone are cached; assets alone have their own address."""
    urls = [name.encode() + end for name in NAMES for end in (b"", b"/x")]
    routes = {passed.route.name: passed for passed in map(PassedRoutes().find, urls) if passed is not None}
    assert set(routes) == NAMES
    assert {name for name, passed in routes.items() if passed.latency_sensitive} == NAMES - {"/array", "/static", "/s", "/i"}
    assert {name for name, passed in routes.items() if passed.definitions} == DEFINITIONS
    assert {name for name, passed in routes.items() if passed.reads} == {"/api/feature_flag"}
    assert {name for name, passed in routes.items() if passed.assets} == {"/array", "/static"}
