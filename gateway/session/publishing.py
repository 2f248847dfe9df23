"""PUB, DPUB and MPUB: what of them goes to NSQ, and what is on its way there."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.protocol.wire import Limits, is_valid_name
from gateway.session.actions import Publish, Refusal
from gateway.session.commands import Dpub, Mpub, Pub
from gateway.session.messages import ErrorOut, ResponseOut

_APART_BYTES = 64
"""What a body takes besides its bytes, counted generously."""
_SHOWN_NAME = 80
"""Characters of a topic that come back."""
_COUNT_BYTES = 4
"""An MPUB begins with the count of its messages, and each of them with its size."""

BODIES_A_COMMAND = 16
"""
So many bodies of an MPUB, begun, count as one command against the rate.

To check, copy and write 16 small bodies takes about as long as to carry out one command.
"""


class Publishing:
    """What the client publishes over its socket, until NSQ has answered it."""

    __slots__ = ("_limits", "_sizes", "unanswered_bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sizes: dict[int, int] = {}
        """Bytes of each publish that is not answered, by the identity of its action."""
        self.unanswered_bytes = 0

    def __len__(self) -> int:
        """Return how many publishes are not answered yet."""
        return len(self._sizes)

    def begin(self, command: Pub | Mpub) -> Publish:
        """
        Return what is to be published, which is unanswered from now on.

        Raises:
            InvalidRequest: nsqd would refuse it, and close a connection that others publish on
                too: E_BAD_TOPIC, E_BAD_MESSAGE, E_BAD_BODY, E_INVALID.
        """
        topic = _topic_of(command.topic)
        defer_ms = 0
        if isinstance(command, Mpub):
            bodies, body_bytes = self._bodies_of(command)
        else:
            if isinstance(command, Dpub):
                defer_ms = self._defer_of(command)
            bodies = [self._body_of(command)]
            body_bytes = len(bodies[0])
        publish = Publish(command.cmd, command.ref, topic, bodies, defer_ms)
        size_bytes = body_bytes + _APART_BYTES * (1 + len(bodies))
        self._sizes[id(publish)] = size_bytes
        self.unanswered_bytes += size_bytes
        return publish

    def end(self, publish: Publish, refusal: Refusal | None) -> ResponseOut | ErrorOut | None:
        """Return the answer to *publish*; None when it has been answered before."""
        size_bytes = self._sizes.pop(id(publish), None)
        if size_bytes is None:
            return None
        self.unanswered_bytes -= size_bytes
        if refusal is None:
            return ResponseOut(publish.cmd, publish.ref, "OK")
        return ErrorOut(publish.cmd, publish.ref, refusal.code, refusal.message, refusal.retryable)

    def _defer_of(self, command: Dpub) -> int:
        limit_ms = self._limits.max_req_timeout_ms
        if command.defer_ms is None or not 0 <= command.defer_ms <= limit_ms:
            given = "missing" if command.defer_ms is None else command.defer_ms
            text = f"defer_ms is {given}; allowed: 0 to {limit_ms} ms"
            raise InvalidRequest("E_INVALID", text)
        return command.defer_ms

    def _body_of(self, command: Pub) -> bytes:
        if command.body is not None and command.body_base64 is not None:
            text = f'{command.cmd} needs either "body" or "body_base64"'
            raise InvalidRequest("E_INVALID", text)
        if command.body is None and command.body_base64 is None:
            text = f'{command.cmd} needs "body", text, or "body_base64"'
            raise InvalidRequest("E_BAD_MESSAGE", text)
        body = command.body_base64 if command.body is None else command.body.encode()
        assert body is not None  # noqa: S101 - mypy cannot see it
        self._check_size("the message", len(body))
        return body

    def _bodies_of(self, command: Mpub) -> tuple[list[bytes], int]:
        """Return the bodies, and how many bytes they have together."""
        if command.bodies is not None and command.bodies_base64 is not None:
            raise InvalidRequest("E_INVALID", 'MPUB needs either "bodies" or "bodies_base64"')
        bodies = command.bodies_base64 or []
        if command.bodies is not None:
            bodies = list(map(str.encode, command.bodies))
        if not bodies:
            text = 'MPUB needs "bodies", a list of texts, or "bodies_base64": at least one message'
            raise InvalidRequest("E_BAD_BODY", text)
        sizes_bytes = list(map(len, bodies))
        if min(sizes_bytes) < 1 or max(sizes_bytes) > self._limits.max_msg_size_bytes:
            for number, each_bytes in enumerate(sizes_bytes, start=1):
                self._check_size(f"message {number} of {len(bodies)}", each_bytes)
        # The body that the command has on the wire: nsqd's MPUB counts and sizes in four bytes.
        body_bytes = sum(sizes_bytes)
        size_bytes = _COUNT_BYTES * (1 + len(bodies)) + body_bytes
        limit_bytes = self._limits.max_body_size_bytes
        if size_bytes > limit_bytes:
            text = (
                f"{len(bodies)} messages make an MPUB of {size_bytes} bytes; the limit is "
                f"{limit_bytes} bytes: publish fewer at a time"
            )
            raise InvalidRequest("E_BAD_BODY", text)
        return bodies, body_bytes

    def _check_size(self, which: str, size_bytes: int) -> None:
        limit_bytes = self._limits.max_msg_size_bytes
        if not 1 <= size_bytes <= limit_bytes:
            text = f"{which} has {size_bytes} bytes; allowed: 1 to {limit_bytes} bytes"
            raise InvalidRequest("E_BAD_MESSAGE", text)


def _topic_of(topic: str | None) -> str:
    rule = "1 to 64 letters, digits, '.', '_' and '-', then nothing or #ephemeral"
    if topic is None:
        raise InvalidRequest("E_BAD_TOPIC", f"topic is missing; allowed: {rule}")
    if not is_valid_name(topic.encode()):
        raise InvalidRequest("E_BAD_TOPIC", f"topic is {topic[:_SHOWN_NAME]!r}; allowed: {rule}")
    return topic
