"""
IDENTIFY in both roles: what a client offers, what a broker answers, what then holds.

Source: the protocol specification, section IDENTIFY; nsqd/protocol_v2.go, IDENTIFY; the ranges
and the order of checks from nsqd/client_v2.go, Identify.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, TypeAlias

import msgspec

from gateway.errors import RemoteProtocolError
from gateway.protocol.wire import NSQD_VERSION, Limits

_MIN_TIME_MS = 1_000
_MIN_OUTPUT_BUFFER_BYTES = 64
_MAX_SAMPLE_RATE = 99
_MAX_DEFLATE_LEVEL = 6

# The widths of nsqd's fields (identifyDataV2); Go's JSON refuses what does not fit.
_Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body of IDENTIFY, keys as on the wire; times in ms, sizes in bytes."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    """Without it the answer is a plain OK and nothing is upgraded."""
    heartbeat_interval: _Int64 = 0
    """-1 is off (SUB is refused then), 0 the broker's default, else 1 000 to its maximum."""
    output_buffer_size: _Int64 = 0
    """-1 is unbuffered, 0 the broker's default, else 64 to its maximum."""
    output_buffer_timeout: _Int64 = 0
    """-1 is off, 0 the broker's default, else the broker's minimum to its maximum."""
    sample_rate: _Int32 = 0
    """0 is all messages; 1 to 99 the share that is delivered, the rest is thrown away."""
    msg_timeout: _Int64 = 0
    """0 is the broker's default, else 1 000 to its maximum."""
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: _Int64 = 0
    topology_region: str = ""
    topology_zone: str = ""

    def to_json(self) -> bytes:
        """Return the body of an IDENTIFY command."""
        return msgspec.json.encode(self)


# What a client can count and wait with; with a broker that says otherwise it cannot go on.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's JSON answer: what holds on this connection; keys in nsqd's order."""

    max_rdy_count: _Count = 2_500
    version: str = ""
    max_msg_timeout: _Count = 900_000
    msg_timeout: _Count = 60_000
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: _Int32 = 0
    max_deflate_level: _Int32 = 0
    snappy: bool = False
    sample_rate: _Int32 = 0
    auth_required: bool = False
    output_buffer_size: _Int32 = 16_384
    output_buffer_timeout: _Int32 = 250

    @property
    def upgrades(self) -> bool:
        """Whether the bytes behind this answer are no longer plain V2."""
        return self.upgrade_count > 0

    @property
    def upgrade_count(self) -> int:
        """How many layers come below V2, one after the other, each answered with OK."""
        return self.tls_v1 + self.snappy + self.deflate

    def to_json(self) -> bytes:
        """Return the data of the response frame."""
        return msgspec.json.encode(self)


_REMEMBERED_BYTES = 1_024
"""Longer answers than nsqd's are not remembered."""

_answer_decoder = msgspec.json.Decoder(Answer)


def parse_answer(data: bytes) -> Answer:
    """
    Read the answer to IDENTIFY; a plain ``OK`` stands for the defaults.

    Raises:
        RemoteProtocolError: *data* is neither, or names both kinds of compression.
    """
    if len(data) > _REMEMBERED_BYTES:
        return _parse_answer(data)
    return _parse_remembered(data)


def _parse_answer(data: bytes) -> Answer:
    if data == b"OK":
        return Answer()
    try:
        answer = _answer_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        msg = f"the answer to IDENTIFY is not the JSON it should be: {error}"
        raise RemoteProtocolError("E_INVALID", msg) from error
    if answer.snappy and answer.deflate:
        msg = "the answer to IDENTIFY names both snappy and deflate"
        raise RemoteProtocolError("E_INVALID", msg)
    return answer


_parse_remembered = functools.lru_cache(maxsize=64)(_parse_answer)
"""A broker says the same to thousands of connections: they share what it comes to."""


_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_offer_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Offer)
}


def parse_offer(body: bytes) -> Offer:
    """
    Read the body of IDENTIFY as Go's JSON does.

    Keys match without regard to case, null is absent, a whole number must not have a fraction,
    unknown keys are skipped, bytes that are not UTF-8 are replaced.

    Raises:
        RemoteProtocolError: E_BAD_BODY, the body is not such JSON.
    """
    taken: dict[str, Any] = {}
    try:
        # Only the values of known keys become objects: 5 MB of "[[],[],…" stay text.
        members = _members_decoder.decode(body.decode("utf-8", "replace")) or {}
        for key, value in members.items():
            decoder = _offer_decoders.get(key.lower())
            if decoder is not None and bytes(value) != b"null":
                taken[key.lower()] = decoder.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
    return Offer(**taken)


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """What holds on a broker's side of a connection after IDENTIFY; None is off."""

    heartbeat_interval_ms: int | None
    output_buffer_size_bytes: int
    """0 is unbuffered."""
    output_buffer_timeout_ms: int | None
    sample_rate: int
    msg_timeout_ms: int


def defaults(limits: Limits) -> Effective:
    """Return what holds on a connection that never sends IDENTIFY."""
    return effective(Offer(), limits)


def effective(offer: Offer, limits: Limits) -> Effective:
    """
    Check *offer* in nsqd's order and return what holds from now on.

    Raises:
        RemoteProtocolError: E_BAD_BODY with the first value that is out of range.
    """
    heartbeat = _within(
        "heartbeat interval",
        offer.heartbeat_interval,
        default=limits.heartbeat_interval_ms,
        bounds=(_MIN_TIME_MS, limits.max_heartbeat_interval_ms),
    )
    timeout = _within(
        "output buffer timeout",
        offer.output_buffer_timeout,
        default=limits.output_buffer_timeout_ms,
        bounds=(limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms),
    )
    size = _within(
        "output buffer size",
        offer.output_buffer_size,
        default=limits.output_buffer_size_bytes,
        bounds=(_MIN_OUTPUT_BUFFER_BYTES, limits.max_output_buffer_size_bytes),
    )
    if not 0 <= offer.sample_rate <= _MAX_SAMPLE_RATE:
        raise _invalid("sample rate", offer.sample_rate)
    msg_timeout = limits.msg_timeout_ms
    if offer.msg_timeout != 0:
        if not _MIN_TIME_MS <= offer.msg_timeout <= limits.max_msg_timeout_ms:
            raise _invalid("msg timeout", offer.msg_timeout)
        msg_timeout = offer.msg_timeout
    return Effective(
        heartbeat_interval_ms=heartbeat,
        output_buffer_size_bytes=size or 0,
        # Unbuffered has nothing to flush (nsqd/client_v2.go, SetOutputBuffer).
        output_buffer_timeout_ms=None if size is None else timeout,
        sample_rate=offer.sample_rate,
        msg_timeout_ms=msg_timeout,
    )


def _within(what: str, value: int, *, default: int, bounds: tuple[int, int]) -> int | None:
    """Return None for -1 (off), the default for 0, else *value* within *bounds*."""
    if value == -1:
        return None
    if value == 0:
        return default
    if not bounds[0] <= value <= bounds[1]:
        raise _invalid(what, value)
    return value


def _invalid(what: str, value: int) -> RemoteProtocolError:
    return RemoteProtocolError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def answer_to(holds: Effective, limits: Limits) -> Answer:
    """Return the embedded broker's answer to an offer with feature negotiation."""
    return Answer(
        max_rdy_count=limits.max_rdy_count,
        version=NSQD_VERSION,
        max_msg_timeout=limits.max_msg_timeout_ms,
        msg_timeout=holds.msg_timeout_ms,
        # Without compression nsqd tells its levels all the same.
        deflate_level=_MAX_DEFLATE_LEVEL,
        max_deflate_level=_MAX_DEFLATE_LEVEL,
        sample_rate=holds.sample_rate,
        # nsqd's way of writing unbuffered is a buffer of one byte.
        output_buffer_size=holds.output_buffer_size_bytes or 1,
        output_buffer_timeout=holds.output_buffer_timeout_ms or 0,
    )
