"""What looks up TXT records, against a small server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from dns.resolver import NoResolverConfiguration

from forwarder.sandbox.management.resolving import MOST, DnsResolver, StaticResolver

NAME = "_posthog-challenge.example.com"
Answering = Callable[[dns.message.Message], bytes | None]


class Server(asyncio.DatagramProtocol):
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
async def serving(answering: Answering) -> AsyncIterator[tuple[Server, int]]:
    """A server and its port, closed at the end."""
    server = Server(answering)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", 0))
    try:
        yield server, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


def records(*lines: str, code: dns.rcode.Rcode = dns.rcode.NOERROR, name: str | None = None) -> Answering:
    """Answers with TXT records as a zone file spells them, one for each line; a CNAME first if there is another name."""

    def answering(query: dns.message.Message) -> bytes:
        response = dns.message.make_response(query)
        response.set_rcode(code)
        asked = query.question[0].name
        if name is not None:
            response.answer.append(dns.rrset.from_text(asked, 60, "IN", "CNAME", name))
        if lines:
            response.answer.append(dns.rrset.from_text(asked if name is None else name, 60, "IN", "TXT", *lines))
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
    assert await ask(records('"first " "and second"', "plain", '""')) == ["", "first and second", "plain"]


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


@pytest.mark.parametrize("code", [dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL, dns.rcode.REFUSED, dns.rcode.FORMERR])
async def test_an_error_is_no_records(code: dns.rcode.Rcode) -> None:
    """The name doesn't exist, or the server has trouble."""
    async with serving(records(code=code)) as (_, port):
        assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.3).texts(NAME) == []


@pytest.mark.parametrize("answering", [records(), records(name="elsewhere.example.net."), lambda _: b"nonsense", lambda _: b""])
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
    """Nobody listens at the port."""
    async with serving(silence) as (_, port):
        pass
    assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.2).texts(NAME) == []


async def test_an_answer_too_long_for_a_datagram_is_asked_for_again() -> None:
    """By TCP, which nobody offers here: no records, and no error."""

    def cut(query: dns.message.Message) -> bytes:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.TC
        return response.to_wire()

    async with serving(cut) as (_, port):
        assert await DnsResolver(["127.0.0.1"], port=port, lifetime=0.3).texts(NAME) == []


async def test_not_all_of_very_many_records_are_read() -> None:
    """There is a limit."""
    assert len(await ask(records(*(str(number) for number in range(MOST + 20))))) == MOST


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 64 + ".com", ".".join(["a" * 60] * 5), "bücher.example", "\ud800.com", "a\x00.com"])
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
    """The system's servers are looked for when they are needed, so that everything else works without any."""
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
