"""
A client's bytes become commands, checked as nsqd checks them and refused in its words.

`CommandReader.read` is told the bytes from a command's start on; it gives the command and where
it ends, or says how many bytes it needs. MPUB alone is read piece by piece: nsqd follows the
count and never looks at the announced size again, so neither can be trusted to say where the
command ends. Source: nsqd/protocol_v2.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from gateway.errors import RemoteProtocolError
from gateway.protocol.commands import (
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    Nop,
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
    The command needs more bytes: *wanted_bytes* from *offset* on.

    *refusal* is what nsqd says when nothing more comes; None where a command's line has no end
    yet: a newline is enough then, and nsqd closes without a word.
    """

    def __init__(
        self, offset: int, wanted_bytes: int, refusal: RemoteProtocolError | None = None
    ) -> None:
        super().__init__()
        self.offset = offset
        self.wanted_bytes = wanted_bytes
        self.refusal = refusal


class _OpenMpub:
    """An MPUB whose messages are still arriving."""

    __slots__ = ("bodies", "count", "size_bytes", "topic")

    def __init__(self, topic: str, count: int) -> None:
        self.topic = topic
        self.count = count
        self.bodies: list[bytes] = []
        self.size_bytes = _SIZE_BYTES


_Params: TypeAlias = list[bytes]


@dataclass(frozen=True, slots=True)
class _Row:
    """How the commands of one verb are read."""

    kind: type[Command]
    read: Callable[[CommandReader, _Params, bytes, int], tuple[Command, int]]
    least_params: int = 1
    """Words of the line, the verb included."""
    params_are_called: str = "parameters"
    """nsqd's word where there are too few."""


class CommandReader:
    """Reads the commands of one connection."""

    __slots__ = ("_limits", "_mpub")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._mpub: _OpenMpub | None = None

    def read(self, data: bytes, offset: int, state: State) -> tuple[Command, int]:
        """
        Read the command that starts at *offset*; return it and where the next one starts.

        Raises:
            Incomplete: *data* ends too early; call again from `Incomplete.offset` with more.
            RemoteProtocolError: The command is refused, and nsqd would close behind it.
        """
        if self._mpub is not None:
            return self._messages_of(self._mpub, data, offset)
        end = data.find(b"\n", offset, offset + MAX_LINE_BYTES)
        if end < 0:
            if len(data) - offset >= MAX_LINE_BYTES:
                raise RemoteProtocolError("", f"a line of more than {MAX_LINE_BYTES} bytes")
            raise Incomplete(offset, MAX_LINE_BYTES)
        line = data[offset:end]
        params = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        row = self._ROWS.get(params[0])
        if row is None:
            raise RemoteProtocolError("E_INVALID", f"invalid command {_shown(params[0])}")
        if (state, row.kind) not in ALLOWED:
            verb = row.kind.verb.decode()
            raise RemoteProtocolError("E_INVALID", f"cannot {verb} in current state")
        if state is State.CLOSING and row.kind is Ready:
            return Nop(), end + 1  # nsqd ignores it, whatever its count says
        if len(params) < row.least_params:
            verb = row.kind.verb.decode()
            description = f"{verb} insufficient number of {row.params_are_called}"
            raise RemoteProtocolError("E_INVALID", description)
        try:
            return row.read(self, params, data, end + 1)
        except Incomplete as more:
            if self._mpub is not None:
                raise
            # Whole commands are read again from their line on; what is wanted counts from there.
            wanted_bytes = more.offset + more.wanted_bytes - offset
            raise Incomplete(offset, wanted_bytes, more.refusal) from None

    # One method for each verb: parameters, all bytes, where the line ended.

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
        topic = _topic("DPUB", params[1])
        asked_ms = parse_digits(params[2])
        if asked_ms is None:
            description = f"DPUB could not parse timeout {_shown(params[2])}"
            raise RemoteProtocolError("E_INVALID", description)
        limit, defer_ms = self._limits.max_req_timeout_ms, wrap_delay_ms(asked_ms)
        if not 0 <= defer_ms <= limit:
            description = f"DPUB timeout {asked_ms} out of range 0-{limit}"
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
        # nsqd writes the code twice here.
        topic = _topic("E_BAD_TOPIC MPUB", params[1])
        limit = self._limits.max_body_size_bytes
        size = _int32(data, offset, "MPUB", _BODY_SIZE)
        if size <= 0:
            raise RemoteProtocolError("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > limit:
            raise RemoteProtocolError("E_BAD_BODY", f"MPUB body too big {size} > {limit}")
        count = _int32(data, offset + _SIZE_BYTES, "MPUB", _COUNT)
        if not 0 < count <= self._limits.max_mpub_count:
            raise RemoteProtocolError("E_BAD_BODY", f"MPUB invalid message count {count}")
        self._mpub = _OpenMpub(topic, count)
        return self._messages_of(self._mpub, data, offset + 2 * _SIZE_BYTES)

    def _messages_of(self, mpub: _OpenMpub, data: bytes, offset: int) -> tuple[Command, int]:
        """Read on; what is there of *mpub* is kept, so that nothing is read twice."""
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
            # nsqd bounds only the announced total; what really comes is bounded here.
            if not 0 < size <= max_msg_size or total_bytes > max_body_size:
                raise self._bad_size(size, total_bytes, len(bodies))
            end = start + size
            if end > available:
                raise _incomplete(offset, end - offset, "MPUB", _MESSAGE)
            bodies.append(data[start:end])
            mpub.size_bytes, offset = total_bytes, end
        self._mpub = None
        return MultiPublish(mpub.topic, bodies), offset

    def _bad_size(self, size: int, total_bytes: int, number: int) -> RemoteProtocolError:
        """Return why the message of this *number* cannot have *size* bytes."""
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
            return Ready(1), offset
        count = parse_digits(params[1])
        if count is None:
            description = f"RDY could not parse count {_shown(params[1])}"
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
        asked_ms = parse_digits(params[2])
        if asked_ms is None:
            description = f"REQ could not parse timeout {_shown(params[2])}"
            raise RemoteProtocolError("E_INVALID", description)
        delay_ms = min(max(wrap_delay_ms(asked_ms), 0), self._limits.max_req_timeout_ms)
        return Requeue(message_id, delay_ms), offset

    def _start_close(self, _params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        return StartClose(), offset

    def _nop(self, _params: _Params, _data: bytes, offset: int) -> tuple[Command, int]:
        return Nop(), offset

    _ROWS: ClassVar[dict[bytes, _Row]] = {
        row.kind.verb: row
        for row in (
            _Row(Identify, _identify),
            _Row(Auth, _auth),
            _Row(Subscribe, _subscribe, 3),
            _Row(Publish, _publish, 2),
            _Row(DeferredPublish, _deferred_publish, 3),
            _Row(MultiPublish, _multi_publish, 2),
            _Row(Ready, _ready),
            _Row(Finish, _finish, 2, "params"),
            _Row(Requeue, _requeue, 3, "params"),
            _Row(Touch, _touch, 2, "params"),
            _Row(StartClose, _start_close),
            _Row(Nop, _nop),
        )
    }


_Part: TypeAlias = tuple[str, str]
"""A part of a command behind its line: the code of its errors, and what it is."""

_BODY_SIZE: _Part = ("E_BAD_BODY", "body size")
_BODY: _Part = ("E_BAD_BODY", "body")
_COUNT: _Part = ("E_BAD_BODY", "message count")
_MESSAGE_SIZE: _Part = ("E_BAD_MESSAGE", "message body size")
_MESSAGE: _Part = ("E_BAD_MESSAGE", "message body")


def _incomplete(offset: int, wanted_bytes: int, verb: str, part: _Part) -> Incomplete:
    code, what = part
    refusal = RemoteProtocolError(code, f"{verb} failed to read {what}")
    return Incomplete(offset, wanted_bytes, refusal)


def _int32(data: bytes, offset: int, verb: str, part: _Part) -> int:
    if len(data) - offset < _SIZE_BYTES:
        raise _incomplete(offset, _SIZE_BYTES, verb, part)
    value: int = INT32.unpack_from(data, offset)[0]
    return value


def _topic(verb: str, name: bytes) -> str:
    if not is_valid_name(name):
        description = f"{verb} topic name {go_quote(name)} is not valid"
        raise RemoteProtocolError("E_BAD_TOPIC", description)
    return name.decode()


def _message_id(text: bytes) -> bytes:
    if len(text) != MESSAGE_ID_BYTES:
        raise RemoteProtocolError("E_INVALID", "invalid message ID")
    return text


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
