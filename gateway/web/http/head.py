"""
The head of one HTTP/1.1 request, and the framing of its body (RFC 9112 §2, §3, §5 to §7).

llhttp, the parser of httptools, parses and validates every byte, but does not stop where a request
ends. This module adds exact message boundaries: a `HeadReader` stops after the empty line, a
`ChunkedBody` after its last trailer. So a connection parses no byte of a request before it has
responded to the previous one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from gateway.errors import HeadersTooLarge, InvalidRequest, TooManyHeaders

MAX_HEAD_BYTES = 65_536
"""Maximum size of a head, and of what precedes the data of a chunk or follows the last chunk."""
MAX_HEADERS = 128
"""Maximum headers of a head: `MAX_HEAD_BYTES` of empty ones would become thousands of objects."""
MAX_LIST_ITEMS = 128
"""Maximum items of a list header such as Connection, over all of its lines."""

_HEADER_OBJECTS_BYTES = 192
"""Memory of one header in addition to its bytes: a tuple and two bytes objects."""

HEAD_END = b"\r\n\r\n"
EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_VERSIONS = frozenset({"1.0", "1.1"})
_REQUEST_LINE = re.compile(rb"[^ \r\n]+ [^ \r\n]+ HTTP/\d\.\d\r\n")
"""llhttp accepts several spaces and RTSP/1.0; RFC 9112 §3 requires single spaces."""
_OWS = b" \t"
_CR = b"\r"

# llhttp reads a body only after a head: this one, which is always the same.
_CHUNKED_REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]+")
_MAX_CHUNK_STEPS = 500
"""Maximum size lines and data pieces per `feed`, 1 to 2 ms; then other connections must run."""


class HeadReader:
    """
    Read the head of one request.

    The attributes are valid once `feed` has set `is_complete`. Every request needs a new reader, so
    that no state of llhttp carries over from one request to the next.
    """

    __slots__ = (
        "_parser",
        "content_length",
        "expects_continue",
        "headers",
        "is_chunked",
        "is_complete",
        "keep_alive",
        "method",
        "raw",
        "target",
        "version",
        "wants_websocket",
    )

    def __init__(self) -> None:
        self.raw = b""
        """The bytes received so far."""
        self.is_complete = False
        self.method = b""
        self.target = b""
        self.version = ""
        """``1.0`` or ``1.1``."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case, values without surrounding white space (RFC 9110 §5.5)."""
        self.content_length: int | None = None
        self.is_chunked = False
        self.keep_alive = False
        """True if another request may follow on the connection; always False in HTTP/1.0."""
        self.expects_continue = False
        """True if the client waits for ``100 Continue`` before it sends the body."""
        self.wants_websocket = False
        """True if the client requests an upgrade to WebSocket; other upgrades are ignored."""
        self._parser: httptools.HttpRequestParser | None = None

    @property
    def has_body(self) -> bool:
        """True if the request has a body; a chunked body may turn out to be empty."""
        return self.is_chunked or bool(self.content_length)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory that this reader takes: raw bytes, their copies, and objects."""
        return 2 * len(self.raw) + _HEADER_OBJECTS_BYTES * len(self.headers)

    def feed(self, data: bytes, start: int) -> int:
        """
        Read *data* from the offset *start*; return the offset after the last byte consumed.

        Raises:
            InvalidRequest: The head is not valid HTTP/1.0 or HTTP/1.1, or is ambiguous.
            HeadersTooLarge: The head has more than `MAX_HEAD_BYTES`. Its subclass TooManyHeaders
                means more than `MAX_HEADERS`, or a list header of more than `MAX_LIST_ITEMS`.
        """
        fed_bytes = len(self.raw)
        whole = self.raw + (data[start:] if start else data)
        start -= fed_bytes  # the offset in *data* at which `whole` begins; may be negative
        if fed_bytes <= len(_CR) and self.raw in (b"", _CR):
            # Ignore empty lines before the head (RFC 9112 §2.2). A read may end within one, after
            # CR. They are neither kept nor passed to llhttp.
            fed_bytes = 0
            lines = EMPTY_LINES.match(whole)
            begin = lines.end() if lines else 0
            start += begin
            whole = whole[begin:]
            if whole in (b"", _CR):
                self.raw = whole
                return start + len(whole)
        # The empty line may begin with bytes of earlier reads.
        end = whole.find(HEAD_END, max(0, fed_bytes - len(HEAD_END) + 1))
        if end >= 0:
            # llhttp must not get bytes of the body or of the next request.
            whole = whole[: end + len(HEAD_END)]
        self.raw = whole
        if len(whole) > MAX_HEAD_BYTES:
            raise HeadersTooLarge(len(whole), limit_bytes=MAX_HEAD_BYTES)
        parser = self._parse(whole[fed_bytes:] if fed_bytes else whole)
        if end >= 0:
            self._complete(parser)
        return start + len(whole)

    def _parse(self, part: bytes) -> httptools.HttpRequestParser:
        """Feed *part* to llhttp; return the parser."""
        parser = self._parser
        if parser is None:
            # The callbacks are a separate object: reader and parser would form a reference cycle,
            # which only the garbage collector frees.
            parser = self._parser = httptools.HttpRequestParser(_Callbacks(self.headers))
        try:
            parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # raised after the empty line of an upgrade; the caller handles it
        except httptools.HttpParserError as error:
            count = len(self.headers)
            if count > MAX_HEADERS:  # llhttp reports the exception of the callback as its own error
                raise TooManyHeaders(count, limit=MAX_HEADERS, what="headers") from None
            raise _refusal(f"invalid HTTP: {error}") from None
        return parser

    def _complete(self, parser: httptools.HttpRequestParser) -> None:
        """
        Set the attributes from *parser*.

        Raises:
            InvalidRequest: llhttp has accepted the head, but RFC 9112 forbids it.
            TooManyHeaders: A list header has more than `MAX_LIST_ITEMS`.
        """
        self._parser = None
        self.is_complete = True
        line = _REQUEST_LINE.match(self.raw)
        self.method = parser.get_method()
        self.version = parser.get_http_version()
        if self.version not in _VERSIONS:
            raise _refusal(f"the version is HTTP/{self.version}; allowed: 1.0 and 1.1")
        if line is None:
            raise _refusal("the request line is not METHOD SP TARGET SP HTTP/1.1")
        # Not llhttp's on_url: that gets the target in pieces, as it arrived.
        self.target = line.group().split(b" ")[1]
        self._read_framing()
        if self.version == "1.1":
            # Not llhttp's should_keep_alive(): it is reset after a request without a body.
            options = _list_items(self.headers, b"connection")
            self.keep_alive = b"close" not in options
            # Upgrade must be ignored in HTTP/1.0 (RFC 9110 §7.8).
            protocols = _list_items(self.headers, b"upgrade") if b"upgrade" in options else ()
            self.wants_websocket = b"websocket" in protocols
        else:
            # A 100-continue in HTTP/1.0 must be ignored (RFC 9110 §10.1.1).
            self.expects_continue = False

    def _read_framing(self) -> None:
        """
        Read Host, Expect, and the headers that determine the length of the body.

        llhttp has already refused more than one Content-Length, a Content-Length together with
        Transfer-Encoding (request smuggling), and a Content-Length that is not a number.
        """
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
                # An invalid Host must be refused (RFC 9112 §3.2); llhttp allows spaces in values.
                if b" " in value or b"\t" in value:
                    raise _refusal(
                        "Host contains a space; expected a name or address, and optionally a port"
                    )
            elif name == b"content-length":
                # Leading zeros are valid, but int() limits the number of digits.
                self.content_length = int(value.lstrip(b"0") or b"0")
            elif name == b"transfer-encoding":
                self._read_encoding(value)
            elif name == b"expect" and value:
                self._read_expectation(value)
        if hosts > 1 or (hosts == 0 and self.version == "1.1"):
            raise _refusal(f"the request has {hosts} Host headers; HTTP/1.1 requires exactly one")

    def _read_encoding(self, value: bytes) -> None:
        if value.lower() != b"chunked":
            raise _refusal("Transfer-Encoding is not chunked; no other coding is supported")
        if self.version == "1.0":
            # Faulty framing: a proxy that knows no chunks may have forwarded it (RFC 9112 §6.1).
            raise _refusal("HTTP/1.0 has no Transfer-Encoding; send a Content-Length")
        self.is_chunked = True

    def _read_expectation(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            shown = value[:80].decode("latin-1")
            text = f"Expect is {shown!r}; only 100-continue is supported"
            raise InvalidRequest("EXPECTATION_FAILED", text)
        self.expects_continue = True


class _Callbacks:
    """What llhttp calls while it parses a head."""

    __slots__ = ("_headers",)

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; beyond `MAX_HEADERS`, stop llhttp."""
        self._headers.append((name.lower(), value.strip(_OWS)))
        if len(self._headers) > MAX_HEADERS:
            # llhttp turns this into its own error; `HeadReader._parse` then counts the headers.
            raise OverflowError


class ChunkedBody:
    """
    Read one chunked body, and no byte of the request after it (RFC 9112 §7.1).

    `feed` passes llhttp one size line, then exactly as many bytes of data as that line says, then
    the next line. So llhttp has validated each size before it is used here, and llhttp reports the
    end of the body exactly when it gets the last line.
    """

    __slots__ = ("_between_bytes", "_left_bytes", "_line", "_parser", "_sink", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self._sink = _ChunkSink()
        self._parser = httptools.HttpRequestParser(self._sink)
        self._parser.feed_data(_CHUNKED_REQUEST)
        self._left_bytes = 0
        """Unread bytes of the current chunk, including its line end; 0 within a size line."""
        self._line = b""
        """The part of a size line or trailer that has arrived."""
        self._between_bytes = 0
        """Bytes after the last data of a chunk: sizes, extensions, trailers."""

    def feed(self, data: bytes, start: int) -> tuple[bytes, int]:
        """
        Read *data* from the offset *start*, for a bounded time.

        Returns:
            The data of the chunks, and the offset after the last byte consumed. Bytes after this
            offset belong to the next request if `is_complete`; otherwise call `feed` again.

        Raises:
            InvalidRequest: The chunks are malformed.
            HeadersTooLarge: There are more than `MAX_HEAD_BYTES` between the data of two chunks, or
                after the last one.
        """
        sink = self._sink
        view = memoryview(data)  # slices of *data* would copy each chunk
        at = start
        for _ in range(_MAX_CHUNK_STEPS):
            if at == len(data) or sink.is_complete:
                break
            if self._left_bytes:
                # Data: exactly up to the end of this chunk.
                end = min(len(data), at + self._left_bytes)
                self._left_bytes -= end - at
                self._between_bytes = 0
            else:
                # A size line or a trailer, of which any part may have arrived.
                end = data.find(b"\n", at) + 1 or len(data)
                self._between_bytes += end - at
                self._line += data[at:end]
                if self._between_bytes > MAX_HEAD_BYTES:
                    raise HeadersTooLarge(self._between_bytes, limit_bytes=MAX_HEAD_BYTES)
            try:
                self._parser.feed_data(view[at:end])
            except httptools.HttpParserError as error:
                raise _refusal(f"invalid chunked body: {error}") from None
            if sink.chunk_begun:
                sink.chunk_begun = False
                self._left_bytes = _chunk_bytes(self._line)
            if self._line.endswith(b"\n"):
                self._line = b""
            at = end
        self.is_complete = sink.is_complete
        parts, sink.parts = sink.parts, []
        return b"".join(parts), at


class _ChunkSink:
    """What llhttp calls while it parses a chunked body."""

    __slots__ = ("chunk_begun", "is_complete", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.chunk_begun = False
        self.is_complete = False

    def on_chunk_header(self) -> None:
        """Called at the end of a size line."""
        self.chunk_begun = True

    def on_body(self, data: bytes) -> None:
        """Add a piece of the data of a chunk."""
        self.parts.append(data)

    def on_message_complete(self) -> None:
        """Called at the end of the body; trailers are discarded (RFC 9110 §6.5.1)."""
        self.is_complete = True


def _chunk_bytes(line: bytes) -> int:
    """Parse a size line; return the size of the chunk plus its line end, or 0 for the last."""
    found = _CHUNK_SIZE.match(line)
    size_bytes = int(found.group(), 16) if found else 0
    return size_bytes + len(b"\r\n") if size_bytes else 0


def check_list_length(values: Iterable[bytes], name: str) -> None:
    """
    Count the items of the list header *name*, which has these *values*.

    Raises:
        TooManyHeaders: There are more than `MAX_LIST_ITEMS`.
    """
    count = sum(value.count(b",") + 1 for value in values)
    if count > MAX_LIST_ITEMS:
        raise TooManyHeaders(count, limit=MAX_LIST_ITEMS, what=f"items of {name}")


def _list_items(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> set[bytes]:
    """
    Return the items of the list header *wanted*, in lower case (RFC 9110 §5.6.1).

    Raises:
        TooManyHeaders: There are more than `MAX_LIST_ITEMS`.
    """
    values = [value for name, value in headers if name == wanted]
    if not values:
        return set()
    check_list_length(values, wanted.decode().title())
    return {item.strip(_OWS).lower() for value in values for item in value.split(b",")}


def decode_target(target: bytes) -> tuple[bytes, bytes]:
    """
    Return the decoded path and the raw query of a target in any form (RFC 9112 §3.2).

    Raises:
        InvalidRequest: *target* is neither a path nor a URL.
    """
    if target == b"*":
        return target, b""
    parsed = _parse_url(target)
    return unquote_to_bytes(parsed.path or b"/"), parsed.query or b""


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Return path and query of *target*, both undecoded; raises as `decode_target` does."""
    target = target.partition(b"#")[0]  # first, because a fragment may contain "?"
    path, _, query = target.partition(b"?")
    if path.startswith(b"/") or target == b"*":
        return path, query
    parsed = _parse_url(target)
    return parsed.path or b"/", parsed.query or b""


def _parse_url(target: bytes) -> Any:  # noqa: ANN401 - httptools names no type for it
    try:
        return httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise _refusal("the request target is neither a path nor an http:// URL") from None


def _refusal(text: str) -> InvalidRequest:
    return InvalidRequest("INVALID_REQUEST", text)
