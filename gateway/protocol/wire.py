"""
The constants of NSQ V2 on the wire: magic, struct layouts, names, numbers, limits.

Source: the protocol specification; nsqd/protocol_v2.go; internal/protocol/names.go.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache

from gateway.errors import InvalidRequest

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
NSQD_VERSION = "1.3.0"
"""The nsqd release that the embedded broker follows, and reports as its version."""

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

MAX_LINE_BYTES = 16_384
"""Longest command line, newline included; nsqd closes the connection on a longer one."""

MESSAGE_ID_BYTES = 16

UINT32 = struct.Struct(">I")
INT32 = struct.Struct(">i")
FRAME_HEAD = struct.Struct(">II")
"""Size of type and data, then the frame type."""
MESSAGE_HEAD = struct.Struct(">qH16s")
"""Timestamp in ns since 1970, attempts, id; the body follows."""
MESSAGE_FRAME_HEAD = struct.Struct(">IIqH16s")
"""Frame head and message head, unpacked in one step."""

MAX_NAME_BYTES = 64
_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
EPHEMERAL_SUFFIX = "#ephemeral"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a broker; the defaults are nsqd's (nsqd/options.go)."""

    max_msg_size_bytes: int = 1_048_576
    """Longest body of one message."""
    max_body_size_bytes: int = 5_242_880
    """Longest body of one command: MPUB, IDENTIFY, AUTH."""
    max_req_timeout_ms: int = 3_600_000
    """Longest delay of REQ (longer ones are shortened) and of DPUB (longer ones are refused)."""
    max_rdy_count: int = 2_500
    """Highest RDY count of a connection."""
    msg_timeout_ms: int = 60_000
    """Default message timeout."""
    max_msg_timeout_ms: int = 900_000
    """Highest message timeout; TOUCH cannot extend a deadline beyond this after the delivery."""
    heartbeat_interval_ms: int = 30_000
    """Default time between heartbeats."""
    max_heartbeat_interval_ms: int = 60_000
    """Highest heartbeat interval that a client may request."""
    output_buffer_size_bytes: int = 16_384
    """Default size of the output buffer."""
    max_output_buffer_size_bytes: int = 65_536
    """Largest output buffer that a client may request."""
    output_buffer_timeout_ms: int = 250
    """Default time until the output buffer is flushed."""
    min_output_buffer_timeout_ms: int = 25
    """Lowest output buffer timeout that a client may request."""
    max_output_buffer_timeout_ms: int = 30_000
    """Highest output buffer timeout that a client may request."""

    @property
    def max_mpub_count(self) -> int:
        """The highest message count that an MPUB can announce (nsqd/protocol_v2.go, readMPUB)."""
        # 4 bytes for the count; a message has at least 4 bytes for its size and 1 of body.
        return (self.max_body_size_bytes - 4) // 5


def is_valid_name(name: bytes) -> bool:
    """
    Return whether *name* is a valid topic or channel name.

    A valid name has 1 to 64 ASCII letters, digits, ``.``, ``_`` or ``-``. The suffix
    ``#ephemeral`` may follow; it counts towards the length.
    """
    # fullmatch, because "$" also matches before a final newline, which would start a new command.
    return 0 < len(name) <= MAX_NAME_BYTES and _NAME.fullmatch(name) is not None


def check_topic(topic: str) -> None:
    """Raise InvalidRequest (INVALID_TOPIC) unless *topic* is a valid topic name."""
    _check_name("topic", topic, "INVALID_TOPIC")


def check_channel(channel: str) -> None:
    """Raise InvalidRequest (INVALID_ARG_CHANNEL) unless *channel* is a valid channel name."""
    _check_name("channel", channel, "INVALID_ARG_CHANNEL")


def _check_name(kind: str, name: object, token: str) -> None:
    if not isinstance(name, str) or not _is_valid_text(name):
        raise InvalidRequest(
            token,
            f"{name!r} is not a valid {kind} name; allowed: 1 to {MAX_NAME_BYTES} bytes of ASCII "
            "letters, digits, '.', '_' and '-'; the suffix '#ephemeral' is allowed and counts "
            "towards the length",
        )


@lru_cache(maxsize=1_024)
def _is_valid_text(name: str) -> bool:
    """Return whether *name* is valid; cached, since every publish checks one of a few names."""
    # surrogatepass, so that a lone surrogate makes the name invalid instead of raising here.
    return is_valid_name(name.encode("utf-8", "surrogatepass"))


def is_ephemeral(name: str) -> bool:
    """
    Return whether *name* is the name of an ephemeral topic or channel.

    nsqd deletes such a topic with its last channel, and such a channel with its last consumer.
    """
    return name.endswith(EPHEMERAL_SUFFIX)


def parse_digits(text: bytes) -> int | None:
    """
    Parse a decimal number in a command; return None if *text* is not only digits.

    An empty text is 0, and numbers wrap at 2^64, as in nsqd (internal/protocol, ByteToBase10).
    """
    if not text:
        return 0
    # bytes.isdigit() accepts ASCII digits only: no sign, no "_", unlike int().
    # Parsed in pieces, because int() of a long text takes quadratic time.
    if not text.isdigit():
        return None
    value = 0
    for start in range(0, len(text), 18):
        part = text[start : start + 18]
        value = (value * 10 ** len(part) + int(part)) % 2**64
    return value


def to_int64(value: int) -> int:
    """Return the low 64 bits of *value* as a signed number, as Go's int64 conversion does."""
    return (value + 2**63) % 2**64 - 2**63


def wrap_delay_ms(value: int) -> int:
    """
    Return the delay that nsqd uses for a client's *value*, both in ms; it can be negative.

    Go's time.Duration counts nanoseconds in an int64, so delays above 292 years wrap.
    """
    return to_int64(value * 1_000_000) // 1_000_000


_GO_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}


def go_quote(text: bytes) -> str:
    """Quote *text* as Go's %q does, with which nsqd quotes names in its error frames."""
    return '"' + "".join(map(_go_escape, text.decode("utf-8", "surrogateescape"))) + '"'


def _go_escape(char: str) -> str:
    if char in _GO_ESCAPES:
        return _GO_ESCAPES[char]
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":  # surrogateescape maps an invalid byte NN to U+DCNN
        return f"\\x{ord(char) & 0xFF:02x}"
    if char <= "\x7f":
        return f"\\x{ord(char):02x}"
    if char <= "\uffff":
        return f"\\u{ord(char):04x}"
    return f"\\U{ord(char):08x}"
