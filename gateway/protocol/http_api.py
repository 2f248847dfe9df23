"""
nsqd's HTTP grammar: query, checks in nsqd's order, error tokens, bodies of /mpub.

Nothing here reads or writes: web/ and broker/ bring the bytes and send the answer (the paths are
in http_routes.py). What a request does wrong is an `InvalidRequest` whose token is nsqd's; the
text is ours and tells the value, the limit and its unit. Sources: nsqd/http.go, internal/http_api,
Go's net/url; compared with a real nsqd in tests/protocol/test_http_api.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from gateway.errors import InvalidRequest
from gateway.protocol.wire import INT32, Limits, go_quote, is_valid_name

OK = b"OK"
"""What nsqd answers to a publish that is done."""
TEXT = b"text/plain; charset=utf-8"
"""The type of a text answer."""
JSON = b"application/json; charset=utf-8"
"""The type of an answer in JSON, and of nsqd's errors."""
NSQ_HEADER = (b"x-nsq-content-type", b"nsq; version=1.0")
"""On every answer but those of /ping, OPTIONS and redirects; go-nsq reads it."""

HTTP_STATUS: Mapping[str, int] = {
    "INVALID_REQUEST": 400,
    "MISSING_ARG_TOPIC": 400,
    "MISSING_ARG_CHANNEL": 400,
    "INVALID_TOPIC": 400,
    "INVALID_ARG_TOPIC": 400,
    "INVALID_ARG_CHANNEL": 400,
    "INVALID_DEFER": 400,
    "INVALID_OPTION": 400,
    "INVALID_VALUE": 400,
    "MSG_EMPTY": 400,
    "NOT_FOUND": 404,
    "TOPIC_NOT_FOUND": 404,
    "CHANNEL_NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "MSG_TOO_BIG": 413,
    "BODY_TOO_BIG": 413,
    "BAD_BODY": 413,
    "BAD_MESSAGE": 413,
    "INTERNAL_ERROR": 500,
    "EXITING": 503,
}
"""
Each error token of nsqd and its status.

Only for the size of a PUT /config nsqd says INVALID_VALUE with 413.
"""


def status_of(token: str) -> int:
    """Return the HTTP status of *token*; one that nsqd does not have is a wrong request, 400."""
    return HTTP_STATUS.get(token, 400)


# Query

_MAX_PAIRS = 10_000
_BAD_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)


class Query:
    """The parameters of a request by name; of a name given twice the first value holds."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values

    def get(self, name: str) -> bytes | None:
        """Return the value of *name*, decoded; empty when it has none, None when it is absent."""
        return self._values.get(name)


def parse_query(raw: bytes) -> Query:
    """
    Read a query as it came, without ``?``.

    Strict as nsqd is, source net/url, parseQuery: ``&`` separates, ``+`` is a space, an empty
    pair is skipped, ``a`` alone is present and empty. The bound on pairs is that of newer Go;
    nsqd 1.3.0 has none.

    Raises:
        InvalidRequest: A ``;``, a bad percent escape, or over 10000 pairs (INVALID_REQUEST).
    """
    if b";" in raw:
        raise InvalidRequest("INVALID_REQUEST", 'the query has a ";"; parameters are joined by "&"')
    if b"%" in raw and (bad := _BAD_ESCAPE.search(raw)):
        raise InvalidRequest(
            "INVALID_REQUEST",
            f"the query has {_shown(bad[0])}; a % is followed by two hexadecimal digits",
        )
    pairs = raw.split(b"&")
    if len(pairs) > _MAX_PAIRS:
        raise InvalidRequest(
            "INVALID_REQUEST", f"the query has {len(pairs)} parameters; at most {_MAX_PAIRS}"
        )
    values: dict[str, bytes] = {}
    for pair in pairs:
        if pair:
            name, _, value = pair.partition(b"=")
            # Names asked for are ASCII; latin-1 keeps the other bytes apart and never fails.
            values.setdefault(_unescape(name).decode("latin-1"), _unescape(value))
    return Query(values)


def _unescape(text: bytes) -> bytes:
    """Return *text* without ``+`` and percent escapes, which are known to be good."""
    if b"+" in text:
        text = text.replace(b"+", b" ")
    return unquote_to_bytes(text) if b"%" in text else text


def _shown(value: bytes) -> str:
    """Quote *value* for a person, cut when it is long."""
    longest = 80
    return go_quote(value) if len(value) <= longest else go_quote(value[:longest]) + "…"


# Parameters

_NAME_RULE = (
    "1 to 64 bytes of letters, digits, '.', '_' and '-', then nothing or #ephemeral "
    "(in an address %23ephemeral)"
)


def require_topic(query: Query) -> str:
    """
    Return the topic of /pub, /mpub, /topic/create and /topic/empty.

    Raises:
        InvalidRequest: MISSING_ARG_TOPIC, INVALID_TOPIC.
    """
    return _checked_name("topic", require_topic_unchecked(query), "INVALID_TOPIC")


def require_topic_unchecked(query: Query) -> bytes:
    """
    Return the topic of /topic/delete, pause and unpause: nsqd looks it up without a check.

    Raises:
        InvalidRequest: MISSING_ARG_TOPIC.
    """
    return _required("topic", query, "MISSING_ARG_TOPIC")


def require_topic_and_channel(query: Query) -> tuple[str, str]:
    """
    Return topic and channel of a channel route.

    Raises:
        InvalidRequest: MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL,
            INVALID_ARG_CHANNEL, tested in this order.
    """
    topic = _checked_name("topic", require_topic_unchecked(query), "INVALID_ARG_TOPIC")
    channel = _required("channel", query, "MISSING_ARG_CHANNEL")
    return topic, _checked_name("channel", channel, "INVALID_ARG_CHANNEL")


def _required(name: str, query: Query, token: str) -> bytes:
    value = query.get(name)
    if value is None:
        raise InvalidRequest(token, f"{name} is missing")
    return value


def _checked_name(name: str, value: bytes, token: str) -> str:
    if not is_valid_name(value):
        raise InvalidRequest(
            token, f"{name} is {_shown(value)}, {len(value)} bytes; allowed: {_NAME_RULE}"
        )
    return value.decode("ascii")


_INT = re.compile(rb"([+-]?)0*([0-9]{1,19})")


def parse_int64(text: bytes) -> int | None:
    """
    Read a number as Go's ``strconv.ParseInt(text, 10, 64)`` does; None when it is none.

    One sign, ASCII digits, no spaces, no ``_``, within 64 bits.
    """
    match = _INT.fullmatch(text)
    if match is None:
        return None
    value = -int(match[2]) if match[1] == b"-" else int(match[2])
    return value if -(2**63) <= value < 2**63 else None


def parse_defer_ms(query: Query, *, max_ms: int) -> int:
    """
    Return ``defer``, 0 to *max_ms* milliseconds; 0 when it is absent.

    nsqd multiplies to nanoseconds in 64 bits, so some values far above the limit wrap around into
    it; here every value above the limit is refused.

    Raises:
        InvalidRequest: INVALID_DEFER; an empty value too.
    """
    text = query.get("defer")
    if text is None:
        return 0
    value = parse_int64(text)
    if value is None or not 0 <= value <= max_ms:
        raise InvalidRequest("INVALID_DEFER", f"defer is {_shown(text)}; allowed: 0 to {max_ms} ms")
    return value


_FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False}


def parse_flag(query: Query, name: str, *, absent: bool) -> bool:
    """Return the flag *name*: *absent* when it is not there, true for every unknown value."""
    value = query.get(name)
    return absent if value is None else _FLAGS.get(value, True)


def is_binary(query: Query) -> bool:
    """Tell whether the body of /mpub is binary, which every value but false and 0 says."""
    return parse_flag(query, "binary", absent=False)


# Bodies


def check_body(size_bytes: int, *, limit_bytes: int) -> None:
    """
    Check the body of /pub; also its Content-Length, before the body is read.

    Raises:
        InvalidRequest: MSG_TOO_BIG, MSG_EMPTY.
    """
    if size_bytes > limit_bytes:
        raise InvalidRequest(
            "MSG_TOO_BIG",
            f"the message has {size_bytes} bytes; the limit is {limit_bytes} bytes",
        )
    if size_bytes == 0:
        raise InvalidRequest("MSG_EMPTY", f"the message has 0 bytes; allowed: 1 to {limit_bytes}")


def check_multi_body(size_bytes: int, *, limit_bytes: int) -> None:
    """
    Check the body of /mpub; also its Content-Length, before topic and body are looked at.

    Raises:
        InvalidRequest: BODY_TOO_BIG.
    """
    if size_bytes > limit_bytes:
        raise InvalidRequest(
            "BODY_TOO_BIG", f"the body has {size_bytes} bytes; the limit is {limit_bytes} bytes"
        )


def split_lines(body: bytes, limits: Limits) -> list[bytes]:
    r"""
    Return the messages of a text body, one a line; none is right too.

    ``\n`` alone ends a line, empty lines are dropped, a last line needs no end. *body* may have
    been cut at max_body_size + 1: a line that is too long before the cut comes first, as in nsqd.

    Raises:
        InvalidRequest: MSG_TOO_BIG, BODY_TOO_BIG.
    """
    limit_bytes = limits.max_msg_size_bytes
    lines = body.split(b"\n")
    if len(body) > limit_bytes:
        over = len(body) > limits.max_body_size_bytes
        for number, line in enumerate(lines[: _complete_lines(body, limits) if over else None], 1):
            if len(line) > limit_bytes:
                raise InvalidRequest(
                    "MSG_TOO_BIG",
                    f"line {number} has {len(line)} bytes; the limit is {limit_bytes} bytes",
                )
        check_multi_body(len(body), limit_bytes=limits.max_body_size_bytes)
    return [line for line in lines if line]


def _complete_lines(body: bytes, limits: Limits) -> int:
    """Count the lines whose end, with its newline, lies within max_body_size."""
    return body.count(b"\n", 0, limits.max_body_size_bytes)


def split_binary(body: bytes, limits: Limits) -> list[bytes]:
    """
    Return the messages of a binary body.

    Layout, big-endian: int32 count, then for each message int32 size and body. What follows the
    last message is ignored. Source: nsqd/protocol_v2.go, readMPUB.

    Raises:
        InvalidRequest: BAD_BODY (count), BAD_MESSAGE (size, or the body ends too early).
    """
    if len(body) < INT32.size:
        raise InvalidRequest(
            "BAD_BODY", f"the body has {len(body)} bytes; it starts with a count of 4 bytes"
        )
    (count,) = INT32.unpack_from(body)
    if not 1 <= count <= limits.max_mpub_count:
        raise InvalidRequest(
            "BAD_BODY", f"the count is {count}; allowed: 1 to {limits.max_mpub_count} messages"
        )
    limit_bytes = limits.max_msg_size_bytes
    messages = []
    start = INT32.size
    for number in range(1, count + 1):
        if len(body) < start + INT32.size:
            raise InvalidRequest("BAD_MESSAGE", f"the body ends before message {number} of {count}")
        (size_bytes,) = INT32.unpack_from(body, start)
        if not 1 <= size_bytes <= limit_bytes:
            raise InvalidRequest(
                "BAD_MESSAGE",
                f"message {number} announces {size_bytes} bytes; allowed: 1 to {limit_bytes} bytes",
            )
        start += INT32.size
        if len(body) < start + size_bytes:
            raise InvalidRequest(
                "BAD_MESSAGE",
                f"message {number} announces {size_bytes} bytes and {len(body) - start} are there",
            )
        messages.append(body[start : start + size_bytes])
        start += size_bytes
    return messages
