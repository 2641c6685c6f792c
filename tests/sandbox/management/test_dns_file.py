"""TXT records from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.management.dns_file import FileResolver
from tests.contract.calls import error_of
from tests.sandbox.client import talking
from tests.support import management as seed

NAME = "_posthog-challenge.example.com"


async def test_names_and_texts(tmp_path: Path) -> None:
    """A name has a text or several, in any case and with or without a dot at its end; any other has none."""
    path = tmp_path / "dns.yaml"
    path.write_text(f"{NAME.upper()}.: one\nother.example.com: [two, three]\n")
    resolver = FileResolver(path)
    resolver.check()
    assert [list(await resolver.texts(name)) for name in (NAME, f"{NAME}.", "OTHER.example.com", "x")] == [
        ["one"],
        ["one"],
        ["two", "three"],
        [],
    ]


async def test_a_change_counts_at_once(tmp_path: Path) -> None:
    """A domain is verified as soon as its challenge stands in the file; until then, and while the file is broken or gone, it isn't."""
    path = tmp_path / "dns.yaml"
    path.write_text("")
    async with talking(seed.seeded(tmp_path, resolver=FileResolver(path))) as client:
        headers = {"Authorization": f"Bearer {seed.OWNER_KEY}"}
        place = f"/api/organizations/{seed.ORGANIZATION}/domains/{seed.DOMAIN}/"
        challenge = (await client.ask("GET", place, None, headers)).json["verification_challenge"]
        for content in (f"{NAME}: another", "[", None, f"x{NAME}: {challenge}"):
            path.unlink() if content is None else path.write_text(content)
            assert (await client.ask("POST", f"{place}verify/", None, headers)).status == 200
            assert (await client.ask("GET", place, None, headers)).json["is_verified"] is False
        path.write_text(f"{NAME}: {challenge}")
        assert (await client.ask("POST", f"{place}verify/", None, headers)).status == 200
        assert (await client.ask("GET", place, None, headers)).json["is_verified"] is True
        assert error_of(await client.ask("POST", f"{place}verify/", None, headers))[2] == "already_verified"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can't be read"),
        ("[", "neither YAML nor JSON"),
        ("just words", "doesn't say which names"),
        ("- x", "doesn't say which names"),
        ("1: x", "doesn't say which names"),
        ("x: 5", "x has something else than texts"),
        ("x: [a, 5]", "x has something else than texts"),
        (b"\xff", "neither YAML nor JSON"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: str | bytes | None, words: str) -> None:
    """A file that can't be used is named at the start, with what would be right."""
    path = tmp_path / "dns.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=words) as raised:
        FileResolver(path).check()
    assert str(path) in raised.value.message
    assert "_posthog-challenge" in raised.value.hint
