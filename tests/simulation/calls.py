"""Calls of SDKs that bring no events, which are passed through: what is asked, what a service
answers, and whether the answers that come are the right ones (docs/reference/passthrough.md).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tests.simulation.http import Message, read_message
from tests.simulation.oracle import Promise
from tests.simulation.plan import (
    ASSET,
    DEFINITIONS,
    FLAGS,
    MEMORY,
    RECORDING,
    Call,
    Hold,
    Plan,
    Trouble,
    Weathered,
)
from tests.simulation.senders import CALLERS, PATIENCE
from tests.simulation.services import OF_SERVICE, Given, Service, echo_of

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Network
    from tests.simulation.oracle import Evidence

FRESH: Final = 10.0
"""Seconds for which definitions are served without asking (`passthrough.definitions_max_age`)."""
AFTERMATH: Final = 45.0
"""Seconds that a trouble is felt after its end: the longest timeout, and the circuit breaker."""
QUICK: Final = 5.0
"""Seconds within which an application has its flags, where nothing is slow."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call, and its answer: no status without one."""

    call: Call
    number: int
    echo: bytes
    """What an answer that says 200 begins with."""
    began: float
    at: float
    status: int
    body: bytes = b""
    of_service: bool = False
    starved: bool = False
    stale: bool = False


@dataclass
class Caller:
    """All who make calls, each on a connection of its own."""

    loop: SimulatedLoop
    network: Network
    to: tuple[str, int]
    say: Callable[[str, str], None]
    made: list[Made] = field(default_factory=list)
    _etags: dict[str, str] = field(default_factory=dict)

    async def call(self, act: Call) -> None:
        """Make them, one right after the other on one connection, and read their answers."""
        began = self.loop.time()
        answers: list[tuple[float, Message | None]] = []
        starved = False
        transport = None
        requests = list(self._texts(act))
        try:
            async with asyncio.timeout(PATIENCE):
                peer = f"{CALLERS}{act.sender + 1}"
                reader, transport = await self.network.dial(*self.to, peer=peer)
                for text, _ in requests[: -1 if act.breaks_off else None]:
                    transport.write(text)
                if act.breaks_off:
                    text, _ = requests[-1]
                    transport.write(text[: len(text) * 2 // 3])
                    transport.close()
                while len(answers) < act.count and not act.breaks_off:
                    message = await read_message(reader)
                    answers.append((self.loop.time(), message))
        except TimeoutError:
            starved = True
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if transport is not None:
                transport.close()
        for place, (_, echo) in enumerate(requests):
            at, message = answers[place] if place < len(answers) else (self.loop.time(), None)
            number = act.number + place
            made = Made(act, number, echo, began, self.loop.time(), 0, starved=starved)
            if message is not None:
                made = _answered(made, at, message)
                if etag := message.headers.get("etag"):
                    self._etags[act.key] = etag
            self.made.append(made)
            self.say("a caller", f"{act.what} {made.number}: {made.status or 'no answer'}")

    def _texts(self, act: Call) -> Iterator[tuple[bytes, bytes]]:
        """Its requests, each with the echo that is to come."""
        for number in range(act.number, act.number + act.count):
            target = target_of(act, number)
            body = b""
            lines = f"Authorization: Bearer {act.key}\r\n" if act.what == DEFINITIONS else ""
            if act.what == DEFINITIONS and act.conditional and act.key in self._etags:
                lines += f"If-None-Match: {self._etags[act.key]}\r\n"
            if act.what in (FLAGS, RECORDING):
                size = act.size if act.what == RECORDING else 0
                body = json.dumps({"token": act.key, "n": number, "p": "x" * size}).encode()
            method = "POST" if body else "GET"
            echo = b"" if act.what == DEFINITIONS else echo_of(method, target, body)
            if body and act.chunked:
                lines += "Transfer-Encoding: chunked\r\n"
                middle = len(body) // 2
                pieces = (body[:middle], body[middle:], b"")
                body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            elif body:
                lines += f"Content-Length: {len(body)}\r\n"
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"
            yield head.encode() + body, echo


def _answered(made: Made, at: float, message: Message) -> Made:
    return replace(
        made,
        at=at,
        status=int(message.first.split()[1]),
        body=message.body,
        of_service=OF_SERVICE in message.headers,
        stale="warning" in message.headers,
    )


def target_of(act: Call, number: int) -> str:
    """Of one of its calls."""
    return {
        FLAGS: f"/flags/?v=2&n={number}",
        DEFINITIONS: f"/flags/definitions?token={act.key}",
        ASSET: f"/static/{number}.js",
        RECORDING: f"/s/?n={number}",
    }[act.what]


def judge_calls(evidence: Evidence, caller: Caller, service: Service, met: Counter[str]) -> None:
    """Each call has the answer that the service gave to it, at once, and came there once; where
    nothing goes wrong it succeeds. Raises `Promise`.
    """
    came = Counter(given.target for given in service.given)
    for made in caller.made:
        what = made.call.what
        target = target_of(made.call, made.number)
        met[f"call: {what}: {made.status}"] += 1
        said = f"{what} {made.number} of {made.began:.3f} s"
        if made.starved and evidence.runs(made.began, made.at):
            raise Promise(f"{said} got no answer in all the time")
        if made.call.breaks_off:
            last = made.number == made.call.number + made.call.count - 1
            if last and what in (FLAGS, RECORDING) and came[target]:
                raise Promise(f"{said} broke off, and came whole")
            continue
        if what in (FLAGS, RECORDING) and came[target] > 1:
            raise Promise(f"{said} came {came[target]} times")
        if made.of_service:
            _judge_passed(made, target, service, said)
        elif made.status not in (0, 503) and not _is_too_large(made, evidence.plan):
            raise Promise(f"{said} was answered {made.status}: {made.body.decode()[:100]}")
        if _is_quiet(made, evidence, service.name) and _is_known_well(made, evidence, caller):
            met["call: where nothing is wrong"] += 1
            if not made.of_service and not _is_too_large(made, evidence.plan):
                raise Promise(f"{said} failed ({made.status}), and nothing is wrong")
            if what == FLAGS and made.at > made.began + QUICK:
                raise Promise(f"{said} was answered at {made.at:.3f} s")


def _judge_passed(made: Made, target: str, service: Service, said: str) -> None:
    """An answer of the service is the one to this call, unchanged."""
    given = [answer for answer in service.given if answer.target == target and answer.at <= made.at]
    if made.call.what != DEFINITIONS:
        if not any((answer.status, answer.body) == (made.status, made.body) for answer in given):
            raise Promise(f"{said} has another call's answer: {made.body.decode()[:100]}")
        if made.status == 200 and not made.body.startswith(made.echo):
            raise Promise(f"{said} came as {made.body.decode()[:100]}, not {made.echo.decode()}")
        return
    if made.status not in (200, 304):
        if not any(answer.status == made.status for answer in given):
            raise Promise(f"{said} has a status that was not given: {made.status}")
        return
    # an answer is as old as its last confirmation, which a refusal of the key takes back
    confirmed: Given | None = None
    for answer in given:
        if answer.status in (200, 304):
            confirmed = answer
        elif answer.status in (401, 403) and answer.at < made.began:
            confirmed = None
    if confirmed is None:
        raise Promise(f"{said} has definitions that the service refuses, or never gave")
    if made.status == 200 and made.body not in {answer.body for answer in given}:
        raise Promise(f"{said} has other definitions: {made.body.decode()[:100]}")
    if not made.stale and confirmed.at < made.began - FRESH - 1.0:
        raise Promise(f"{said} has definitions of {confirmed.at:.3f} s that aren't called stale")


def _is_too_large(made: Made, plan: Plan) -> bool:
    """Whether a call was rejected for its size, or came behind such a one, which ends the
    connection.
    """
    call = made.call
    limit = plan.settings["passthrough"].get("max_body", call.size)
    rejected = made.status == 413 or (not made.status and made.number > call.number)
    return rejected and call.what == RECORDING and call.size > limit - 100


def _is_known_well(made: Made, evidence: Evidence, caller: Caller) -> bool:
    """Whether a call has come through since anything went wrong: until then one call at a time
    tries it, and others are turned away.
    """
    troubles = [act.at for act in evidence.plan.acts if isinstance(act, Trouble)]
    last = max((at for at in troubles if at <= made.began), default=None)
    return last is None or any(
        last <= other.began and other.at <= made.began and other.of_service and other.status < 500
        for other in caller.made
        if other.call.what != DEFINITIONS  # they come from memory, too
    )


def _is_quiet(made: Made, evidence: Evidence, where: str) -> bool:
    """Whether there is nothing that could keep a call from its answer."""
    for act in evidence.plan.acts:
        if isinstance(act, Hold) or (isinstance(act, Weathered) and act.latency > 0.1):
            return False
        if (
            isinstance(act, Trouble)
            and act.where in (where, MEMORY)
            and act.at <= made.at
            and act.until + AFTERMATH >= made.began
        ):
            return False
    return evidence.runs(made.began, made.at)
