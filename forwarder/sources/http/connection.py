"""One sender's connection: bytes to requests, the hottest code of forwarder.

A request that comes whole, with a head that was seen before, goes straight to the intake
(`KnownHead`). One of the usual kind (POST on a known path, HTTP/1.1, one Host, a body with a
length) needs little more than its parser; nothing is kept of its head but what decoding needs, and
a body that came in one piece is handed on as it is. For the others `_examine` asks the rules in
`protocol/request.py`.

Invariants: nothing is parsed after the request that gets the last answer; answers are written in
the order of the requests, whether the intake acknowledges at once or later (`answer_queue.py`); an
exception from the intake that it may not raise is answered 500, logged, and ends the connection. A
connection is among `ListenerState.connections` from `connection_made` to `connection_lost`, and
what it adds to `Headroom` it takes away again. A request that is passed through is cancelled when
its connection ends before it is complete.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias, cast

import structlog
from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from forwarder.core.connection_loads import WorkerLoad
from forwarder.core.garbage import COUNTED_FROM, note_body
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import Incoming, OtlpHead, RequestIntake, V1Head
from forwarder.core.shares import Headroom, Pool
from forwarder.sources.http.addresses import ClientAddresses
from forwarder.sources.http.passthrough.allowed import PassedRequest, PassedRoute
from forwarder.sources.http.passthrough.exchange import PassedBody, PassedExchange
from forwarder.sources.http.passthrough.service import PassThrough
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answer_queue import MOST_PENDING, AnswerQueue, answer_to
from forwarder.sources.http.protocol.answers import (
    ACCEPTED,
    ACCEPTED_SILENTLY,
    RESULTS_PENDING,
    Cors,
    HttpAnswer,
    Rejection,
)
from forwarder.sources.http.protocol.lifecycle import (
    BODY,
    CLOSING,
    ENDING,
    HEAD,
    IDLE,
    NEW,
    TURN_BYTES,
    Lifecycle,
)
from forwarder.sources.http.protocol.limits import (
    RECEIVING_RETRY_AFTER,
    REJECTED_CONNECTIONS,
    SMALL_BODY,
    HttpPolicy,
)
from forwarder.sources.http.protocol.request import (
    BodyBuffer,
    RequestHead,
    answer_if_no_events,
    answer_if_not_passed,
    parse_ack_level,
    rejection,
)
from forwarder.sources.http.protocol.routes import Route, Routes, is_beacon

log = structlog.get_logger(__name__)

_POST: Final = b"POST"
_DRAINING: Final = answers.unavailable(
    "This forwarder is shutting down.", RECEIVING_RETRY_AFTER, Rejection.DRAINING
)
_TOO_MUCH: Final = answers.unavailable("Too much is being received.", RECEIVING_RETRY_AFTER)
_TOO_MANY_PENDING: Final = answers.unavailable(
    "Too many requests wait for their answers on this connection.", RECEIVING_RETRY_AFTER
)
_MEMORY_SHORT: Final = answers.unavailable(
    "Memory is short.", RECEIVING_RETRY_AFTER, Rejection.MEMORY_SHORT
)
TOO_MANY_CONNECTIONS: Final = answers.unavailable(
    "There are too many connections.", RECEIVING_RETRY_AFTER, Rejection.TOO_MANY_CONNECTIONS
)


MAX_KNOWN_HEADS: Final = 512
MAX_KNOWN_HEAD: Final = 2048
MAX_DIGITS: Final = 9

_LENGTH: Final = b"\r\nContent-Length: "
_LENGTH_IN_LOWER_CASE: Final = b"\r\ncontent-length: "


class _RejectRequest(Exception):
    """Raised in a callback: stop parsing, give this answer and end the connection."""

    def __init__(self, answer: HttpAnswer) -> None:
        self.answer = answer


class _StopParsing(Exception):
    """Raised in a callback: the last answer was given."""


class HttpConnection(asyncio.Protocol):
    """The parser of one connection, the request that is coming in, and the
    answers that are pending.
    """

    __slots__ = (
        "_accept",
        "_answers",
        "_body",
        "_counted",
        "_early",
        "_extra",
        "_feed",
        "_gathered",
        "_head",
        "_head_fed",
        "_heads",
        "_life",
        "_max_body",
        "_max_header_bytes",
        "_max_headers",
        "_method",
        "_own",
        "_parser",
        "_passed",
        "_passing",
        "_paths",
        "_peer",
        "_progress",
        "_query",
        "_recent",
        "_rejected",
        "_rememberable",
        "_route",
        "_stalled",
        "_stamp",
        "_state",
        "_upgrading",
        "_write",
        "on_header",
        "on_message_begin",
        "on_url",
    )

    _body: bytes
    """The first piece of the body, mostly all of it."""
    _gathered: BodyBuffer | PassedBody | None
    """The body in its place, if it comes in several pieces or needn't be kept."""
    _passed: PassedRoute | None
    """The route of the request that is coming in, if it is one that is passed through."""
    _passing: PassedExchange | None
    """The exchange whose request is coming in, if it is passed through."""
    _early: HttpAnswer | None
    """The answer that will be given whatever the body is."""
    _own: V1Head | OtlpHead | None
    """What the intake needs of the head in a protocol of its own."""

    def __init__(self, state: ListenerState) -> None:
        self._state = state

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the others, unless there are too many, of all senders or of this one."""
        state = self._state
        self._peer = peer = state.addresses.peer(transport.get_extra_info("peername"))
        self._life = Lifecycle(cast("asyncio.Transport", transport), last=state.ending)
        self._answers = AnswerQueue(self._life, peer.sender)
        self._write = self._life.write
        self._accept = state.accept
        self._paths = state.routes.by_path
        self._heads = state.heads[peer.trusted]
        self._stamp = peer.stamp
        self._max_body = state.policy.max_body
        self._max_headers = state.policy.max_headers
        self._max_header_bytes = state.policy.max_header_bytes
        self._head_fed = self._progress = self._stalled = 0
        self._counted = 0
        """Bytes of the body that is coming in that are in the headroom's account."""
        self._recent: KnownHead | None = None
        """The head of the connection's last request, if it was a known one."""
        self._rememberable: KnownHead | None = None
        """What was decided on the head of the request that was completed last,
        if it may be remembered.
        """
        self._upgrading = False
        self._head = head = RequestHead(behind_proxy=peer.trusted)
        self.on_message_begin = head.on_message_begin
        self.on_url = head.on_url
        self.on_header = head.on_header
        self._forget_request()
        self._open_parser()
        state.arriving.discard(self)
        state.connections[self] = None
        state.empty.clear()
        self._rejected = not state.places.acquire(peer.sender)
        if self._rejected:
            self._reject_connection()

    # How the connection was lost makes no difference.
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Leave nothing behind. The parser and what refers to it go at once, not
        when garbage is collected.
        """
        state = self._state
        self._life.phase = CLOSING
        self._release()
        self._answers.close()
        state.connections.pop(self, None)
        state.report_load()
        if self._rejected:
            state.rejecting -= 1
        else:
            state.places.release(self._peer.sender)
        if not state.connections:
            state.empty.set()
        self._forget_request()
        del self._parser, self._feed, self.on_message_begin, self.on_url, self.on_header

    def data_received(self, data: bytes) -> None:
        """Parse what came in, answer the requests that are complete."""
        if len(data) >= COUNTED_FROM:
            note_body(len(data))
        life = self._life
        if life.phase == IDLE:
            known = self._recent
            start = -1 if known is None else known.body_start(data)
            if known is None or start < 0:
                self._begin_request(data)
            elif len(data) - start > self._max_body or life.last:
                self._parse(data)
            else:
                self._accept_known(known, data[start:])
        elif life.phase < ENDING:
            self._parse(data)
        elif life.discard(len(data)):
            self._close()

    def pause_writing(self) -> None:
        """The sender doesn't read its answers: read nothing more from it."""
        self._life.stop_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._life.resume_writing()
        self._answers.resume_writing()

    def eof_received(self) -> bool:
        """The sender sends no more. Pending answers are still written; but over TLS, and if none
        is pending, this is the end.
        """
        if self._answers.end_streams() or not self._answers.pending or not self._life.half_close():
            return False
        self._release()
        return True

    # What the listener calls

    def check(self, now: float) -> None:
        """Called by each sweep: answer what the intake hasn't acknowledged in time, and end the
        connection if its time is over.
        """
        policy = self._state.policy
        life = self._life
        self._answers.expire(now, policy.answer_timeout)
        if not life.is_late(now, policy, self._received(), pending=bool(self._answers.pending)):
            return
        if life.phase == IDLE:
            self._close()
        elif life.phase == HEAD:
            self._reject(answers.HEADER_TIMEOUT)
        elif life.phase == BODY:
            self._reject(answers.BODY_TIMEOUT)
        else:
            life.abort()

    @property
    def is_busy(self) -> bool:
        """Whether a request is coming in, or an answer is pending."""
        return self._life.phase in (HEAD, BODY) or bool(self._answers.pending)

    def close_if_idle(self) -> None:
        """Close it if no request is coming in, and no answer is pending."""
        if self._life.phase == IDLE and not self._answers.pending:
            self._close()

    def end_with_next_answer(self, *, last: bool) -> None:
        """The next answer is the connection's last, or need not be."""
        self._life.last = last

    def abort(self) -> None:
        """Drop it."""
        self._answers.forget()
        self._life.abort()

    def _close(self) -> None:
        self._answers.forget()
        self._life.close()

    def _reject_connection(self) -> None:
        state = self._state
        state.rejected_connections += 1
        state.rejecting += 1
        if state.rejecting > REJECTED_CONNECTIONS:
            self._life.phase = CLOSING
            self._life.abort()
        else:
            self._reject(TOO_MANY_CONNECTIONS)

    # Bytes

    def _accept_known(self, known: KnownHead, body: bytes) -> None:
        """Accept a whole request with a head that was seen before."""
        incoming = known.incoming
        incoming.body = body
        incoming.client = self._stamp
        if known.forwarded_for or known.forwarded:
            incoming.client = self._state.addresses.client(
                self._peer, known.forwarded_for, known.forwarded
            )
        queue = self._answers
        self._life.since = NEW
        try:
            done = self._accept(incoming, queue.spare)
        except Exception as error:
            queue.send(known.route, answer_to(error), known.headers)
        else:
            if not done:
                queue.send_when_acknowledged(known.route, ACCEPTED, known.headers, known.accepted)
            elif queue.pending:
                queue.send(known.route, ACCEPTED, known.headers)
            else:
                known.route.accepted += 1
                self._write(known.accepted)
        finally:
            incoming.body = b""

    def _begin_request(self, data: bytes) -> None:
        """What comes now is not like the connection's last request: like one of another
        connection, or new.

        What was decided on a new head is kept if what came in was that one request: only then do
        its two parts add up.
        """
        end = data.find(b"\r\n\r\n") + 4
        key = split_head(data, end)
        known = self._heads.get(key) if key else None
        if known is not None and known is not self._recent:
            self._recent = known
            self.data_received(data)
            return
        self._rememberable = None
        self._parse(data)
        known = self._rememberable
        self._rememberable = None
        if (
            known is not None
            and key is not None
            and self._life.phase == IDLE
            and len(data) - end == self._head.content_length
        ):
            remember(self._heads, key, known)

    def _open_parser(self) -> None:
        self._parser = HttpRequestParser(self)
        self._feed = self._parser.feed_data

    def _parse(self, data: bytes) -> None:
        upgrade = -1
        try:
            self._feed(data)
        except HttpParserUpgrade as error:
            upgrade = error.args[0]
        except HttpParserError as error:
            self._fail(error)
        if upgrade >= 0:
            self._ignore_upgrade(memoryview(data)[upgrade:])
        if self._head.begun and self._life.phase < ENDING:
            self._wait_for_more(len(data))

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """The parser stopped because it takes what follows an upgrade request for another
        protocol's.

        Never called while an exception is handled: that one would take the place of the cause that
        the parser attaches to the next.
        """
        upgrade = 0
        while upgrade >= 0:
            rest = rest[upgrade:]
            upgrade = -1
            head = self._head.without_upgrade(
                self._parser.get_method(), keep_alive=self._parser.should_keep_alive()
            )
            self._open_parser()
            try:
                self._feed(head)
                self._feed(rest)
            except HttpParserUpgrade as error:
                upgrade = error.args[0]
            except HttpParserError as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The parser stopped for good. What it raised is kept nowhere: its frames hold what came
        in.
        """
        cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
        if isinstance(cause, _RejectRequest):
            self._reject(cause.answer)
        elif self._life.phase >= ENDING:
            return
        elif cause is None and self._parser.get_method() == b"PRI":  # HTTP/2's connection preface
            self._reject(answers.VERSION_NOT_SUPPORTED)
        elif cause is None:
            self._reject(answers.bad_request(f"This is not HTTP as it should be: {error}."))
        else:
            log.error("a request could not be answered", exc_info=cause)
            self._reject(answers.INTERNAL_ERROR)

    def _wait_for_more(self, size: int) -> None:
        """A request is not complete yet: is what there is of it, and of all
        others, still within bounds?
        """
        life = self._life
        if life.phase == IDLE:
            life.phase = HEAD
            life.since = NEW
            self._head_fed = 0
        elif life.phase == HEAD:
            self._head_fed += size
            if self._head_fed > self._max_header_bytes + self._state.policy.max_url:
                self._reject(answers.HEADER_TOO_LARGE)
        else:
            self._watch_body(size)

    def _watch_body(self, size: int) -> None:
        received = self._received()
        if received == self._progress:
            self._stalled += size  # chunk extensions or a trailer
            if self._stalled > self._max_header_bytes:
                self._reject(answers.HEADER_TOO_LARGE)
            return
        self._progress = received
        self._stalled = 0
        if self._early is not None or self._passing is not None:
            return
        headroom = self._state.headroom
        queue = self._answers
        if not self._counted:
            queue.sender = self._sender_of_request()
        headroom.add(queue.sender, received - self._counted)
        self._counted = received
        if received > SMALL_BODY and headroom.exceeded(queue.sender):
            self._reject(_TOO_MUCH)

    # The parser's callbacks; those of the head are `RequestHead`'s

    def on_headers_complete(self) -> None:
        """The head is complete: decide what can be decided without the body."""
        life = self._life
        if life.phase >= ENDING:
            raise _StopParsing
        if len(self._answers.pending) >= MOST_PENDING:
            raise _RejectRequest(_TOO_MANY_PENDING)
        head = self._head
        parser = self._parser
        route = self._paths.get(head.url)
        unusual = False
        if route is None:
            route, self._query = self._state.routes.find(head.url)
            unusual = (
                route is self._state.routes.other or len(head.url) > self._state.policy.max_url
            )
        if route.protocol is not None:
            route, self._own, self._extra = route.begin(head.content_type, head.lines)
        self._route = route
        if (
            unusual
            or head.rare
            or head.hosts != 1
            or len(head.lines) > self._max_headers
            or head.size > self._max_header_bytes
            or head.content_length > self._max_body
            or parser.get_method() != _POST
            or not parser.should_keep_alive()
            or life.last
            or self._state.memory_short
        ):
            self._examine()
        life.phase = BODY
        life.since = NEW
        # what came with the head counts for nothing: it may be of requests before it
        self._progress = -1
        self._stalled = 0

    def _examine(self) -> None:
        """Decide on a head that is not usual."""
        head = self._head
        parser = self._parser
        life = self._life
        version = parser.get_http_version()
        method = self._method = parser.get_method()
        rejected = rejection(head, version, self._state.policy)
        if rejected is not None:
            raise _RejectRequest(rejected)
        self._upgrading = parser.should_upgrade() and method != b"CONNECT"
        if self._upgrading:
            return
        life.last = life.last or not parser.should_keep_alive()
        if version == "1.0" and not life.last:
            self._extra += answers.KEEP_ALIVE
        known = self._route is not self._state.routes.other
        passed = None if known else self._find_passed(head.url)
        if passed is not None:
            self._route = passed.route
        if head.content_length > self._body_limit():
            raise _RejectRequest(answers.BODY_TOO_LARGE)
        self._early = self._early_answer(head, method, known=known)
        if method == b"CONNECT" or (self._early is _DRAINING and head.has_body):
            raise _RejectRequest(self._early or answers.METHOD_NOT_ALLOWED)
        if b"transfer-encoding" in head.rare:
            head.ignore_trailer()
        if passed is not None and self._early is None:
            if version == "1.0":
                # the end of the answer may have to be the connection's
                life.last = True
                self._extra = b""
            self._early = self._pass_through(passed, chunks_understood=version == "1.1")
        if self._passing is not None:
            self._gathered = self._passing.body
        elif head.has_body and (self._early is not None or b"transfer-encoding" in head.rare):
            self._gathered = BodyBuffer(keep=self._early is None)
        if b"expect" in head.rare and version == "1.1":
            self._meet_expectation(head.rare[b"expect"])

    def _early_answer(self, head: RequestHead, method: bytes, *, known: bool) -> HttpAnswer | None:
        """The answer that is clear whatever the body is; None if there is none yet."""
        if self._state.draining:
            return _DRAINING
        passed = self._passed
        early = (
            answer_if_no_events(method, head.url, known=known)
            if passed is None
            else answer_if_not_passed(method, reads=passed.reads)
        )
        if early is None and self._is_loop(head):
            return answers.LOOP_DETECTED
        if early is None and passed is None and self._state.memory_short:
            return _MEMORY_SHORT
        return early

    def _is_loop(self, head: RequestHead) -> bool:
        path = head.path
        own = self._state.path
        return path is not None and own is not None and own.is_loop(path)

    def _find_passed(self, url: bytes) -> PassedRoute | None:
        """The route of a target that is passed through."""
        state = self._state
        self._passed = (
            None
            if state.passthrough is None
            else state.passthrough.allowed.find(state.routes.target(url))
        )
        return self._passed

    def _pass_through(self, passed: PassedRoute, *, chunks_understood: bool) -> HttpAnswer | None:
        """Pass the request through whose head has come in; or its answer, if that is
        clear already.
        """
        head = self._head
        state = self._state
        peer = self._peer
        request = PassedRequest(
            route=passed,
            method=self._method,
            target=state.routes.target(head.url),
            lines=tuple(head.lines),
            content_length=None
            if b"transfer-encoding" in head.rare
            else max(0, head.content_length),
            chunks_understood=chunks_understood,
            origin=head.origin,
            path="" if state.path is None else state.path.after(head.path),
            peer=peer.text,
            sender=self._sender_of_request(),
        )
        service = state.passthrough
        begun = (
            answers.NOT_FOUND
            if service is None
            else service.begin(request, self._answers, self._life, state.headroom)
        )
        if isinstance(begun, HttpAnswer):
            return begun
        self._passing = begun
        return None

    def _meet_expectation(self, expected: bytes) -> None:
        """Send 100 to a sender that waits for it, unless the answer is clear already."""
        if expected.strip().lower() != b"100-continue":
            raise _RejectRequest(answers.EXPECTATION_FAILED)
        if not self._head.has_body:
            return
        if self._early is not None:
            raise _RejectRequest(self._early)
        if self._state.headroom.exceeded(self._sender_of_request()):
            raise _RejectRequest(_TOO_MUCH)
        self._answers.send_interim(answers.CONTINUE)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, mostly all of it."""
        if self._body or self._gathered is not None:
            self._gather(data)
        else:
            self._body = data

    def _gather(self, data: bytes) -> None:
        gathered = self._gathered
        if gathered is None:
            gathered = self._gathered = BodyBuffer(keep=True)
            gathered.add(self._body)
        gathered.add(data)
        if gathered.length > self._body_limit():
            raise _RejectRequest(answers.BODY_TOO_LARGE)
        if gathered.length % TURN_BYTES < len(data):  # it has passed a multiple
            self._life.let_others()

    def _body_limit(self) -> int:
        """Bytes that the body of the request that is coming in may have."""
        service = self._state.passthrough
        return self._max_body if self._passed is None or service is None else service.max_body

    def on_message_complete(self) -> None:
        """The request is complete: offer it, and answer."""
        life = self._life
        if self._upgrading:
            self._upgrading = False
            life.phase = IDLE
            return
        head = self._head
        if self._passing is not None:
            self._complete_passing(self._passing)
            return
        answer = self._early
        done = True
        if answer is None:
            answer, done = self._offer(head)
        headers = (
            self._extra + self._cors_headers() if head.rare or head.origin or self._extra else b""
        )
        life.phase = IDLE
        life.since = NEW
        head.begun = False
        if done:
            self._answers.send(self._route, answer, headers, bodiless=self._method == b"HEAD")
        else:
            results = None if self._own is None else self._own.results
            self._answers.send_when_acknowledged(self._route, answer, headers, results=results)
        if answer is ACCEPTED and not life.last and self._may_be_remembered(head):
            self._rememberable = self._known_head(head, headers)
        head.lines.clear()
        self._forget_request()

    def _complete_passing(self, exchange: PassedExchange) -> None:
        route = self._route
        headers = self._cors_headers()
        self._life.phase = IDLE
        self._life.since = NEW
        self._head.begun = False
        self._head.lines.clear()
        self._forget_request()
        exchange.complete(route, headers)

    def _offer(self, head: RequestHead) -> tuple[HttpAnswer, bool]:
        """The request's answer, and whether it can be written; else the
        intake acknowledges it later.
        """
        try:
            done = self._accept(self._incoming(head), self._answers.spare)
        except Exception as error:
            return answer_to(error), True
        if self._own is not None and self._own.results is not None:
            return self._route.answer_with(self._own.results) if done else RESULTS_PENDING, done
        return ACCEPTED_SILENTLY if self._query and is_beacon(self._query) else ACCEPTED, done

    def _incoming(self, head: RequestHead) -> Incoming:
        body = self._body if self._gathered is None else cast("BodyBuffer", self._gathered).joined()
        if self._counted:
            self._release()
        client = self._stamp
        if head.forwarded_for or head.forwarded:
            client = self._state.addresses.client(self._peer, head.forwarded_for, head.forwarded)
        ack = None if head.ack is None else parse_ack_level(head.ack)
        encoding = head.content_encoding
        event = self._route.event
        return Incoming(
            body,
            self._query,
            head.content_type,
            encoding,
            client,
            ack=ack,
            head=self._own,
            path=head.path,
            event=event,
        )

    def _may_be_remembered(self, head: RequestHead) -> bool:
        fits = head.size + MAX_DIGITS <= self._max_header_bytes  # with the longest length too
        return (
            fits and self._own is None and head.content_length >= 0 and b"expect" not in head.rare
        )

    def _known_head(self, head: RequestHead, headers: bytes) -> KnownHead:
        """What was decided on the head of an accepted request."""
        ack = None if head.ack is None else parse_ack_level(head.ack)
        route = self._route
        encoding = head.content_encoding
        incoming = Incoming(
            b"",
            self._query,
            head.content_type,
            encoding,
            ack=ack,
            path=head.path,
            event=route.event,
        )
        accepted = ACCEPTED.render(headers)
        return KnownHead(
            route,
            incoming,
            forwarded_for=head.forwarded_for,
            forwarded=head.forwarded,
            headers=headers,
            accepted=accepted,
        )

    # The request that is coming in

    def _forget_request(self) -> None:
        self._body = b""
        self._gathered = None
        self._passing = None
        self._passed = None
        self._early = None
        self._route = self._state.routes.other
        self._query = b""
        self._method = _POST
        self._extra = b""
        self._own = None

    def _received(self) -> int:
        """Bytes of the body that have arrived."""
        return len(self._body) if self._gathered is None else self._gathered.length

    def _release(self) -> None:
        """What there is of a body goes with its place in the account: it must not be held while a
        rejected sender lingers.
        """
        if self._counted:
            self._state.headroom.add(self._answers.sender, -self._counted)
            self._counted = 0
        self._body = b""
        self._gathered = None
        if self._passing is not None:
            exchange = self._passing
            self._passing = None
            exchange.cancel()

    def _reject(self, answer: HttpAnswer) -> None:
        """Give the last answer, to a request that isn't read to its end."""
        self._answers.send_last(
            self._route, answer, self._cors_headers(), bodiless=self._method == b"HEAD"
        )
        self._release()

    def _sender_of_request(self) -> str:
        """Who shares (`core/shares.py`), for the request whose head has come in."""
        return self._state.addresses.sender(
            self._peer, self._head.forwarded_for, self._head.forwarded
        )

    def _cors_headers(self) -> bytes:
        head = self._head
        cors = self._state.cors
        if not head.origin:
            return b""
        if self._method == b"OPTIONS" and b"access-control-request-method" in head.rare:
            methods = b"POST, OPTIONS" if self._passed is None else b"GET, POST, OPTIONS"
            return cors.preflight(
                head.origin, head.rare.get(b"access-control-request-headers", b""), methods
            )
        protocol = self._route.protocol
        return cors.headers(head.origin, answers.EXPOSED if protocol is None else protocol.exposed)


class ListenerState:
    """What all connections of a listener have in common."""

    def __init__(
        self,
        policy: HttpPolicy,
        intake: RequestIntake,
        headroom: Headroom | None = None,
        passthrough: PassThrough | None = None,
        *,
        path: ForwarderPath | None = None,
        load: WorkerLoad | None = None,
    ) -> None:
        self.policy = policy
        self.path = path
        """What recognizes a loop, and is added to what is passed through; None: nothing is checked
        or added.
        """
        self.load = load
        """Where other workers see how many connections this one has; None: it is alone."""
        self.passthrough = passthrough
        """Where requests go that bring no events; None: they are rejected."""
        self.headroom = headroom or Headroom(policy.max_receiving)
        self.accept = intake.accept
        self.routes = Routes(policy.path_prefixes, otlp=policy.otlp)
        self.cors = Cors(policy.cors_origins)
        self.addresses = ClientAddresses(policy.trusted_proxies, stamp=policy.stamp_ip)
        self.heads: tuple[KnownHeads, KnownHeads] = ({}, {})
        """What was decided on heads, of untrusted peers and of trusted ones."""
        self.arriving: set[HttpConnection] = set()
        """Those that were accepted and aren't made yet, because of a TLS handshake mostly."""
        self.connections: dict[HttpConnection, None] = {}
        """In the order in which they were made: so they are ended."""
        self.places = Pool(policy.max_connections)
        """Of the connections that aren't rejected; by the peer's address: a proxy's connections
        are its own.
        """
        self.rejected_connections = 0
        """Connections over the limit, since the start."""
        self.rejecting = 0
        """Connections over the limit that haven't ended yet."""
        self.ending = False
        """Whether each answer is its connection's last."""
        self.draining = False
        """Whether new requests are rejected, too."""
        self.memory_short = False
        """Whether requests with events are rejected before their bodies are received."""
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()

    def drain(self, *, draining: bool) -> None:
        """From now on each answer is its connection's last, and new requests
        are rejected; or no longer.
        """
        self.draining = draining
        self.end_connections(ending=draining)

    def end_connections(self, *, ending: bool = True) -> None:
        """From now on each answer is its connection's last; or no longer."""
        self.ending = ending
        for connection in self.connections:
            connection.end_with_next_answer(last=ending)

    def report_load(self) -> None:
        """Show other workers how many connections there are."""
        if self.load is not None:
            self.load.write(len(self.arriving) + len(self.connections))

    def sweep(self, now: float) -> None:
        """End what has waited for too long."""
        self.report_load()  # after a pause for which this worker was left out
        for connection in list(self.connections):
            connection.check(now)


class KnownHead:
    """A head that was parsed before, and what was decided on it.

    A sender's requests differ in their bodies, seldom in more of their heads than the length. A
    head is parsed once; when the same bytes come again, but for the digits of the length, with a
    body of exactly that length, the request is complete and what was decided stands.

    Invariants: a head is remembered only if its request brought events, had a length, and leaves
    the connection open; it is looked up only between two requests, where what the parser makes of
    bytes depends on the bytes alone. The digits that are left out are those of the one
    Content-Length header: in a head that the strict parser accepts, a line begins nowhere but
    after CRLF, and a second length is rejected. Heads from behind trusted proxies and others are
    kept apart, because they are read differently. `remember` bounds number and size.
    """

    __slots__ = (
        "accepted",
        "forwarded",
        "forwarded_for",
        "headers",
        "incoming",
        "prefix",
        "prefix_size",
        "route",
        "suffix",
        "suffix_size",
    )

    def __init__(
        self,
        route: Route,
        incoming: Incoming,
        *,
        forwarded_for: bytes,
        forwarded: bytes,
        headers: bytes,
        accepted: bytes,
    ) -> None:
        """`headers`: lines that every answer to it has; `accepted`: the whole
        answer when it is accepted.
        """
        self.route = route
        self.incoming = incoming
        """Filled in anew for each request: the intake keeps none of it."""
        self.forwarded_for = forwarded_for
        self.forwarded = forwarded
        self.headers = headers
        self.accepted = accepted
        self.prefix = self.suffix = b""
        self.prefix_size = self.suffix_size = 0

    def set_key(self, prefix: bytes, suffix: bytes) -> None:
        """The head's bytes before and after the digits of its length."""
        self.prefix = prefix
        self.suffix = suffix
        self.prefix_size = len(prefix)
        self.suffix_size = len(suffix)

    def body_start(self, data: bytes) -> int:
        """Where the body begins in `data`, if it is this head with a body of just the length that
        it declares; else -1.
        """
        start = self.prefix_size
        if not data.startswith(self.prefix):
            return -1
        stop = data.find(b"\r", start, start + MAX_DIGITS + 1)
        if stop < 0 or not data.startswith(self.suffix, stop):
            return -1
        digits = data[start:stop]
        end = stop + self.suffix_size
        return end if digits.isdigit() and len(data) - end == int(digits) else -1


KnownHeads: TypeAlias = dict[tuple[bytes, bytes], KnownHead]
"""Known heads by their bytes before and after the digits of the length."""


def split_head(data: bytes, end: int) -> tuple[bytes, bytes] | None:
    """The head `data[:end]` before and after the digits of its length; None if it has none that
    can be left out.
    """
    start = data.find(_LENGTH, 0, end)
    if start < 0:
        start = data.find(_LENGTH_IN_LOWER_CASE, 0, end)
        if start < 0:
            return None
    start += len(_LENGTH)
    stop = data.find(b"\r", start, end)
    if stop - start > MAX_DIGITS or not data[start:stop].isdigit():
        return None
    return data[:start], data[stop:end]


def remember(heads: KnownHeads, key: tuple[bytes, bytes], known: KnownHead) -> None:
    """Keep what was decided on a head; when there are too many, forget all of them first."""
    prefix, suffix = key
    if len(prefix) + len(suffix) > MAX_KNOWN_HEAD:
        return
    if len(heads) >= MAX_KNOWN_HEADS:
        heads.clear()
    known.set_key(prefix, suffix)
    heads[key] = known
