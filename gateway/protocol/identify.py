"""
The JSON of IDENTIFY and AUTH, and the negotiation of a connection's options.

Sources: the protocol specification, sections IDENTIFY and AUTH; nsqd/protocol_v2.go; the ranges and
the order of checks from nsqd/client_v2.go, Identify.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, TypeAlias

import msgspec

from gateway.errors import RemoteProtocolError
from gateway.protocol.wire import NSQD_VERSION, Limits

_MIN_TIME_MS = 1_000
_MIN_OUTPUT_BUFFER_BYTES = 64
_MAX_SAMPLE_RATE = 99
MAX_DEFLATE_LEVEL = 9
_DEFLATE_LEVEL = 6
"""The level if the client asks for none."""

# The widths of nsqd's fields (identifyDataV2): Go's JSON decoder refuses larger numbers.
_Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class IdentifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body of IDENTIFY; attributes are named as the keys; times in ms, sizes in bytes."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    """If False, the response is a plain OK and the connection is not upgraded."""
    heartbeat_interval: _Int64 = 0
    """-1 disables heartbeats (and SUB); 0 is the broker's default; otherwise at least 1,000."""
    output_buffer_size: _Int64 = 0
    """-1 disables the buffer; 0 is the broker's default; otherwise at least 64."""
    output_buffer_timeout: _Int64 = 0
    """-1 disables the timeout; 0 is the broker's default; otherwise at least its minimum."""
    sample_rate: _Int32 = 0
    """Percentage of messages to deliver, 1 to 99; the rest is discarded. 0 delivers all."""
    msg_timeout: _Int64 = 0
    """0 is the broker's default; otherwise at least 1,000."""
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: _Int64 = 0
    topology_region: str = ""
    topology_zone: str = ""

    def to_json(self) -> bytes:
        """Return the body of an IDENTIFY command."""
        return msgspec.json.encode(self)


# The client computes with these numbers, so it refuses a response in which they are not positive.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class IdentifyResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's JSON response: the negotiated options, with keys in nsqd's order."""

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
        """True if TLS or compression starts after this response."""
        return self.upgrade_count > 0

    @property
    def upgrade_count(self) -> int:
        """Number of layers to start (TLS, snappy, deflate); the broker confirms each with OK."""
        return self.tls_v1 + self.snappy + self.deflate

    def to_json(self) -> bytes:
        """Return the data of the response frame."""
        return msgspec.json.encode(self)


_MAX_CACHED_BYTES = 1_024
"""Longer responses are parsed without the cache; nsqd's responses are shorter."""

_response_decoder = msgspec.json.Decoder(IdentifyResponse)


def parse_identify_response(data: bytes) -> IdentifyResponse:
    """
    Parse the response to IDENTIFY; a plain ``OK`` means the defaults.

    Raises:
        RemoteProtocolError: *data* is neither OK nor valid JSON, or enables both snappy and
            deflate.
    """
    if len(data) > _MAX_CACHED_BYTES:
        return _parse_response(data)
    return _parse_cached(data)


def _parse_response(data: bytes) -> IdentifyResponse:
    if data == b"OK":
        return IdentifyResponse()
    try:
        response = _response_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        msg = f"the response to IDENTIFY is invalid: {error}"
        raise RemoteProtocolError("E_INVALID", msg) from error
    if response.snappy and response.deflate:
        msg = "the response to IDENTIFY enables both snappy and deflate"
        raise RemoteProtocolError("E_INVALID", msg)
    return response


_parse_cached = functools.lru_cache(maxsize=64)(_parse_response)
"""`_parse_response`, cached: a broker sends the same response on thousands of connections."""


# Two steps, first the members and then each value, because Go matches keys in any letter case.
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_request_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    field.name: msgspec.json.Decoder(field.type)
    for field in msgspec.structs.fields(IdentifyRequest)
    # nsqd 1.3.0 does not know these keys, and so takes any value.
    if not field.name.startswith("topology_")
}


def parse_identify_request(body: bytes) -> IdentifyRequest:
    """
    Parse the body of IDENTIFY as Go's JSON decoder does.

    Keys match in any letter case, unknown keys are skipped, null is absent, integers must not have
    a fraction, and invalid UTF-8 is replaced.

    Raises:
        RemoteProtocolError: E_BAD_BODY, the body is not valid JSON for IDENTIFY.
    """
    fields: dict[str, Any] = {}
    try:
        # Decode the values of known keys only: 5 MB of "[[],[],…" must not become objects.
        members = _members_decoder.decode(_as_go_reads(body)) or {}
        for key, value in members.items():
            # Go folds this letter, too, which is a small letter already.
            name = key.lower().replace("\u017f", "s")
            decoder = _request_decoders.get(name)
            # Go leaves a field as it is for null, so the default remains.
            if decoder is not None and bytes(value) != b"null":
                fields[name] = decoder.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
    return IdentifyRequest(**fields)


_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|(u[dD][89a-fA-F]{_HEX}{{2}})|.)",
    re.DOTALL,
)
"""An escape in JSON; its group is half of a surrogate pair without the other one."""


def _as_go_reads(body: bytes) -> str:
    r"""Return *body* with U+FFFD for what is not UTF-8, also for the escape of half a character."""
    text = body.decode("utf-8", "replace")
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], text)


class NegotiatedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a broker applies to a connection; None means disabled."""

    heartbeat_interval_ms: int | None
    output_buffer_size_bytes: int
    """0 means unbuffered."""
    output_buffer_timeout_ms: int | None
    sample_rate: int
    msg_timeout_ms: int


def default_options(limits: Limits) -> NegotiatedOptions:
    """Return the options of a connection whose client has not sent IDENTIFY."""
    return NegotiatedOptions(
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        output_buffer_size_bytes=limits.output_buffer_size_bytes,
        output_buffer_timeout_ms=limits.output_buffer_timeout_ms,
        sample_rate=0,
        msg_timeout_ms=limits.msg_timeout_ms,
    )


def negotiate(
    request: IdentifyRequest, limits: Limits, current: NegotiatedOptions | None = None
) -> NegotiatedOptions:
    """
    Check *request* in nsqd's order and return the options that the broker then applies.

    An option that the request leaves out keeps its *current* value; None: its default.

    Raises:
        RemoteProtocolError: E_BAD_BODY, naming the first value that is out of range.
    """
    current = current or default_options(limits)
    # The order decides which error a client with several invalid values receives.
    heartbeat = _within(
        "heartbeat interval",
        request.heartbeat_interval,
        default=current.heartbeat_interval_ms,
        bounds=(_MIN_TIME_MS, limits.max_heartbeat_interval_ms),
    )
    timeout = _within(
        "output buffer timeout",
        request.output_buffer_timeout,
        default=current.output_buffer_timeout_ms,
        bounds=(limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms),
    )
    size = _within(
        "output buffer size",
        request.output_buffer_size,
        default=current.output_buffer_size_bytes or None,
        bounds=(_MIN_OUTPUT_BUFFER_BYTES, limits.max_output_buffer_size_bytes),
    )
    if not 0 <= request.sample_rate <= _MAX_SAMPLE_RATE:
        raise _invalid("sample rate", request.sample_rate)
    msg_timeout = current.msg_timeout_ms
    # Not `_within`: a message timeout cannot be off, so -1 is out of range.
    if request.msg_timeout != 0:
        if not _MIN_TIME_MS <= request.msg_timeout <= limits.max_msg_timeout_ms:
            raise _invalid("msg timeout", request.msg_timeout)
        msg_timeout = request.msg_timeout
    return NegotiatedOptions(
        heartbeat_interval_ms=heartbeat,
        output_buffer_size_bytes=size or 0,
        # Only here: a later IDENTIFY may set a timeout again (nsqd/client_v2.go, SetOutputBuffer).
        output_buffer_timeout_ms=None if request.output_buffer_size == -1 else timeout,
        sample_rate=request.sample_rate,
        msg_timeout_ms=msg_timeout,
    )


def _within(what: str, value: int, *, default: int | None, bounds: tuple[int, int]) -> int | None:
    """Return None for -1 (off), *default* for 0, otherwise *value*, which must be in *bounds*."""
    if value == -1:
        return None
    if value == 0:
        return default
    if not bounds[0] <= value <= bounds[1]:
        raise _invalid(what, value)
    return value


def _invalid(what: str, value: int) -> RemoteProtocolError:
    return RemoteProtocolError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker offers to its clients; the defaults are nsqd's."""

    tls_v1: bool = False
    snappy: bool = True
    deflate: bool = True
    max_deflate_level: int = 6
    """1 to 9; clients that ask for a higher level get this one."""
    auth: bool = False
    """Whether clients must send AUTH before they publish or subscribe."""


_NO_REQUEST = IdentifyRequest()
_NSQD_FEATURES = Features()


def identify_response(
    options: NegotiatedOptions,
    limits: Limits,
    request: IdentifyRequest = _NO_REQUEST,
    features: Features = _NSQD_FEATURES,
) -> IdentifyResponse:
    """
    Return the broker's response to *request*, which has feature negotiation.

    Raises:
        RemoteProtocolError: E_IDENTIFY_FAILED, the client asks for both snappy and deflate.
    """
    snappy, deflate = features.snappy and request.snappy, features.deflate and request.deflate
    if snappy and deflate:
        msg = "cannot enable both deflate and snappy compression"
        raise RemoteProtocolError("E_IDENTIFY_FAILED", msg)
    level = request.deflate_level if deflate and request.deflate_level > 0 else _DEFLATE_LEVEL
    return IdentifyResponse(
        max_rdy_count=limits.max_rdy_count,
        version=NSQD_VERSION,
        max_msg_timeout=limits.max_msg_timeout_ms,
        msg_timeout=options.msg_timeout_ms,
        tls_v1=features.tls_v1 and request.tls_v1,
        deflate=deflate,
        # nsqd reports its deflate levels even without compression.
        deflate_level=min(level, features.max_deflate_level),
        max_deflate_level=features.max_deflate_level,
        snappy=snappy,
        sample_rate=options.sample_rate,
        auth_required=features.auth,
        # nsqd reports an unbuffered connection as a buffer of one byte.
        output_buffer_size=options.output_buffer_size_bytes or 1,
        output_buffer_timeout=options.output_buffer_timeout_ms or 0,
    )


class AuthResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's JSON response to AUTH: the client's identity, with keys in nsqd's order."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0
    """The number of grants from the auth server."""

    def to_json(self) -> bytes:
        """Return the data of the response frame."""
        return msgspec.json.encode(self)


_auth_decoder = msgspec.json.Decoder(AuthResponse)


def parse_auth_response(data: bytes) -> AuthResponse:
    """
    Parse the response to AUTH.

    Raises:
        RemoteProtocolError: *data* is not valid JSON for AUTH.
    """
    try:
        return _auth_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        msg = f"the response to AUTH is invalid: {error}"
        raise RemoteProtocolError("E_INVALID", msg) from error
