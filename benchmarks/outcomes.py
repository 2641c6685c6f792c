"""Memory by outcome: large bodies that are rejected, dropped or accepted, one outcome after
another, each with a daemon of its own whose upstream is down or up. Whatever becomes of a request,
its body must be gone afterwards.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from benchmarks.bodies import API_KEY
from benchmarks.processes import BenchmarkError, Program, pinned
from benchmarks.targets import Machine, Target
from benchmarks.upstream import upstream

NAME: Final = "memory-outcomes"
REQUESTS: Final = 5000
SECONDS: Final = 60.0
"""An outcome whose requests take longer has fewer."""
BUFFER_BYTES: Final = 16_000_000
ALLOWANCE: Final = 100_000_000
"""Resident bytes that may be taken beside the buffer."""
LOOK_EVERY: Final = 0.05
"""Seconds between two looks at the memory."""
AFTER: Final = 1.0
"""Seconds after the last request when memory is measured again."""

_FORM: Final = "Content-Type: application/x-www-form-urlencoded"
_GZIP: Final = "Content-Encoding: gzip"
_RULES: Final = json.dumps([{"match": {"event": "none"}, "drop": True}])
_ALSO_TO_TWO: Final = frozenset(
    {
        *("full", "full, on disk", "full, large", "drop newest", "drop oldest"),
        *("accepted", "large", "dead letters"),
    }
)
"""What the buffers of several destinations have a part in."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One kind of request and its outcome."""

    name: str
    request: bytes
    settings: Mapping[str, str] = field(default_factory=dict)
    """By the names of variables, without their prefix."""
    is_down: bool = True
    """Whether the upstream is."""
    aborts: bool = False
    """Whether the sender leaves before the end of its request."""
    share: float = 1.0
    """Of the requests, for what is slow."""
    copies: int = 1
    """Destinations, each of which gets all events and has a buffer of its own."""


@dataclass(frozen=True, slots=True)
class OutcomeMemory:
    """What an outcome took, in resident bytes."""

    name: str
    requests: int
    statuses: Mapping[int, int]
    begin: int
    highest: int
    final: int
    copies: int = 1

    @property
    def allowed(self) -> int:
        """What it may take: its buffers, and as much as any daemon beside them."""
        return self.copies * BUFFER_BYTES + ALLOWANCE


@dataclass(frozen=True, slots=True)
class OutcomesResult:
    """All of them."""

    name: str
    outcomes: list[OutcomeMemory]

    @property
    def good(self) -> bool:
        """Whether none took more than it may."""
        return all(outcome.highest < outcome.allowed for outcome in self.outcomes)


def outcomes() -> list[Outcome]:
    """What can be had over HTTP."""
    text = _batch(30)
    large = _batch(150)
    plain = _post("/batch/", text)
    chunk = b"%x\r\n%b\r\n" % (len(text), text)
    chunks = b"POST /batch/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    nameless = _batch(30, name="")
    never = {"BUFFER__MAX_BYTES": "1GiB"}
    alone = [
        Outcome("full", plain),
        Outcome("full, gzip", _post("/batch/", gzip.compress(_batch(90)), _GZIP)),
        Outcome("full, form", _post("/e/", b"data=" + quote(text).encode(), _FORM)),
        Outcome("full, rules", plain, {"RULES": _RULES}),
        Outcome("full, on disk", plain, {"BUFFER__KIND": "disk"}),
        Outcome("full, large", _post("/batch/", large), share=0.04),
        Outcome("drop newest", plain, {"BUFFER__WHEN_FULL": "drop_newest"}),
        Outcome("drop oldest", plain, {"BUFFER__WHEN_FULL": "drop_oldest"}),
        Outcome("dropped by rule", plain, {"RULES": _RULES.replace("none", "*")}),
        Outcome("accepted", plain, is_down=False),
        Outcome("delivered", plain, {"BUFFER__ACK": "delivered"}, is_down=False),
        Outcome("large", _post("/batch/", large), is_down=False, share=0.04),
        Outcome(
            "not delivered in time",
            plain,
            {"BUFFER__ACK": "delivered", "BUFFER__ACK_TIMEOUT": "100ms"},
            share=0.02,
        ),
        Outcome("dead letters", _post("/batch/", nameless), {"DEAD_LETTERS__MAX_BYTES": "16MB"}),
        Outcome("no JSON", _post("/batch/", text[:-2])),
        Outcome("unknown key", plain, {"SOURCES__HTTP__API_KEYS": '["phc_other"]'}),
        Outcome("unknown path", _post("/nowhere", text)),
        Outcome("gzip too large", _post("/batch/", gzip.compress(b" " * 21_000_000), _GZIP)),
        Outcome("chunks too large", chunks + chunk * 71, never, share=0.02),
        Outcome("invalid chunks", chunks + chunk * 10 + b"zz\r\n", share=0.2),
        Outcome("aborted", plain, aborts=True),
        Outcome("passed through", _post("/flags/", text), is_down=False),
        Outcome("passed through in vain", _post("/flags/", text)),
    ]
    return alone + [
        replace(outcome, name=f"{outcome.name}, to two", copies=2)
        for outcome in alone
        if outcome.name in _ALSO_TO_TWO
    ]


def measure_outcomes(target: Target, machine: Machine, requests: int) -> OutcomesResult:
    """Have all of them, with at most `requests` each. Blocks. Raises `BenchmarkError`."""
    return OutcomesResult(
        NAME, [_measure(target, machine, outcome, requests) for outcome in outcomes()]
    )


def outcomes_table(result: OutcomesResult) -> str:
    """The figures, one outcome a line."""
    lines = [
        f"{'outcome':24} {'requests':>8}  {'start':>6} {'highest':>8} {'final':>6} MB  answers"
    ]
    for outcome in result.outcomes:
        figures = [round(size / 1e6) for size in (outcome.begin, outcome.highest, outcome.final)]
        answers = ", ".join(f"{status or 'none'}: {n}" for status, n in outcome.statuses.items())
        lines.append(
            f"{outcome.name:24} {outcome.requests:8,}  "
            f"{figures[0]:6} {figures[1]:8} {figures[2]:6}     "
            f"{answers}{'' if outcome.highest < outcome.allowed else '  TOO MUCH'}"
        )
    verdict = "good" if result.good else "NOT GOOD"
    allowed = (
        f"at most {ALLOWANCE / 1e6:.0f} MB beside the buffers, of {BUFFER_BYTES / 1e6:.0f} MB for "
        "each destination, are allowed"
    )
    return "\n".join([*lines, f"{allowed}: {verdict}"])


def _measure(target: Target, machine: Machine, outcome: Outcome, requests: int) -> OutcomeMemory:
    settings = {f"FORWARDER_{name}": value for name, value in outcome.settings.items()}
    if outcome.copies > 1:
        settings |= target.copying(outcome.copies, "none")
    with contextlib.ExitStack() as stack:
        if not outcome.is_down:
            stack.enter_context(upstream(target.sink_port, machine.load_core))
        program = stack.enter_context(
            target.running(machine.target_core, max_bytes=str(BUFFER_BYTES), more=settings)
        )
        stack.enter_context(pinned(machine.load_core))
        begin = program.memory()
        statuses: Counter[int] = Counter()
        highest = begin
        for size in _sending(
            target.port, outcome, program, int(requests * outcome.share), statuses
        ):
            highest = max(highest, size)
        time.sleep(AFTER)
        program.check()
        final = program.memory()
        program.kill()  # else it would try to deliver what it has
    return OutcomeMemory(
        outcome.name,
        statuses.total(),
        dict(sorted(statuses.items())),
        begin,
        max(highest, final),
        final,
        outcome.copies,
    )


def _sending(
    port: int, outcome: Outcome, program: Program, requests: int, statuses: Counter[int]
) -> Iterator[int]:
    """Send them one after the other; the memory, every now and then."""
    until = time.monotonic() + SECONDS
    due = 0.0
    connection: socket.socket | None = None
    for _ in range(requests):
        if (now := time.monotonic()) > until:
            break
        if now > due:
            due = now + LOOK_EVERY
            yield program.memory()
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        status, ends = _exchange(connection, outcome)
        statuses[status] += 1
        if ends:
            connection.close()
            connection = None
    if connection is not None:
        connection.close()


def _exchange(connection: socket.socket, outcome: Outcome) -> tuple[int, bool]:
    """The status of the answer (0: none), and whether the connection is over."""
    if outcome.aborts:
        connection.sendall(outcome.request[: len(outcome.request) // 2])
        return 0, True
    try:
        connection.sendall(outcome.request)
    except OSError:
        return 0, True
    answer = b""
    try:
        while b"\r\n\r\n" not in answer:
            part = connection.recv(65536)
            if not part:
                return 0, True
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += connection.recv(65536)
    except OSError:
        return 0, True
    if not head.startswith(b"HTTP/1.1 "):
        raise BenchmarkError(f"this is no answer: {answer[:100]!r}")
    return int(head[9:12]), b"connection: close" in lines


def _post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _batch(events: int, name: str = "seen") -> bytes:
    """A batch of events of 10 KB each."""
    event = {"event": name, "distinct_id": "ann", "properties": {"p": "x" * 10_000}}
    return json.dumps({"api_key": API_KEY, "batch": [event] * events}).encode()
