"""
nsqd's HTTP grammar: routes, queries, checks in nsqd's order, error tokens, /mpub bodies.

This module does no I/O: `web` and `broker` read the request and write the response. Invalid
requests raise `InvalidRequest` with nsqd's token; the text is our own and names the value, the
limit and its unit. One difference: nsqd redirects ``/config//`` to a path that does not exist; here
it is 404.

Sources: nsqd/http.go; internal/http_api; httprouter 1.3.0, ServeHTTP; Go's net/url. Tests compare
with a real nsqd.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, unquote_to_bytes

from gateway.errors import InvalidRequest
from gateway.protocol.commands import PackedBodies, pack_bodies
from gateway.protocol.wire import INT32, Limits, is_valid_name

ROUTES: Mapping[str, tuple[str, ...]] = {
    "/ping": ("GET",),
    "/info": ("GET",),
    "/pub": ("POST",),
    "/mpub": ("POST",),
    "/stats": ("GET",),
    "/topic/create": ("POST",),
    "/topic/delete": ("POST",),
    "/topic/empty": ("POST",),
    "/topic/pause": ("POST",),
    "/topic/unpause": ("POST",),
    "/channel/create": ("POST",),
    "/channel/delete": ("POST",),
    "/channel/empty": ("POST",),
    "/channel/pause": ("POST",),
    "/channel/unpause": ("POST",),
    "/config/:opt": ("GET", "PUT"),
}
"""
nsqd's paths and their methods; ``:opt`` matches one path segment.

Without /debug, which is about Go's runtime: its paths are 404 here.
"""


MOVED_PERMANENTLY = 301


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request; *argument* is the path segment at ``:opt``, if the route has one."""

    route: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """
    A redirect to *location*, the path of a route.

    The path of the request differs only in slashes, dot segments or letter case. The caller
    appends the query.
    """

    status: int
    location: str


@dataclass(frozen=True, slots=True)
class OptionsResponse:
    """The response to OPTIONS: 200 with an ``Allow`` header."""

    allow: str


@dataclass(frozen=True, slots=True)
class RouteError:
    """
    The path has no route (NOT_FOUND), or none with this method (METHOD_NOT_ALLOWED).

    In the second case, *allow* is the ``Allow`` header.
    """

    token: str
    allow: str = ""


RouteResult: TypeAlias = RouteMatch | Redirect | OptionsResponse | RouteError


def find_route(
    method: str, path: str, *, routes: Mapping[str, tuple[str, ...]] = ROUTES
) -> RouteResult:
    """
    Return the route of a request, or nsqd's response if it has none.

    *path* is decoded, without the query. The order is that of httprouter's ServeHTTP: an exact
    match; a redirect to a route with this method, if the path differs from it only in slashes and
    letter case; the response to OPTIONS; 405; 404.
    """
    found = _match(path, routes)
    methods = routes[found.route] if found else ()
    if found and method in methods:
        return found
    if path != "/":  # httprouter never redirects "/"
        cleaned = _match_cleaned(path, routes)
        if cleaned and method in routes[cleaned.route]:
            location = cleaned.route.replace(":opt", quote(cleaned.argument, safe="$&+,:;=@"))
            # 307 keeps the method and the body of a POST.
            return Redirect(MOVED_PERMANENTLY if method == "GET" else 307, location)
    if not methods:
        return RouteError("NOT_FOUND")
    if method == "OPTIONS":
        return OptionsResponse(", ".join(sorted((*methods, "OPTIONS"))))
    return RouteError("METHOD_NOT_ALLOWED", ", ".join(sorted((*methods, "OPTIONS"))))


def _match(path: str, routes: Mapping[str, tuple[str, ...]]) -> RouteMatch | None:
    """Return the route that matches *path* exactly."""
    # A request for the path "/config/:opt" asks for the option ":opt".
    if path in routes and ":" not in path:
        return RouteMatch(path)
    parent, _, last = path.rpartition("/")
    route = f"{parent}/:opt"
    return RouteMatch(route, last) if last and route in routes else None


def _match_cleaned(path: str, routes: Mapping[str, tuple[str, ...]]) -> RouteMatch | None:
    """Return the route that matches *path* without regard to slashes, dot segments and case."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    lowered = [part.lower() for part in parts]
    found = _match("/" + "/".join(lowered), routes)
    # The case of an argument counts: it is not part of the route.
    return RouteMatch(found.route, parts[-1]) if found and found.argument else found


OK = b"OK"
"""nsqd's response to a successful publish."""
TEXT = b"text/plain; charset=utf-8"
"""Content type of a text response."""
JSON = b"application/json; charset=utf-8"
"""Content type of a JSON response, and of nsqd's errors."""
NSQ_HEADER = (b"x-nsq-content-type", b"nsq; version=1.0")
"""Header of every response except those of /ping, OPTIONS and redirects; go-nsq reads it."""

HTTP_STATUS: Mapping[str, int] = {
    "INVALID_REQUEST": 400,
    "MISSING_ARG_TOPIC": 400,
    "MISSING_ARG_CHANNEL": 400,
    "MISSING_ARG_NODE": 400,
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
    "EXPECTATION_FAILED": 417,
    "INTERNAL_ERROR": 500,
    "EXITING": 503,
}
"""
The HTTP status of each error token of nsqd and nsqlookupd.

One exception is not in this table: `OPTION_SIZE_STATUS`.
"""

OPTION_SIZE_STATUS = 413
"""
Status of INVALID_VALUE if the body of PUT /config is empty, or larger than max_msg_size.

nsqd looks at the size before the name of the option.
"""


def tls_required_body(https_port: int) -> bytes:
    """Return the body of the 403 at the plain HTTP port; NSQ's own client reads the port."""
    # Unlike nsqd's other errors, this one has spaces.
    return b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port


def status_of(token: str) -> int:
    """Return the HTTP status of the error *token*; 400 if nsqd has no such token."""
    return HTTP_STATUS.get(token, 400)


# Query

_MAX_PARAMETERS = 128
"""Maximum number of parameters: every name is decoded, known or not. No route has over eight."""
_INVALID_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)


class HttpQuery:
    """The query parameters of a request; of a repeated name, only the first value is kept."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values  # `get` decodes them

    def get(self, name: str) -> bytes | None:
        """Return the decoded value of *name*; None if the parameter is absent."""
        value = self._values.get(name)
        return None if value is None else _unescape(value)

    def __iter__(self) -> Iterator[str]:
        """Yield each name once, in the order of the query."""
        return iter(self._values)


def parse_query(raw: bytes) -> HttpQuery:
    """
    Parse a raw query, without ``?``, as strictly as nsqd (net/url, parseQuery).

    ``&`` separates parameters, ``+`` means a space, empty parameters are skipped, and a parameter
    without ``=`` has an empty value. nsqd 1.3.0 has no limit for the number of parameters; newer Go
    allows 10,000.

    Raises:
        InvalidRequest: A ``;``, an invalid percent escape, or too many parameters
            (INVALID_REQUEST).
    """
    count = raw.count(b"&") + 1
    if count > _MAX_PARAMETERS:
        raise InvalidRequest(
            "INVALID_REQUEST", f"the query has {count} parameters; the limit is {_MAX_PARAMETERS}"
        )
    # Go's net/url refuses ";", which was once a separator like "&".
    if b";" in raw:
        raise InvalidRequest(
            "INVALID_REQUEST", 'the query contains ";"; separate parameters by "&"'
        )
    if b"%" in raw and (invalid := _INVALID_ESCAPE.search(raw)):
        raise InvalidRequest(
            "INVALID_REQUEST",
            f"the query contains {_quoted(invalid[0])}; '%' needs two hexadecimal digits after it",
        )
    values: dict[str, bytes] = {}
    for pair in raw.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            # Known names are ASCII; latin-1 never fails and maps other names to unknown ones.
            values.setdefault(_unescape(name).decode("latin-1"), value)
    return HttpQuery(values)


def _unescape(text: bytes) -> bytes:
    """Decode ``+`` and percent escapes, which `parse_query` has validated."""
    if b"+" in text:
        text = text.replace(b"+", b" ")
    return unquote_to_bytes(text) if b"%" in text else text


def _quoted(value: bytes) -> str:
    """Return *value* as a JSON string for an error text, shortened to 80 bytes."""
    text = json.dumps(value[:_MAX_QUOTED_BYTES].decode("utf-8", "replace"))
    return text if len(value) <= _MAX_QUOTED_BYTES else f"{text}…"


_MAX_QUOTED_BYTES = 80


# Parameters

_NAME_RULE = (
    "1 to 64 bytes of letters, digits, '.', '_' and '-', optionally followed by #ephemeral "
    "(%23ephemeral in a URL)"
)


def require_topic(query: HttpQuery) -> str:
    """
    Return the valid topic of /pub, /mpub, /topic/create and /topic/empty.

    Raises:
        InvalidRequest: MISSING_ARG_TOPIC, INVALID_TOPIC.
    """
    return _checked_name("topic", require_topic_unchecked(query), "INVALID_TOPIC")


def require_topic_unchecked(query: HttpQuery) -> bytes:
    """
    Return the topic of /topic/delete, pause and unpause, which nsqd does not validate.

    Raises:
        InvalidRequest: MISSING_ARG_TOPIC.
    """
    return _required("topic", query, "MISSING_ARG_TOPIC")


def require_topic_and_channel(query: HttpQuery) -> tuple[str, str]:
    """
    Return the valid topic and channel of a channel route.

    Raises:
        InvalidRequest: MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL,
            INVALID_ARG_CHANNEL, in this order.
    """
    topic = _checked_name("topic", require_topic_unchecked(query), "INVALID_ARG_TOPIC")
    channel = _required("channel", query, "MISSING_ARG_CHANNEL")
    return topic, _checked_name("channel", channel, "INVALID_ARG_CHANNEL")


def require_node(query: HttpQuery) -> str:
    """
    Return the node, an nsqd's HTTP host:port; nsqlookupd's /topic/tombstone has it, nsqd has not.

    Raises:
        InvalidRequest: MISSING_ARG_NODE.
    """
    return _required("node", query, "MISSING_ARG_NODE").decode(errors="replace")


def parse_count(name: str, query: HttpQuery, unit: str, *, default: int, limit: int) -> int:
    """
    Return the number *name*, 1 to *limit*; *default* if it is absent. Errors name the *unit*.

    Raises:
        InvalidRequest: It is no such number (INVALID_REQUEST).
    """
    value = query.get(name)
    if value is None:
        return default
    # A few digits: int() of a long text takes long.
    if value.isdigit() and len(value) <= len(str(limit)) and 1 <= int(value) <= limit:
        return int(value)
    allowed = f"allowed: 1 to {limit} {unit}"
    raise InvalidRequest("INVALID_REQUEST", f"{name} is {_quoted(value)}; {allowed}")


def _required(name: str, query: HttpQuery, token: str) -> bytes:
    value = query.get(name)
    if value is None:
        raise InvalidRequest(token, f"{name} is missing")
    return value


def _checked_name(name: str, value: bytes, token: str) -> str:
    if not is_valid_name(value):
        raise InvalidRequest(
            token, f"{name} is {_quoted(value)}, {len(value)} bytes; allowed: {_NAME_RULE}"
        )
    return value.decode("ascii")


_INT = re.compile(rb"([+-]?)0*([0-9]{1,19})")


def int_or_none(text: bytes) -> int | None:
    """Parse an optional sign, zeros, and up to 19 digits; return None for any other *text*."""
    # Unlike int(), no spaces and no "_", as in Go; bounded, because int() is quadratic.
    match = _INT.fullmatch(text)
    if match is None:
        return None
    return -int(match[2]) if match[1] == b"-" else int(match[2])


def parse_defer_ms(query: HttpQuery, *, max_ms: int) -> int:
    """
    Return ``defer``, 0 to *max_ms* milliseconds, or 0 if it is absent.

    Raises:
        InvalidRequest: INVALID_DEFER, also for an empty value.
    """
    text = query.get("defer")
    if text is None:
        return 0
    value = int_or_none(text)
    if value is None or not 0 <= value <= max_ms:
        raise InvalidRequest(
            "INVALID_DEFER", f"defer is {_quoted(text)}; allowed: 0 to {max_ms} ms"
        )
    return value


_FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False}


def parse_flag(query: HttpQuery, name: str, *, absent: bool) -> bool:
    """Return the flag *name*: *absent* if it is missing; True for unknown values, as in nsqd."""
    value = query.get(name)
    return absent if value is None else _FLAGS.get(value, True)


def is_binary(query: HttpQuery) -> bool:
    """Return whether /mpub has a binary body: ``binary`` is given, and neither false nor 0."""
    return parse_flag(query, "binary", absent=False)


# Bodies


def check_body(size_bytes: int, *, limit_bytes: int) -> None:
    """
    Check the size of a /pub body, or its Content-Length before the body is read.

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
    Check the size of an /mpub body, or its Content-Length before topic and body are parsed.

    Raises:
        InvalidRequest: BODY_TOO_BIG.
    """
    if size_bytes > limit_bytes:
        raise InvalidRequest(
            "BODY_TOO_BIG", f"the body has {size_bytes} bytes; the limit is {limit_bytes} bytes"
        )


STEP_LINES = 2_048
"""Lines or messages per step: about half a millisecond of work."""
_MAX_STEP_BYTES = 65_536
_MIN_STEP_BYTES = 4_096
_COUNT_BYTES = 4
_SIZE_BYTES = 4


def iter_line_batches(body: bytes, limits: Limits) -> Iterator[list[bytes]]:
    r"""
    Yield the messages of a text body, one per line, in lists of about `STEP_LINES` lines.

    Only ``\n`` ends a line, empty lines are dropped, and the last line needs no newline. A body
    without messages is valid. The caller need not read more than max_body_size + 1 bytes of the
    body. As in nsqd, a body that is too big and also has a line that is too long, within its first
    max_body_size bytes, is refused for the line: MSG_TOO_BIG, not BODY_TOO_BIG.

    Raises:
        InvalidRequest: MSG_TOO_BIG, when the iteration reaches the line; BODY_TOO_BIG, at the end.
    """
    limit_bytes = limits.max_msg_size_bytes
    is_over = len(body) > limits.max_body_size_bytes
    # In a cut body, check only the lines that end within max_body_size.
    end = body.rfind(b"\n", 0, limits.max_body_size_bytes) if is_over else len(body)
    number = 0
    for piece in _pieces(body, end):
        lines = piece.split(b"\n")
        # In a piece within the limit, no line exceeds it: most pieces need no look at each line.
        if len(piece) > limit_bytes:
            for line_number, line in enumerate(lines, number + 1):
                if len(line) > limit_bytes:
                    detail = f"line {line_number} has {len(line)} bytes; the limit is {limit_bytes}"
                    raise InvalidRequest("MSG_TOO_BIG", f"{detail} bytes")
        number += len(lines)
        # Of a body that is too big, check the other lines, but return no messages.
        yield [] if is_over else list(filter(None, lines))
    check_multi_body(len(body), limit_bytes=limits.max_body_size_bytes)


def _pieces(body: bytes, end: int) -> Iterator[bytes]:
    """Cut *body* up to *end* into pieces of whole lines; yield each without its last newline."""
    start = 0
    size_bytes = _MAX_STEP_BYTES
    while start < end:
        # Count the lines before making objects of them.
        size_bytes = min(2 * size_bytes, _MAX_STEP_BYTES)
        while (
            size_bytes > _MIN_STEP_BYTES
            and body.count(b"\n", start, start + size_bytes) > STEP_LINES
        ):
            size_bytes //= 2
        cut = end
        if start + size_bytes < end:
            cut = body.rfind(b"\n", start, start + size_bytes)
            # A line longer than the piece: extend the piece to the end of the line.
            if cut < 0:
                cut = body.find(b"\n", start + size_bytes, end)
            if cut < 0:
                cut = end
        yield body[start:cut]
        start = cut + 1


def split_text_body(body: bytes, limits: Limits) -> Generator[None, None, PackedBodies]:
    """
    Generator: pack the lines of a text body, a step per ``next()``; return the messages.

    Raises:
        InvalidRequest: As `iter_line_batches`; also BODY_TOO_BIG if the messages do not fit into
            one MPUB, where each message takes 4 more bytes.
    """
    left_bytes = limits.max_body_size_bytes - _COUNT_BYTES
    chunks: list[bytes] = []
    count = 0
    for bodies in iter_line_batches(body, limits):
        if count or chunks:
            yield
        chunk = pack_bodies(bodies)
        left_bytes -= len(chunk)
        count += len(bodies)
        if left_bytes < 0 and count > 1:
            raise InvalidRequest(
                "BODY_TOO_BIG",
                f"the first {count} messages exceed the limit of {limits.max_body_size_bytes} "
                "bytes (each counts its size plus 4); send fewer per request",
            )
        chunks.append(chunk)
    return PackedBodies(chunks, count)


def split_binary_body(body: bytes, limits: Limits) -> Generator[None, None, PackedBodies]:
    """
    Generator: check the messages of a binary body, a step per ``next()``; return the messages.

    Layout, big-endian, as in MPUB: int32 count, then int32 size and body of each message. Bytes
    after the last message are ignored. Source: nsqd/protocol_v2.go, readMPUB.

    Raises:
        InvalidRequest: BAD_BODY (count), BAD_MESSAGE (size, or the body ends too early).
    """
    if len(body) < INT32.size:
        raise InvalidRequest(
            "BAD_BODY", f"the body has {len(body)} bytes; it must start with a count of 4 bytes"
        )
    (count,) = INT32.unpack_from(body)
    if not 1 <= count <= limits.max_mpub_count:
        raise InvalidRequest(
            "BAD_BODY", f"the count is {count}; allowed: 1 to {limits.max_mpub_count} messages"
        )
    limit_bytes = limits.max_msg_size_bytes
    size_at, end = INT32.unpack_from, len(body)
    start = _COUNT_BYTES
    for number in range(1, count + 1):
        if not number % STEP_LINES:
            yield
        if end < start + _SIZE_BYTES:
            raise InvalidRequest("BAD_MESSAGE", f"the body ends before message {number} of {count}")
        (size_bytes,) = size_at(body, start)
        # Signed, as in nsqd: a size of 2 GiB or more is negative.
        if not 1 <= size_bytes <= limit_bytes:
            raise InvalidRequest(
                "BAD_MESSAGE",
                f"message {number} announces {size_bytes} bytes; allowed: 1 to {limit_bytes} bytes",
            )
        start += _SIZE_BYTES + size_bytes
        if end < start:
            rest_bytes = end - start + size_bytes
            raise InvalidRequest(
                "BAD_MESSAGE",
                f"message {number} announces {size_bytes} bytes; the body has {rest_bytes} more",
            )
    # The layout is that of MPUB, so the body itself is the packed form.
    return PackedBodies([body[_COUNT_BYTES:start]], count)
