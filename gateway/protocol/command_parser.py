"""
Parse a client's commands, with nsqd's checks and error texts.

`CommandParser.read` parses the command at an offset. It returns the command and the offset after
it, or raises `Incomplete` with the number of bytes it needs. Only MPUB is parsed piece by piece:
nsqd follows its message count and ignores its announced size, so the size cannot tell where the
command ends. An MPUB of more than `STEP_MESSAGES` messages stays in its encoding (`PackedBodies`),
and parsing pauses after each `STEP_MESSAGES`: to parse a million messages at once would block the
event loop for all other connections.
Source: nsqd/protocol_v2.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from gateway.errors import RemoteProtocolError
from gateway.protocol.commands import (
    STEP_MESSAGES,
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    MultiPublishStart,
    Nop,
    PackedBodies,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.states import ALLOWED, State
from gateway.protocol.wire import (
    INT32,
    MAX_LINE_BYTES,
    MESSAGE_ID_BYTES,
    Limits,
    go_quote,
    is_valid_name,
    parse_digits,
    to_int64,
    wrap_delay_ms,
)

_SIZE_BYTES = 4


class Incomplete(Exception):
    """
    The data ends within a command; parsing needs *wanted_bytes* from *offset* on.

    *error_at_eof* is the error that nsqd sends if the stream ends here. It is None if the line of
    the command is incomplete: a newline is then enough to go on, and if the stream ends, nsqd
    closes without an error frame.
    """

    def __init__(
        self, offset: int, wanted_bytes: int, error_at_eof: RemoteProtocolError | None = None
    ) -> None:
        super().__init__()
        self.offset = offset
        self.wanted_bytes = wanted_bytes
        self.error_at_eof = error_at_eof


class ReadPaused(Exception):
    """Parsing pauses within a large MPUB; continue at *offset* in another event loop turn."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset


_UNKNOWN_COUNT = -1


class _OpenMpub:
    """An MPUB whose messages are still arriving; *count* is unknown until they begin."""

    __slots__ = ("bodies", "count", "packed", "packed_count", "size_bytes", "topic")

    def __init__(self, topic: str, count: int = _UNKNOWN_COUNT) -> None:
        self.topic = topic
        self.count = count
        self.bodies: list[bytes] = []  # up to `STEP_MESSAGES` messages
        self.packed = bytearray()  # more than that: size and body of each
        self.packed_count = 0
        self.size_bytes = _SIZE_BYTES


_Params: TypeAlias = list[bytes]


@dataclass(frozen=True, slots=True)
class _Verb:
    """How to parse the command with one verb."""

    kind: type[Command]
    read: Callable[[CommandParser, _Params, bytes, int], tuple[Command, int]]
    min_words: int = 1
    """Minimum number of words of the line, including the verb."""
    params_noun: str = "parameters"
    """nsqd's name for the parameters, in its error for too few of them."""


class CommandParser:
    """
    Parse the commands of one connection.

    With *announces_mpub*, the line of an MPUB is a command of its own, `MultiPublishStart`.
    """

    __slots__ = ("_announces_mpub", "_limits", "_mpub", "_verbs", "messages_left")

    def __init__(self, limits: Limits, *, announces_mpub: bool = False) -> None:
        self._limits = limits
        self._announces_mpub = announces_mpub
        self._mpub: _OpenMpub | None = None
        self._verbs = self._VERBS
        self.messages_left = STEP_MESSAGES
        """MPUB messages that may be parsed before the next pause; the caller resets it."""

    @property
    def is_in_mpub(self) -> bool:
        """True if the next bytes belong to the body of an MPUB."""
        return self._mpub is not None

    def read(self, data: bytes, offset: int, state: State) -> tuple[Command, int]:
        """
        Parse the command at *offset*; return it and the offset of the next one.

        Raises:
            Incomplete: *data* ends too early; call again from `Incomplete.offset` with more.
            ReadPaused: `messages_left` is used up within an MPUB.
            RemoteProtocolError: The command is invalid, and nsqd would close the connection.
        """
        if self._mpub is not None:
            return self._read_mpub(self._mpub, data, offset)
        end = data.find(b"\n", offset, offset + MAX_LINE_BYTES)
        if end < 0:
            if len(data) - offset >= MAX_LINE_BYTES:
                # Without a code: nsqd closes without an error frame.
                raise RemoteProtocolError("", f"a line of more than {MAX_LINE_BYTES} bytes")
            raise Incomplete(offset, MAX_LINE_BYTES)
        line = data[offset:end]
        # nsqd trims one CR before the newline.
        params = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        verb = self._verbs.get(params[0])
        if verb is None:
            raise self._unknown(params[0])
        # nsqd checks the state first, so this error has precedence over invalid parameters.
        if (state, verb.kind) not in ALLOWED:
            name = verb.kind.verb.decode()
            raise RemoteProtocolError("E_INVALID", f"cannot {name} in current state")
        if state is State.CLOSING and verb.kind is Ready:
            return Nop(), end + 1  # after CLS, nsqd ignores RDY before it parses the count
        if len(params) < verb.min_words:
            name = verb.kind.verb.decode()
            description = f"{name} insufficient number of {verb.params_noun}"
            raise RemoteProtocolError("E_INVALID", description)
        try:
            return verb.read(self, params, data, end + 1)
        except Incomplete as more:
            if self._mpub is not None:
                raise  # the next call continues this MPUB at `Incomplete.offset`
            # All other commands are parsed again from the start of their line.
            wanted_bytes = more.offset + more.wanted_bytes - offset
            raise Incomplete(offset, wanted_bytes, more.error_at_eof) from None

    def require_tls(self, *, is_due: bool) -> None:
        """While *is_due*, refuse every command but IDENTIFY."""
        # A table of its own, so that the check costs nothing.
        self._verbs = {Identify.verb: self._VERBS[Identify.verb]} if is_due else self._VERBS

    def _unknown(self, verb: bytes) -> RemoteProtocolError:
        if self._verbs is self._VERBS:
            return RemoteProtocolError("E_INVALID", f"invalid command {_as_text(verb)}")
        description = f"cannot {_as_text(verb)} in current state (TLS required)"
        return RemoteProtocolError("E_INVALID", description)

    # One method per verb. Arguments: words of the line, all bytes, the offset after the line.

    def _identify(self, _params: _Params, data: bytes, offset: int) -> tuple[Command, int]:
        body, end = self._body("IDENTIFY", data, offset)
        return Identify(body), end

    def _auth(self, params: _Params, data: bytes, offset: int) -> tuple[Command, int]:
        if len(params) != 1:
            raise RemoteProtocolError("E_INVALID", "AUTH invalid number of parameters")
        body, end = self._body("AUTH", data, offset)
        return Auth(body), end

    def _body(self, verb: str, data: bytes, offset: int) -> tuple[bytes, int]:
        limit = self._limits.max_body_size_bytes
        size = _int32(data, offset, verb, _BODY_SIZE)
        if size > limit:
            raise RemoteProtocolError("E_BAD_BODY", f"{verb} body too big {size} > {limit}")
        if size <= 0:
            raise RemoteProtocolError("E_BAD_BODY", f"{verb} invalid body size {size}")
        end = offset + _SIZE_BYTES + size
        if end > len(data):
            raise _incomplete(offset + _SIZE_BYTES, size, verb, _BODY)
        return data[offset + _SIZE_BYTES : end], end

    def _subscribe(self, params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        topic = _topic("SUB", params[1])
        if not is_valid_name(params[2]):
            description = f"SUB channel name {go_quote(params[2])} is not valid"
            raise RemoteProtocolError("E_BAD_CHANNEL", description)
        return Subscribe(topic, params[2].decode()), offset

    def _publish(self, params: _Params, data: bytes, offset: int) -> tuple[Command, int]:
        topic = _topic("PUB", params[1])
        body, end = self._message("PUB", data, offset)
        return Publish(topic, body), end

    def _deferred_publish(self, params: _Params, data: bytes, offset: int) -> tuple[Command, int]:
        # As in nsqd, errors of the line are reported before the body has arrived.
        topic = _topic("DPUB", params[1])
        requested_ms = parse_digits(params[2])
        if requested_ms is None:
            description = f"DPUB could not parse timeout {_as_text(params[2])}"
            raise RemoteProtocolError("E_INVALID", description)
        limit, defer_ms = self._limits.max_req_timeout_ms, wrap_delay_ms(requested_ms)
        if not 0 <= defer_ms <= limit:
            description = f"DPUB timeout {requested_ms} out of range 0-{limit}"
            raise RemoteProtocolError("E_INVALID", description)
        body, end = self._message("DPUB", data, offset)
        return DeferredPublish(topic, defer_ms, body), end

    def _message(self, verb: str, data: bytes, offset: int) -> tuple[bytes, int]:
        limit = self._limits.max_msg_size_bytes
        size = _int32(data, offset, verb, _MESSAGE_SIZE)
        if size <= 0:
            description = f"{verb} invalid message body size {size}"
            raise RemoteProtocolError("E_BAD_MESSAGE", description)
        if size > limit:
            raise RemoteProtocolError("E_BAD_MESSAGE", f"{verb} message too big {size} > {limit}")
        end = offset + _SIZE_BYTES + size
        if end > len(data):
            raise _incomplete(offset + _SIZE_BYTES, size, verb, _MESSAGE)
        return data[offset + _SIZE_BYTES : end], end

    def _multi_publish(self, params: _Params, data: bytes, offset: int) -> tuple[Command, int]:
        # nsqd repeats the error code in this description.
        topic = _topic("E_BAD_TOPIC MPUB", params[1])
        if self._announces_mpub:
            self._mpub = _OpenMpub(topic)
            return MultiPublishStart(topic), offset
        return self._start_mpub(topic, data, offset)

    def _start_mpub(self, topic: str, data: bytes, offset: int) -> tuple[Command, int]:
        """Parse the sizes at the start of an MPUB's body, and what has arrived of its messages."""
        limit = self._limits.max_body_size_bytes
        size = _int32(data, offset, "MPUB", _BODY_SIZE)
        if size <= 0:
            raise RemoteProtocolError("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > limit:
            raise RemoteProtocolError("E_BAD_BODY", f"MPUB body too big {size} > {limit}")
        count = _int32(data, offset + _SIZE_BYTES, "MPUB", _COUNT)
        if not 0 < count <= self._limits.max_mpub_count:
            raise RemoteProtocolError("E_BAD_BODY", f"MPUB invalid message count {count}")
        # Set before the first message is parsed: if that is incomplete, the next call of `read`
        # must not parse the line again.
        self._mpub = _OpenMpub(topic, count)
        return self._read_mpub(self._mpub, data, offset + 2 * _SIZE_BYTES)

    def _read_mpub(self, mpub: _OpenMpub, data: bytes, offset: int) -> tuple[Command, int]:
        """Parse more messages of *mpub*, which keeps the complete ones: none is parsed twice."""
        if mpub.count == _UNKNOWN_COUNT:
            try:
                return self._start_mpub(mpub.topic, data, offset)
            except Incomplete as more:
                if self._mpub is not mpub:
                    raise  # its messages have begun
                wanted_bytes = more.offset + more.wanted_bytes - offset
                raise Incomplete(offset, wanted_bytes, more.error_at_eof) from None
        if mpub.count > STEP_MESSAGES:
            return self._read_packed_mpub(mpub, data, offset)
        bodies, available, size_of = mpub.bodies, len(data), INT32.unpack_from
        max_msg_size, max_body_size = (
            self._limits.max_msg_size_bytes,
            self._limits.max_body_size_bytes,
        )
        while len(bodies) < mpub.count:
            start = offset + _SIZE_BYTES
            if start > available:
                what = ("E_BAD_MESSAGE", f"message({len(bodies)}) body size")
                raise _incomplete(offset, _SIZE_BYTES, "MPUB", what)
            size: int = size_of(data, offset)[0]
            total_bytes = mpub.size_bytes + _SIZE_BYTES + size
            # nsqd checks only the announced size. The sum of the real sizes must be bounded, too:
            # otherwise a small announced size would allow any amount of memory.
            if not 0 < size <= max_msg_size or total_bytes > max_body_size:
                raise self._bad_size(size, total_bytes, len(bodies))
            end = start + size
            if end > available:
                raise _incomplete(offset, end - offset, "MPUB", _MESSAGE)
            bodies.append(data[start:end])
            mpub.size_bytes, offset = total_bytes, end
        self._mpub = None
        # May become negative: a small MPUB is never split, and the connection pauses after it.
        self.messages_left -= mpub.count
        return MultiPublish(mpub.topic, bodies), offset

    def _read_packed_mpub(self, mpub: _OpenMpub, data: bytes, offset: int) -> tuple[Command, int]:
        """Parse as `_read_mpub`, up to `messages_left` messages, and without an object for each."""
        # Local variables, because attribute access would dominate with a million messages.
        first, number, total_bytes = offset, mpub.packed_count, mpub.size_bytes
        available, size_of = len(data), INT32.unpack_from
        max_msg_size, max_body_size = (
            self._limits.max_msg_size_bytes,
            self._limits.max_body_size_bytes,
        )
        stop = min(mpub.count, number + max(0, self.messages_left))
        try:
            while number < stop:
                start = offset + _SIZE_BYTES
                if start > available:
                    what = ("E_BAD_MESSAGE", f"message({number}) body size")
                    raise _incomplete(offset, _SIZE_BYTES, "MPUB", what)
                size: int = size_of(data, offset)[0]
                end = start + size
                if not 0 < size <= max_msg_size or total_bytes + end - offset > max_body_size:
                    raise self._bad_size(size, total_bytes + end - offset, number)
                if end > available:
                    raise _incomplete(offset, end - offset, "MPUB", _MESSAGE)
                total_bytes += end - offset
                offset = end
                number += 1
        finally:
            # Also after Incomplete: parsing continues after the last complete message.
            self.messages_left -= number - mpub.packed_count
            mpub.packed_count, mpub.size_bytes = number, total_bytes
            mpub.packed += data[first:offset]
        if number < mpub.count:
            raise ReadPaused(offset)
        self._mpub = None
        return MultiPublish(mpub.topic, PackedBodies([bytes(mpub.packed)], mpub.count)), offset

    def _bad_size(self, size: int, total_bytes: int, number: int) -> RemoteProtocolError:
        """
        Return nsqd's error for message *number* of an MPUB, which announces *size* bytes.

        *total_bytes* is the size of the MPUB's body up to the end of this message.
        """
        if size <= 0:
            description = f"MPUB invalid message({number}) body size {size}"
            return RemoteProtocolError("E_BAD_MESSAGE", description)
        limit = self._limits.max_msg_size_bytes
        if size > limit:
            return RemoteProtocolError("E_BAD_MESSAGE", f"MPUB message too big {size} > {limit}")
        limit = self._limits.max_body_size_bytes
        return RemoteProtocolError("E_BAD_BODY", f"MPUB body too big {total_bytes} > {limit}")

    def _ready(self, params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        if len(params) == 1:
            return Ready(1), offset  # nsqd's default
        count = parse_digits(params[1])
        if count is None:
            description = f"RDY could not parse count {_as_text(params[1])}"
            raise RemoteProtocolError("E_INVALID", description)
        limit, count = self._limits.max_rdy_count, to_int64(count)
        if not 0 <= count <= limit:
            raise RemoteProtocolError("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        return Ready(count), offset

    def _finish(self, params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        return Finish(_message_id(params[1])), offset

    def _touch(self, params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        return Touch(_message_id(params[1])), offset

    def _requeue(self, params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        message_id = _message_id(params[1])
        requested_ms = parse_digits(params[2])
        if requested_ms is None:
            description = f"REQ could not parse timeout {_as_text(params[2])}"
            raise RemoteProtocolError("E_INVALID", description)
        # nsqd limits the delay of REQ to this range, but refuses a DPUB outside it.
        delay_ms = min(max(wrap_delay_ms(requested_ms), 0), self._limits.max_req_timeout_ms)
        return Requeue(message_id, delay_ms), offset

    def _start_close(self, _params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        return StartClose(), offset

    def _nop(self, _params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        return Nop(), offset

    _VERBS: ClassVar[dict[bytes, _Verb]] = {
        verb.kind.verb: verb
        for verb in (
            _Verb(Identify, _identify),
            _Verb(Auth, _auth),
            _Verb(Subscribe, _subscribe, 3),
            _Verb(Publish, _publish, 2),
            _Verb(DeferredPublish, _deferred_publish, 3),
            _Verb(MultiPublish, _multi_publish, 2),
            _Verb(Ready, _ready),
            _Verb(Finish, _finish, 2, "params"),
            _Verb(Requeue, _requeue, 3, "params"),
            _Verb(Touch, _touch, 2, "params"),
            _Verb(StartClose, _start_close),
            _Verb(Nop, _nop),
        )
    }


_Part: TypeAlias = tuple[str, str]
"""A part of a command after its line: the code and the name that nsqd's errors give it."""

_BODY_SIZE: _Part = ("E_BAD_BODY", "body size")
_BODY: _Part = ("E_BAD_BODY", "body")
_COUNT: _Part = ("E_BAD_BODY", "message count")
_MESSAGE_SIZE: _Part = ("E_BAD_MESSAGE", "message body size")
_MESSAGE: _Part = ("E_BAD_MESSAGE", "message body")


def _incomplete(offset: int, wanted_bytes: int, verb: str, part: _Part) -> Incomplete:
    code, what = part
    error_at_eof = RemoteProtocolError(code, f"{verb} failed to read {what}")
    return Incomplete(offset, wanted_bytes, error_at_eof)


def _int32(data: bytes, offset: int, verb: str, part: _Part) -> int:
    if len(data) - offset < _SIZE_BYTES:
        raise _incomplete(offset, _SIZE_BYTES, verb, part)
    # Signed, as in nsqd: a size of 2 GiB or more is negative, and its error shows it so.
    value: int = INT32.unpack_from(data, offset)[0]
    return value


def _topic(verb: str, name: bytes) -> str:
    if not is_valid_name(name):
        description = f"{verb} topic name {go_quote(name)} is not valid"
        raise RemoteProtocolError("E_BAD_TOPIC", description)
    return name.decode()


def _message_id(text: bytes) -> bytes:
    # nsqd checks only the length; an id that it never generated is just not in flight.
    if len(text) != MESSAGE_ID_BYTES:
        raise RemoteProtocolError("E_INVALID", "invalid message ID")
    return text


def _as_text(text: bytes) -> str:
    # `ErrorFrame.encode` reverses this, so the client gets its own bytes back, as from nsqd.
    return text.decode("utf-8", "surrogateescape")
