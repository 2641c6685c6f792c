"""Lookup of TXT records: DNS, table and file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from dns.resolver import NoResolverConfiguration

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.manage.dns import MAX_RECORDS, DnsResolver, FileResolver, StaticResolver
from tests.contract.calls import error_of
from tests.sandbox.client import talking
from tests.support import management as seed
from tests.support.cases import cases

NAME = "_posthog-challenge.example.com"
Answering = Callable[[dns.message.Message], bytes | None]


class DnsServer(asyncio.DatagramProtocol):
    """Answers questions by a function; None is no answer."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self.asked = asyncio.Event()
        self.questions: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers go through."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answer a question."""
        query = dns.message.from_wire(data)
        self.questions.append(str(query.question[0].name))
        self.asked.set()
        answer = self._answering(query)
        if answer is not None:
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def serving(answering: Answering) -> AsyncIterator[tuple[DnsServer, int]]:
    """A server and its port, closed at the end."""
    server = DnsServer(answering)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", 0)
    )
    try:
        yield server, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


def records(
    *lines: str, code: dns.rcode.Rcode = dns.rcode.NOERROR, name: str | None = None
) -> Answering:
    """Answers with TXT records as a zone file spells them, one for each line; a CNAME first if
    there is another name.
    """

    def answering(query: dns.message.Message) -> bytes:
        response = dns.message.make_response(query)
        response.set_rcode(code)
        asked = query.question[0].name
        if name is not None:
            response.answer.append(dns.rrset.from_text(asked, 60, "IN", "CNAME", name))
        if lines:
            response.answer.append(
                dns.rrset.from_text(asked if name is None else name, 60, "IN", "TXT", *lines)
            )
        return response.to_wire(max_size=65_535)

    return answering


def silence(query: dns.message.Message) -> None:
    """Answers nothing."""


async def ask(answering: Answering, name: str = NAME) -> list[str]:
    """What a resolver gets of a server, in any order. Cancelled it stops."""
    async with serving(answering) as (_, port):
        return sorted(await DnsResolver(["127.0.0.1"], port=port, lifetime=2.0).texts(name))


async def test_texts_are_the_records_of_a_name() -> None:
    """The strings of a record belong together."""
    assert await ask(records('"first " "and second"', "plain", '""')) == [
        "",
        "first and second",
        "plain",
    ]


async def test_bytes_that_are_no_text_are_replaced() -> None:
    """Whatever stands there, it is a text."""
    assert await ask(records(r'"\255\000x"', r'"\195\188"')) == ["ü", "\ufffd\x00x"]


async def test_another_name_for_the_name_is_followed() -> None:
    """A CNAME, with the records that it leads to in the same answer."""
    assert await ask(records("here", name="elsewhere.example.net.")) == ["here"]


async def test_the_name_is_asked_as_it_is() -> None:
    """Nothing of the machine's own domain is put behind it, even where it doesn't exist."""
    async with serving(records(code=dns.rcode.NXDOMAIN)) as (server, port):
        assert await DnsResolver(["127.0.0.1"], port=port).texts(NAME) == []
        assert server.questions == [f"{NAME}."]


@cases("code", [dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL, dns.rcode.REFUSED, dns.rcode.FORMERR])
async def test_an_error_is_no_records(code: dns.rcode.Rcode) -> None:
    """The name doesn't exist, or the server has trouble."""
    async with serving(records(code=code)) as (_, port):
        assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.3).texts(NAME) == []


@cases(
    "answering",
    [records(), records(name="elsewhere.example.net."), lambda _: b"nonsense", lambda _: b""],
)
async def test_an_answer_without_records_is_none(answering: Answering) -> None:
    """The name has something else, or the answer can't be read."""
    async with serving(answering) as (_, port):
        assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.3).texts(NAME) == []


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    """When the time is over, there are no records."""
    async with serving(silence) as (server, port):
        assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.05).texts(NAME) == []
        assert server.asked.is_set()


async def test_no_server_is_no_records() -> None:
    """No one listens at the port."""
    async with serving(silence) as (_, port):
        pass
    assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.2).texts(NAME) == []


async def test_an_answer_too_long_for_a_datagram_is_asked_for_again() -> None:
    """By TCP, which no one offers here: no records, and no error."""

    def cut(query: dns.message.Message) -> bytes:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.TC
        return response.to_wire()

    async with serving(cut) as (_, port):
        assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.3).texts(NAME) == []


async def test_not_all_of_very_many_records_are_read() -> None:
    """There is a limit."""
    assert (
        len(await ask(records(*(str(number) for number in range(MAX_RECORDS + 20))))) == MAX_RECORDS
    )


@cases(
    "name",
    [
        "",
        ".",
        "..",
        "a" * 64 + ".com",
        ".".join(["a" * 60] * 5),
        "bücher.example",
        "\ud800.com",
        "a\x00.com",
    ],
)
async def test_a_name_that_can_not_be_asked_has_no_records(name: str) -> None:
    """Too long, or none at all."""
    assert await ask(records(code=dns.rcode.NXDOMAIN), name) == []


async def test_a_cancelled_look_up_ends() -> None:
    """It is cancelled, rather than without records, and leaves no socket."""
    async with serving(silence) as (server, port):
        task = asyncio.create_task(DnsResolver(["127.0.0.1"], port=port).texts(NAME))
        await server.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_machine_without_a_dns_has_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's servers are looked for when they are needed, so that everything else works
    without any.
    """
    resolver = DnsResolver()

    def unconfigured(configure: bool) -> Any:
        assert configure
        raise NoResolverConfiguration

    monkeypatch.setattr("dns.asyncresolver.Resolver", unconfigured)
    assert await resolver.texts(NAME) == []


async def test_a_table_answers_for_its_names() -> None:
    """In any case, with a dot at the end or without."""
    resolver = StaticResolver({"Example.COM.": ["one", "two"]})
    assert await resolver.texts("example.com") == ("one", "two")
    assert await resolver.texts("EXAMPLE.com.") == ("one", "two")
    assert await resolver.texts("other.example.com") == ()


async def test_names_and_texts(tmp_path: Path) -> None:
    """A name has a text or several, in any case and with or without a dot at its end; any other
    has none.
    """
    path = tmp_path / "dns.yaml"
    path.write_text(f"{NAME.upper()}.: one\nother.example.com: [two, three]\n")
    resolver = FileResolver(path)
    resolver.check()
    assert [
        list(await resolver.texts(name)) for name in (NAME, f"{NAME}.", "OTHER.example.com", "x")
    ] == [
        ["one"],
        ["one"],
        ["two", "three"],
        [],
    ]


async def test_a_change_counts_at_once(tmp_path: Path) -> None:
    """A domain is verified as soon as its challenge stands in the file; until then, and while the
    file is broken or gone, it isn't.
    """
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
        assert (
            error_of(await client.ask("POST", f"{place}verify/", None, headers))[2]
            == "already_verified"
        )


@cases(
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
