"""
One POST /pub or /mpub on a connection: from its head to the answer that has been written.

It stands where uvicorn has a cycle of its own, so that uvicorn's order of pipelined requests and
its graceful end hold for both kinds; it needs neither task nor future.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

from gateway.errors import GatewayError, InvalidRequest, Overloaded
from gateway.secret import Secret
from gateway.web.answers import Answer
from gateway.web.http_account import clock
from gateway.web.publish import Head, KnownPublish, PublishPlane
from gateway.web.publish_spans import PublishSpan, PublishSpans


class _Nobody:
    """What uvicorn wakes when a connection goes: here nobody waits."""

    def set(self) -> None:
        """Do nothing."""


class ExchangeOwner(Protocol):
    """The connection, as its exchanges see it."""

    plane: PublishPlane

    def write_continue(self) -> None:
        """Ask for the body."""

    def write_ok(self, exchange: Exchange) -> None:
        """Answer OK."""

    def write_answer(self, exchange: Exchange, answer: Answer) -> None:
        """Answer."""


class Exchange:
    """One request to publish; `begin` when it is its turn, `add` and `end` as its body comes."""

    __slots__ = (
        "_body",
        "_connection",
        "_failure",
        "_has_begun",
        "_held_bytes",
        "_secret",
        "_size_bytes",
        "_span",
        "began_at",
        "disconnected",
        "expects_continue",
        "head",
        "is_submitted",
        "keep_alive",
        "more_body",
        "response_complete",
    )

    message_event = _Nobody()

    def __init__(self, connection: ExchangeOwner, head: Head, *, keep_alive: bool = True) -> None:
        self.head = head
        self.began_at = clock()
        """When its head had come."""
        self.keep_alive = keep_alive
        """Whether another request may follow on the connection."""
        self.expects_continue = False
        """Whether the client sends the body only once it is asked to."""
        self.more_body = True
        """Whether a part of the body has not arrived."""
        self.response_complete = False
        """Whether the answer has been written."""
        self.is_submitted = False
        """Whether it has been found right and was given to the publisher."""
        self.disconnected = False
        """Whether nobody waits for the answer any more."""
        self._connection = connection
        self._span: PublishSpan | None = None
        """Where it has a trace."""
        self._has_begun = False
        self._failure: BaseException | None = None
        self._secret: Secret | None = None
        self._body: bytes | bytearray = b""
        self._size_bytes = 0
        self._held_bytes = 0

    def known(self) -> KnownPublish | None:
        """Return what holds for every request with the same head, None when nothing does."""
        if self.more_body or not (self.is_submitted and self.keep_alive):
            return None
        return self._connection.plane.known(self.head, self._secret)

    @property
    def left_bytes(self) -> int | None:
        """What is still to come of the body; None when nobody knows."""
        if not self.more_body:
            return 0
        if self.head.size_bytes is None or self.expects_continue:
            return None
        return self.head.size_bytes - self._size_bytes

    def begin(self) -> None:
        """Judge the head, and go on with what has arrived of the body: nothing is before it."""
        connection = self._connection
        self._has_begun = True
        spans = connection.plane.spans
        if spans is not None and (self.head.traceparent is not None or spans.draws()):
            self._trace(spans)
        try:
            self._secret = connection.plane.admit(self.head)
        except Exception as error:  # noqa: BLE001 - the caller is told of every one
            self._refuse(error)
            return
        if self._failure is not None:
            self._refuse(self._failure)
        elif not self.more_body or connection.plane.is_too_big(self.head, self._size_bytes):
            self._submit()
        elif self.expects_continue:
            self.expects_continue = False
            connection.write_continue()

    def publish_known(self, known: KnownPublish, body: bytes) -> None:
        """Be all of `begin`, `add` and `end`, for a head that needs no judging."""
        plane = self._connection.plane
        self.more_body = False
        spans = plane.spans
        if spans is not None and spans.draws():
            self._trace(spans)
        try:
            plane.publish_known(known, body, self._done)
        except Exception as error:  # noqa: BLE001 - the caller is told of every one
            self._refuse(error)
            return
        self.is_submitted = True
        if self._span is not None:
            self._span.send(known.topic, len(body))

    def add(self, chunk: bytes) -> None:
        """Take the next part of the body; of one that has been refused it is thrown away."""
        self._size_bytes += len(chunk)
        if self.response_complete:
            return
        if not self._body:
            self._body = chunk
        else:
            # Not a list: a body may come in pieces of one byte, and each would be an object.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += chunk
        if self._size_bytes == self.head.size_bytes or not self._has_begun:
            # Whole, or read together with what is before it: nothing that lasts.
            return
        try:
            self._connection.plane.publisher.hold(len(chunk))
        except Overloaded as error:
            self._refuse(error)
            return
        self._held_bytes += len(chunk)
        if self._connection.plane.is_too_big(self.head, self._size_bytes):
            self._submit()

    def add_unparsed(self, data: bytes) -> None:
        """
        Take what follows a head that offers another protocol, where no parser finds its end.

        Java's client offers HTTP/2 so; the parser takes what follows for that, and it is the body.
        """
        left_bytes = self.left_bytes
        if left_bytes is None:
            text = "a body in chunks cannot offer another protocol; send no Upgrade header"
            self.break_off(InvalidRequest("INVALID_REQUEST", text))
            return
        self.add(data[:left_bytes])
        if len(data) >= left_bytes:
            self.end()

    def end(self) -> None:
        """Publish: the body is whole."""
        self.more_body = False
        if self._has_begun and not self.response_complete:
            self._submit()

    def break_off(self, error: BaseException) -> None:
        """Answer with *error* when it is its turn: the rest of the body will not come."""
        self.keep_alive = False
        if not self._has_begun:
            self._failure = error
        elif not self.response_complete:
            self._refuse(error)

    def lose(self) -> None:
        """Know that the client has gone; what has been published stays so."""
        self.disconnected = True
        self._let_go()
        if self._span is not None and not self.is_submitted:
            self._span.lose()

    def _submit(self) -> None:
        """Publish what has arrived, or find out what is wrong with it."""
        body = bytes(self._body)
        self._let_go()
        connection = self._connection
        try:
            connection.plane.submit(self.head, body, self._secret, self._done)
        except Exception as error:  # noqa: BLE001 - the caller is told of every one
            self._refuse(error)
            return
        self.is_submitted = True
        if self._span is not None:
            self._span.send(connection.plane.topic_of(self.head), len(body))

    def _trace(self, spans: PublishSpans) -> None:
        """Begin a span, unless its traceparent says that it is to have none."""
        self._span = spans.begin(self.head.route, self.head.traceparent, self.began_at)

    def _done(self, error: GatewayError | None) -> None:
        if self.disconnected:
            if self._span is not None:
                self._span.end(None, error)
            return
        if error is not None:
            self._refuse(error)
            return
        # The answer first: whatever comes after it may take its time.
        self._connection.write_ok(self)
        trace_id = None if self._span is None else self._span.trace_id
        self._connection.plane.count_ok(self.head, self.began_at, trace_id)
        if self._span is not None:
            self._span.end(HTTPStatus.OK)

    def _refuse(self, error: BaseException) -> None:
        self._let_go()
        status = None
        if not self.disconnected:
            trace_id = None if self._span is None else self._span.trace_id
            answer = self._connection.plane.refusal(self.head, error, self.began_at, trace_id)
            self._connection.write_answer(self, answer)
            status = answer[0]
        if self._span is not None:
            self._span.end(status, error)

    def _let_go(self) -> None:
        """Forget the body."""
        self._body = b""
        if self._held_bytes:
            self._connection.plane.publisher.release(self._held_bytes)
            self._held_bytes = 0
