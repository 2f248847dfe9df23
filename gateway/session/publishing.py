"""
Check a client's PUB, DPUB and MPUB commands, and count those that it has no response to yet.

The gateway makes nsqd's checks before it sends the publish: nsqd closes the connection after an
invalid one (E_BAD_TOPIC, E_BAD_MESSAGE, E_BAD_BODY), and all clients share these connections.
"""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.protocol.wire import MAX_NAME_BYTES, Limits, is_valid_name
from gateway.session.json_frames import (
    MAX_ITEMS,
    DpubCommand,
    ErrorOut,
    MpubCommand,
    PubCommand,
    ResponseOut,
)
from gateway.session.types import PublishBodies, Refusal

_UNANSWERED_BYTES = 64
"""Estimated memory of a pending publish, and of each of its bodies, besides the bodies' bytes."""
_SHOWN_CHARS = 80
"""Characters of an invalid topic in its error."""
_COUNT_BYTES = 4
"""Bytes of each number in an MPUB on the wire: the count of messages, and each message's size."""

BODIES_PER_COMMAND = 16
"""
Bodies of an MPUB that count as one command, rounded up.

Checking, copying and writing 16 small bodies takes about as long as running one command.
"""


class Publishing:
    """Check the publishes of one socket, and count the pending ones, which have no response yet."""

    __slots__ = ("_limits", "_sizes", "unanswered_bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sizes: dict[int, int] = {}
        """
        Bytes of each pending publish, by the `id` of its `PublishBodies`.

        The id is unique, because the caller keeps the object until it reports the outcome.
        """
        self.unanswered_bytes = 0

    def __len__(self) -> int:
        """Return the number of pending publishes."""
        return len(self._sizes)

    def begin(self, command: PubCommand | MpubCommand) -> PublishBodies:
        """
        Return the action that publishes what *command* holds, and count it as pending until `end`.

        Raises:
            InvalidRequest: nsqd would refuse the publish (E_BAD_TOPIC, E_BAD_MESSAGE, E_BAD_BODY),
                or the command has an invalid combination of members (E_INVALID).
        """
        topic = _topic_of(command.topic)
        defer_ms = 0
        if isinstance(command, MpubCommand):
            bodies, body_bytes = self._bodies_of(command)
        else:
            if isinstance(command, DpubCommand):
                defer_ms = self._defer_of(command)
            bodies = [self._body_of(command)]
            body_bytes = len(bodies[0])
        publish = PublishBodies(command.cmd, command.ref, topic, bodies, defer_ms)
        size_bytes = body_bytes + _UNANSWERED_BYTES * (1 + len(bodies))
        self._sizes[id(publish)] = size_bytes
        self.unanswered_bytes += size_bytes
        return publish

    def end(self, publish: PublishBodies, refusal: Refusal | None) -> ResponseOut | ErrorOut | None:
        """
        Return the response to *publish* for the client; None if it was returned before.

        *refusal* is the error; None means that the messages are published.
        """
        size_bytes = self._sizes.pop(id(publish), None)
        if size_bytes is None:
            return None
        self.unanswered_bytes -= size_bytes
        if refusal is None:
            return ResponseOut(publish.cmd, publish.ref, "OK")
        return ErrorOut(publish.cmd, publish.ref, refusal.code, refusal.message, refusal.retryable)

    def _defer_of(self, command: DpubCommand) -> int:
        limit_ms = self._limits.max_req_timeout_ms
        if command.defer_ms is None or not 0 <= command.defer_ms <= limit_ms:
            given = "missing" if command.defer_ms is None else command.defer_ms
            text = f"defer_ms is {given}; allowed: 0 to {limit_ms} ms"
            raise InvalidRequest("E_INVALID", text)
        return command.defer_ms

    def _body_of(self, command: PubCommand) -> bytes:
        """Return the body of *command*, checked; raises InvalidRequest."""
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

    def _bodies_of(self, command: MpubCommand) -> tuple[list[bytes], int]:
        """Return the bodies of *command*, checked, and the sum of their sizes in bytes."""
        if command.bodies is not None and command.bodies_base64 is not None:
            raise InvalidRequest("E_INVALID", 'MPUB needs either "bodies" or "bodies_base64"')
        if len(command) > MAX_ITEMS:
            text = f"MPUB has {len(command)} bodies; allowed: 1 to {MAX_ITEMS} in one MPUB"
            raise InvalidRequest("E_BAD_BODY", text)
        bodies = command.bodies_base64 or []
        if command.bodies is not None:
            bodies = list(map(str.encode, command.bodies))
        if not bodies:
            text = 'MPUB needs "bodies", a list of texts, or "bodies_base64": at least one message'
            raise InvalidRequest("E_BAD_BODY", text)
        sizes_bytes = list(map(len, bodies))
        # `min` and `max` run in C; the loop only finds the number of the invalid body.
        if min(sizes_bytes) < 1 or max(sizes_bytes) > self._limits.max_msg_size_bytes:
            for number, each_bytes in enumerate(sizes_bytes, start=1):
                self._check_size(f"message {number} of {len(bodies)}", each_bytes)
        # nsqd's --max-body-size limits the body on the wire, with its counts and sizes.
        body_bytes = sum(sizes_bytes)
        size_bytes = _COUNT_BYTES * (1 + len(bodies)) + body_bytes
        limit_bytes = self._limits.max_body_size_bytes
        if size_bytes > limit_bytes:
            text = (
                f"{len(bodies)} messages make an MPUB of {size_bytes} bytes; the limit is "
                f"{limit_bytes} bytes; send fewer messages in one MPUB"
            )
            raise InvalidRequest("E_BAD_BODY", text)
        return bodies, body_bytes

    def _check_size(self, which: str, size_bytes: int) -> None:
        limit_bytes = self._limits.max_msg_size_bytes
        if not 1 <= size_bytes <= limit_bytes:
            text = f"{which} has {size_bytes} bytes; allowed: 1 to {limit_bytes} bytes"
            raise InvalidRequest("E_BAD_MESSAGE", text)


def _topic_of(topic: str | None) -> str:
    rule = (
        f"1 to {MAX_NAME_BYTES} bytes of letters, digits, '.', '_' and '-', optionally followed by "
        "#ephemeral"
    )
    if topic is None:
        raise InvalidRequest("E_BAD_TOPIC", f"topic is missing; allowed: {rule}")
    name = topic.encode()
    if not is_valid_name(name):
        text = f"topic is {topic[:_SHOWN_CHARS]!r}, {len(name)} bytes; allowed: {rule}"
        raise InvalidRequest("E_BAD_TOPIC", text)
    return topic
