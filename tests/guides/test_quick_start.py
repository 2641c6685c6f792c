"""docs/how-to/connect-sdks.md: the one line of each SDK names an option that the SDK has, and an
address that forwarder can have.
"""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from forwarder.config.settings import Settings
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.repository import ROOT

TEXT = text_of("connect-sdks")
BLOCKS = dict(
    re.findall(r"^\*\*(\w+)\*\* \([^\n]*\)\n```\w+\n(.*?)\n```", TEXT, re.DOTALL | re.MULTILINE)
)
LANGUAGES = ("python", "node", "js", "go", "java", "ruby", "php", "elixir", "ios", "android", "rs")
PROGRAMS = {
    "python": ("program.py", "host="),
    "node": ("program.mjs", "host:"),
    "js": ("page.js", "api_host:"),
    "go": ("program.go", "Endpoint:"),
    "java": ("Program.java", ".host("),
}


def test_every_language_has_its_line() -> None:
    """One line each, with a project key and an address."""
    assert set(BLOCKS) == set(LANGUAGES)
    assert [name for name, block in BLOCKS.items() if "\n" in block or "phc_…" not in block] == []


def test_the_address_is_the_listeners() -> None:
    """On one machine it is the default of `sources.http.listen`; of browsers and apps it is one
    with TLS.
    """
    addresses = {name: re.findall(r"https?://[\w.:-]+", block) for name, block in BLOCKS.items()}
    public = {"js", "ios", "android"}
    assert {
        name: urls[0] for name, urls in addresses.items() if name not in public
    } == dict.fromkeys(set(LANGUAGES) - public, f"http://{Settings().sources.http.listen}")
    assert all(addresses[name][0].startswith("https://") for name in public)


@cases("name", PROGRAMS)
def test_the_option_is_the_one_that_the_test_of_the_real_sdk_uses(name: str) -> None:
    """The programs in tests/sdks run with the SDKs themselves; the page
    spells the option as they do.
    """
    file, option = PROGRAMS[name]
    assert option in (ROOT / "tests" / "sdks" / "programs" / name / file).read_text("utf-8")
    assert option in BLOCKS[name]


def test_pythons_line_fits_the_installed_sdk() -> None:
    """Its arguments are parameters of the real class."""
    posthog = pytest.importorskip("posthog", reason="the demo's extra isn't installed")
    [statement] = ast.parse(BLOCKS["python"]).body
    assert isinstance(statement, ast.Assign)
    call = statement.value
    assert isinstance(call, ast.Call)
    inspect.signature(posthog.Posthog).bind(
        *["phc_…"], **{str(word.arg): "" for word in call.keywords}
    )
