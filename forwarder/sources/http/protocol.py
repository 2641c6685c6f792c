"""Bytes to requests: the hottest code of forwarder.

A request that comes whole, with a head that was seen before, goes straight through (`known.py`). One of the usual kind (POST on a known
path, HTTP/1.1, one Host, a body with a length) needs little more than its parser; nothing is kept of its head but what decoding needs,
and a body that came in one piece is passed on as it is. For the others `_examine` asks the rules in `head.py`.

Invariants: nothing is parsed after the request that gets the last answer; answers are given in the order of the requests, whether the
intake answers at once or later (`answering.py`); an exception from the intake that it may not raise is answered 500, logged, and ends
the connection.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from forwarder.core.ports import Incoming, V1Head
from forwarder.sources.http import answers
from forwarder.sources.http.answering import answer_to
from forwarder.sources.http.answers import LATE_RESULTS, TAKEN, TAKEN_SILENTLY, Answer, Rejection
from forwarder.sources.http.body import Body
from forwarder.sources.http.connection import BODY, ENDING, HEAD, IDLE, NEW, Shared
from forwarder.sources.http.cors import EXPOSED
from forwarder.sources.http.head import Head, asked_level, other_than_pass, other_than_take, refusal
from forwarder.sources.http.known import MAX_DIGITS, KnownHead, remember, split_head
from forwarder.sources.http.limits import RECEIVING_RETRY_AFTER, SMALL_BODY
from forwarder.sources.http.passing import Passing
from forwarder.sources.http.passthrough.body import RequestBody
from forwarder.sources.http.passthrough.passage import Passage
from forwarder.sources.http.pending import MOST_PENDING
from forwarder.sources.http.routes import is_beacon
from forwarder.sources.http.v1 import EXPOSED_V1, echoed, v1_head

log = structlog.get_logger(__name__)

_POST: Final = b"POST"
_DRAINING: Final = answers.unavailable("This forwarder is shutting down.", RECEIVING_RETRY_AFTER, Rejection.DRAINING)
_TOO_MUCH: Final = answers.unavailable("Too much is being received.", RECEIVING_RETRY_AFTER)
_TOO_MANY_PENDING: Final = answers.unavailable("Too many requests wait for their answers on this connection.", RECEIVING_RETRY_AFTER)


class _Refused(Exception):
    """Raised in a callback: stop parsing, give this answer and end the connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class _Ended(Exception):
    """Raised in a callback: stop parsing, the last answer was given."""


class HttpProtocol(Passing):
    """One sender's connection: its parser, and the request in progress."""

    __slots__ = (
        "_body", "_early", "_extra", "_feed", "_gathered", "_head", "_head_fed", "_heads", "_max_body", "_max_header_bytes",
        "_max_headers", "_memorable", "_method", "_parser", "_paths", "_progress", "_query", "_recent", "_route", "_stalled",
        "_stamp", "_take", "_upgrading", "_v1", "on_header", "on_message_begin", "on_url",
    )

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._paths = shared.routes.by_path
        self._take = shared.take
        self._max_body = shared.policy.max_body
        self._max_headers = shared.policy.max_headers
        self._max_header_bytes = shared.policy.max_header_bytes
        self._head_fed = self._progress = self._stalled = 0
        self._upgrading = False
        self._recent: KnownHead | None = None
        """The head of the connection's last request, if it was a known one."""
        self._memorable: KnownHead | None = None
        """What was decided on the head of the request that was completed last, if it may be remembered."""
        self._stamp: str | None = None
        self._head = Head(behind_proxy=False)
        self._forget_request()

    def _forget_request(self) -> None:
        self._body = b""
        self._gathered: Body | RequestBody | None = None
        self._passage = None
        self._passed = None
        self._early: Answer | None = None
        """The answer that will be given whatever the body is."""
        self._route = self._shared.routes.other
        self._query = b""
        self._method = _POST
        self._extra = b""
        self._v1: V1Head | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `Answering.connection_made`."""
        super().connection_made(transport)
        self._stamp = self._peer.stamp
        self._heads = self._shared.heads[self._peer.trusted]
        self._head = head = Head(behind_proxy=self._peer.trusted)
        self.on_message_begin = head.on_message_begin
        self.on_url = head.on_url
        self.on_header = head.on_header
        self._open_parser()

    def _open_parser(self) -> None:
        self._parser = HttpRequestParser(self)
        self._feed = self._parser.feed_data

    def connection_lost(self, exc: Exception | None) -> None:
        """See `Answering.connection_lost`. The parser and what refers to it go at once, not when garbage is collected."""
        super().connection_lost(exc)
        self._forget_request()
        del self._parser, self._feed, self.on_message_begin, self.on_url, self.on_header

    # Bytes

    def data_received(self, data: bytes) -> None:
        """Parse what came in, answer the requests that are complete."""
        if self._phase == IDLE:
            known = self._recent
            start = -1 if known is None else known.body_start(data)
            if known is None or start < 0:
                self._begin_request(data)
            elif len(data) - start > self._max_body or self._last:
                self._parse(data)
            else:
                self._take_known(known, data[start:])
        elif self._phase < ENDING:
            self._parse(data)
        else:
            self._discard(len(data))

    def _parse(self, data: bytes) -> None:
        stop: Exception | None = None
        try:
            self._feed(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            stop = error
        if stop is not None:
            self._stopped(stop, data)
        if self._head.begun and self._phase < ENDING:
            self._wait_for_more(len(data))

    def _take_known(self, known: KnownHead, body: bytes) -> None:
        """A whole request with a head that was seen before."""
        incoming = known.incoming
        incoming.body = body
        incoming.client = self._stamp
        if known.forwarded_for or known.forwarded:
            incoming.client = self._shared.addresses.client(self._peer, known.forwarded_for, known.forwarded)
        self._since = NEW
        try:
            done = self._take(incoming, self._spare)
        except Exception as error:
            self._send(known.route, answer_to(error), known.headers)
        else:
            if not done:
                self._wait_for_intake(known.route, TAKEN, known.headers, known.taken)
            elif self._waiting:
                self._send(known.route, TAKEN, known.headers)
            else:
                known.route.taken += 1
                self._write(known.taken)
        finally:
            incoming.body = b""

    def _begin_request(self, data: bytes) -> None:
        """What comes now is not like the connection's last request: like one of another connection, or new.

        What was decided on a new head is kept if what came in was that one request: only then do its two parts add up.
        """
        end = data.find(b"\r\n\r\n") + 4
        key = split_head(data, end)
        known = self._heads.get(key) if key else None
        if known is not None and known is not self._recent:
            self._recent = known
            self.data_received(data)
            return
        self._memorable = None
        self._parse(data)
        known, self._memorable = self._memorable, None
        if known is not None and key is not None and self._phase == IDLE and len(data) - end == self._head.content_length:
            remember(self._heads, key, known)

    def _stopped(self, error: Exception, data: bytes) -> None:
        """The parser stopped: for good, or because it takes what follows an upgrade request for another protocol's.

        Never called while an exception is handled: that one would take the place of the cause that the parser attaches to the next.
        """
        rest = memoryview(data)
        while isinstance(error, HttpParserUpgrade):
            rest = rest[error.args[0] :]
            head = self._head.without_upgrade(self._parser.get_method(), keep_alive=self._parser.should_keep_alive())
            self._open_parser()
            try:
                self._feed(head)
                self._feed(rest)
            except (HttpParserError, HttpParserUpgrade) as again:
                error = again
            else:
                return
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
        if isinstance(cause, _Refused):
            self._refuse(cause.answer)
        elif self._phase >= ENDING:
            return
        elif cause is None and self._parser.get_method() == b"PRI":  # HTTP/2's connection preface
            self._refuse(answers.VERSION_NOT_SUPPORTED)
        elif cause is None:
            self._refuse(answers.bad_request(f"This is not HTTP as it should be: {error}."))
        else:
            log.error("A request could not be answered.", exc_info=cause)
            self._refuse(answers.INTERNAL_ERROR)

    def _wait_for_more(self, size: int) -> None:
        """A request is not complete yet: is what there is of it, and of all others, still within bounds?"""
        if self._phase == IDLE:
            self._phase, self._since, self._head_fed = HEAD, NEW, 0
        elif self._phase == HEAD:
            self._head_fed += size
            if self._head_fed > self._max_header_bytes + self._shared.policy.max_url:
                self._refuse(answers.HEADER_TOO_LARGE)
        else:
            self._watch_body(size)

    def _watch_body(self, size: int) -> None:
        received = self._received()
        if received == self._progress:
            self._stalled += size  # chunk extensions or a trailer
            if self._stalled > self._max_header_bytes:
                self._refuse(answers.HEADER_TOO_LARGE)
            return
        self._progress, self._stalled = received, 0
        if self._early is not None or self._passage is not None:
            return
        headroom = self._shared.headroom
        if not self._counted:
            self._sender = self._sender_of_request(self._head)
        headroom.add(self._sender, received - self._counted)
        self._counted = received
        if received > SMALL_BODY and headroom.exceeded(self._sender):
            self._refuse(_TOO_MUCH)

    def _release(self) -> None:
        """What there is of a body goes with its place in the account: it must not be held while a refused sender lingers."""
        super()._release()
        self._body = b""
        self._gathered = None
        if self._passage is not None:
            passage, self._passage = self._passage, None
            passage.cancel()

    def _received(self) -> int:
        return len(self._body) if self._gathered is None else self._gathered.length

    # The parser's callbacks; those of the head are `Head`'s

    def on_headers_complete(self) -> None:
        """The head is complete: decide what can be decided without the body."""
        if self._phase >= ENDING:
            raise _Ended
        if len(self._waiting) >= MOST_PENDING:
            raise _Refused(_TOO_MANY_PENDING)
        head = self._head
        parser = self._parser
        route = self._paths.get(head.url)
        unusual = False
        if route is None:
            route, self._query = self._shared.routes.find(head.url)
            unusual = route is self._shared.routes.other or len(head.url) > self._shared.policy.max_url
        self._route = route
        if route.v1:
            self._v1, self._extra = v1_head(head.lines), echoed(head.lines)
        if (
            unusual
            or head.rare
            or head.hosts != 1
            or len(head.lines) > self._max_headers
            or head.size > self._max_header_bytes
            or head.content_length > self._max_body
            or parser.get_method() != _POST
            or not parser.should_keep_alive()
            or self._last
        ):
            self._examine()
        self._phase, self._since = BODY, NEW
        self._progress, self._stalled = -1, 0  # what came with the head counts for nothing: it may be of requests before it

    def _examine(self) -> None:
        """Decide on a head that is not usual."""
        head, parser = self._head, self._parser
        version = parser.get_http_version()
        method = self._method = parser.get_method()
        refused = refusal(head, version, self._shared.policy)
        if refused is not None:
            raise _Refused(refused)
        self._upgrading = parser.should_upgrade() and method != b"CONNECT"
        if self._upgrading:
            return
        self._last = self._last or not parser.should_keep_alive()
        if version == "1.0" and not self._last:
            self._extra += answers.KEEP_ALIVE
        known = self._route is not self._shared.routes.other
        passed = None if known else self._find_passed(head.url)
        if passed is not None:
            self._route = passed.route
        if head.content_length > self._body_limit():
            raise _Refused(answers.BODY_TOO_LARGE)
        self._early = self._early_answer(head, method, known=known)
        if method == b"CONNECT" or (self._early is _DRAINING and head.has_body):
            raise _Refused(self._early or answers.METHOD_NOT_ALLOWED)
        if b"transfer-encoding" in head.rare:
            head.ignore_trailer()
        if passed is not None and self._early is None:
            if version == "1.0":
                self._last, self._extra = True, b""  # the end of the answer may have to be the connection's
            self._early = self._pass_on(passed, head, method, modern=version == "1.1")
        if self._passage is not None:
            self._gathered = self._passage.body
        elif head.has_body and (self._early is not None or b"transfer-encoding" in head.rare):
            self._gathered = Body(keep=self._early is None)
        if b"expect" in head.rare and version == "1.1":
            self._meet_expectation(head.rare[b"expect"])

    def _early_answer(self, head: Head, method: bytes, *, known: bool) -> Answer | None:
        """The answer that is clear whatever the body is; None if there is none yet."""
        if self._shared.draining:
            return _DRAINING
        passed = self._passed
        early = other_than_take(method, head.url, known=known) if passed is None else other_than_pass(method, reads=passed.reads)
        return answers.LOOP_DETECTED if early is None and self._is_loop(head) else early

    def _is_loop(self, head: Head) -> bool:
        path, own = head.path, self._shared.path
        return path is not None and own is not None and own.is_loop(path)

    def _meet_expectation(self, expected: bytes) -> None:
        """Tell a sender that waits for it to send the body, unless the answer is clear already."""
        if expected.strip().lower() != b"100-continue":
            raise _Refused(answers.EXPECTATION_FAILED)
        if not self._head.has_body:
            return
        if self._early is not None:
            raise _Refused(self._early)
        if self._shared.headroom.exceeded(self._sender_of_request(self._head)):
            raise _Refused(_TOO_MUCH)
        self._send_interim(answers.CONTINUE)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, mostly all of it."""
        if self._body or self._gathered is not None:
            self._gather(data)
        else:
            self._body = data

    def _gather(self, data: bytes) -> None:
        gathered = self._gathered
        if gathered is None:
            gathered = self._gathered = Body(keep=True)
            gathered.add(self._body)
        gathered.add(data)
        if gathered.length > self._body_limit():
            raise _Refused(answers.BODY_TOO_LARGE)

    def _body_limit(self) -> int:
        """Bytes that the body of the request that is coming in may have."""
        service = self._shared.passthrough
        return self._max_body if self._passed is None or service is None else service.max_body

    def on_message_complete(self) -> None:
        """The request is complete: offer it, and answer."""
        if self._upgrading:
            self._upgrading = False
            self._phase = IDLE
            return
        head = self._head
        if self._passage is not None:
            self._end_of_passed(self._passage)
            return
        answer, done = self._early, True
        if answer is None:
            answer, done = self._offer(head)
        headers = self._extra + self._cors_headers() if head.rare or head.origin or self._extra else b""
        self._phase, self._since, head.begun = IDLE, NEW, False
        if done:
            self._send(self._route, answer, headers, bodiless=self._method == b"HEAD")
        else:
            self._wait_for_intake(self._route, answer, headers, results=None if self._v1 is None else self._v1.results)
        if answer is TAKEN and not self._last and self._may_be_remembered(head):
            ack = None if head.ack is None else asked_level(head.ack)
            incoming = Incoming(
                b"", self._query, head.content_type, head.content_encoding, ack=ack, path=head.path, event=self._route.event
            )
            self._memorable = KnownHead(
                self._route,
                incoming,
                forwarded_for=head.forwarded_for,
                forwarded=head.forwarded,
                headers=headers,
                taken=answer.render(headers),
            )
        head.lines.clear()
        self._forget_request()

    def _end_of_passed(self, passage: Passage) -> None:
        route, headers = self._route, self._cors_headers()
        self._phase, self._since, self._head.begun = IDLE, NEW, False
        self._head.lines.clear()
        self._forget_request()
        self._complete_passage(passage, route, headers)

    def _may_be_remembered(self, head: Head) -> bool:
        fits = head.size + MAX_DIGITS <= self._max_header_bytes  # with the longest length too
        return fits and self._v1 is None and head.content_length >= 0 and b"expect" not in head.rare

    def _incoming(self, head: Head) -> Incoming:
        body = self._body if self._gathered is None else self._gathered.joined()
        if self._counted:
            self._release()
        client = self._stamp
        if head.forwarded_for or head.forwarded:
            client = self._shared.addresses.client(self._peer, head.forwarded_for, head.forwarded)
        ack = None if head.ack is None else asked_level(head.ack)
        encoding, event = head.content_encoding, self._route.event
        return Incoming(body, self._query, head.content_type, encoding, client, ack=ack, v1=self._v1, path=head.path, event=event)

    def _offer(self, head: Head) -> tuple[Answer, bool]:
        """The request's answer, and whether it can be given; else the intake tells `_spare` when."""
        try:
            done = self._take(self._incoming(head), self._spare)
        except Exception as error:
            return answer_to(error), True
        if self._v1 is not None and self._v1.results is not None:
            return answers.of_results(self._v1.results) if done else LATE_RESULTS, done
        return TAKEN_SILENTLY if self._query and is_beacon(self._query) else TAKEN, done

    def _refuse(self, answer: Answer) -> None:
        self._send_refusal(self._route, answer, self._cors_headers(), bodiless=self._method == b"HEAD")

    def _cors_headers(self) -> bytes:
        head, cors = self._head, self._shared.cors
        if not head.origin:
            return b""
        if self._method == b"OPTIONS" and b"access-control-request-method" in head.rare:
            methods = b"POST, OPTIONS" if self._passed is None else b"GET, POST, OPTIONS"
            return cors.preflight(head.origin, head.rare.get(b"access-control-request-headers", b""), methods)
        return cors.headers(head.origin, EXPOSED_V1 if self._route.v1 else EXPOSED)
