"""
The fixed facts of NSQ V2 on the wire: magic, layouts, names, numbers, limits.

Source: the protocol specification; nsqd/protocol_v2.go; internal/protocol/names.go.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
NSQD_VERSION = "1.3.0"
"""The release of nsqd whose behaviour is spoken here."""

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

MAX_LINE_BYTES = 16_384
"""A command line, newline included; nsqd closes on a longer one without a frame."""

MESSAGE_ID_BYTES = 16

UINT32 = struct.Struct(">I")
INT32 = struct.Struct(">i")
FRAME_HEAD = struct.Struct(">II")
"""Size of what follows (type and data), then the frame type."""
MESSAGE_HEAD = struct.Struct(">qH16s")
"""Time of publishing in ns since 1970, attempts, id; the body follows."""
MESSAGE_FRAME_HEAD = struct.Struct(">IIqH16s")
"""The head of a frame and of the message in it, read in one step."""

MAX_NAME_BYTES = 64
_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
EPHEMERAL_SUFFIX = "#ephemeral"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a broker accepts, with nsqd's defaults (nsqd/options.go)."""

    max_msg_size_bytes: int = 1_048_576
    """Longest body of one message."""
    max_body_size_bytes: int = 5_242_880
    """Longest body of one command: MPUB, IDENTIFY, AUTH."""
    max_req_timeout_ms: int = 3_600_000
    """Longest delay of REQ (clamped) and of DPUB (refused above)."""
    max_rdy_count: int = 2_500
    """Highest RDY that a connection may ask for."""
    msg_timeout_ms: int = 60_000
    """Time to finish a message, when IDENTIFY asks for none."""
    max_msg_timeout_ms: int = 900_000
    """Highest msg_timeout, and the ceiling of what TOUCH can reach after a delivery."""
    heartbeat_interval_ms: int = 30_000
    """Time between heartbeats, when IDENTIFY asks for none."""
    max_heartbeat_interval_ms: int = 60_000
    """Highest heartbeat interval that IDENTIFY may ask for."""
    output_buffer_size_bytes: int = 16_384
    """Output buffer, when IDENTIFY asks for none."""
    max_output_buffer_size_bytes: int = 65_536
    """Highest output buffer that IDENTIFY may ask for."""
    output_buffer_timeout_ms: int = 250
    """Time until an output buffer is flushed, when IDENTIFY asks for none."""
    min_output_buffer_timeout_ms: int = 25
    """Lowest output buffer timeout that IDENTIFY may ask for."""
    max_output_buffer_timeout_ms: int = 30_000
    """Highest output buffer timeout that IDENTIFY may ask for."""

    @property
    def max_mpub_count(self) -> int:
        """The most messages that one MPUB may announce (nsqd/protocol_v2.go, readMPUB)."""
        return (self.max_body_size_bytes - 4) // 5


def is_valid_name(name: bytes) -> bool:
    """
    Tell whether *name* can name a topic or a channel.

    1 to 64 bytes of ``. _ -``, letters and digits, then ``#ephemeral`` or nothing; the suffix
    counts. ``fullmatch`` on purpose: ``$`` would let a final newline through, which is a second
    command on a line protocol.
    """
    return 0 < len(name) <= MAX_NAME_BYTES and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Tell whether a topic or channel of this name goes when its last user goes."""
    return name.endswith(EPHEMERAL_SUFFIX)


def parse_digits(text: bytes) -> int | None:
    """
    Read a number of a command line; None when it is not digits only.

    An empty text is 0 and 2^64 wraps around, as in nsqd (internal/protocol, ByteToBase10).
    """
    if not text:
        return 0
    # isdigit() of bytes knows ASCII only, unlike that of str, and takes no sign and no "_".
    # The length is checked first: int() of a huge text costs more than it says.
    if not text.isdigit():
        return None
    value = 0
    for start in range(0, len(text), 18):
        part = text[start : start + 18]
        value = (value * 10 ** len(part) + int(part)) % 2**64
    return value


def to_int64(value: int) -> int:
    """Read the low 64 bits of *value* as Go's int64 does."""
    return (value + 2**63) % 2**64 - 2**63


def wrap_delay_ms(value: int) -> int:
    """
    Return the delay that nsqd takes *value* ms for, negative included.

    Go's time.Duration counts ns in an int64, so what is above 292 years wraps around.
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
    """Quote *text* as Go's %q does; nsqd writes names into its error frames this way."""
    return '"' + "".join(map(_go_escape, text.decode("utf-8", "surrogateescape"))) + '"'


def _go_escape(char: str) -> str:
    if char in _GO_ESCAPES:
        return _GO_ESCAPES[char]
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8; its low byte is the byte
        return f"\\x{ord(char) & 0xFF:02x}"
    if char <= "\x7f":
        return f"\\x{ord(char):02x}"
    if char <= "\uffff":
        return f"\\u{ord(char):04x}"
    return f"\\U{ord(char):08x}"
