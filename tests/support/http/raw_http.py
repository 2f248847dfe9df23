"""An HTTP/1.1 client that sends exactly the given bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.support.websocket.raw_socket import RawSocket, raw_socket

_TALK_TIMEOUT_S = 60.0

_PROBE = b"GET /PING?probe HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"
_PROBE_LOCATION = "/ping?probe"
"""Redirect target of the probe request, of nsqd and the gateway; unique among responses."""


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    """A response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """The error token of nsqd, empty when the body has none."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return ""
        return str(document.get("message", "")) if isinstance(document, dict) else ""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """The responses on one connection."""

    answers: tuple[RawAnswer, ...]
    stays_open: bool
    """True if one more request was answered afterwards."""


async def exchange(
    address: str, method: str, target: str, body: bytes = b"", *, chunked: bool = False
) -> RawAnswer:
    """Send one request to *address* (host:port) on a new connection."""
    head = f"{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n".encode()
    if chunked:
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        request = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    else:
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return await send_raw_request(address, request)


async def send_raw_request(address: str, request: bytes) -> RawAnswer:
    """Send *request* unchanged; return the first response, once the peer has closed."""
    async with raw_socket(address) as raw:
        await _send(raw, request)
        answer = await read_response(raw, has_body=not request.startswith(b"HEAD "))
        await raw.read_to_end()
        return answer


async def send_pieces(address: str, pieces: Sequence[bytes], *, ends: bool = False) -> Conversation:
    """
    Send *pieces* to *address* on one connection, each after a response to the previous one.

    After the last response, a probe request shows whether the connection stays open; with *ends*,
    the client half-closes instead. All responses are read.
    """
    answers: list[RawAnswer] = []
    async with asyncio.timeout(_TALK_TIMEOUT_S), raw_socket(address) as raw:
        with suppress(EOFError, ConnectionError):
            for number, piece in enumerate(pieces, 1):
                await _send(raw, piece)
                if ends and number == len(pieces):
                    raw.end()
                answers.append(await read_response(raw, has_body=not piece.startswith(b"HEAD ")))
            if not ends:
                await _send(raw, _PROBE)
            while True:
                answers.append(await read_response(raw))
    stays_open = bool(answers) and answers[-1].headers.get("location") == _PROBE_LOCATION
    return Conversation(
        answers=tuple(answers[:-1] if stays_open else answers), stays_open=stays_open
    )


async def _send(raw: RawSocket, data: bytes) -> None:
    """Send *data*; after a write error, the response can still be read."""
    with suppress(ConnectionError):
        await raw.send(data)


async def read_response(raw: RawSocket, *, has_body: bool = True) -> RawAnswer:
    """
    Return the next response; the response to HEAD has no body, whatever its headers say.

    Without a length, the body ends with the connection. Raises EOFError if the response is cut off.
    """
    head = (await raw.read_until(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
    status, headers = _parse_head(head)
    body = b""
    if not has_body or status < 200 or status in {204, 304}:
        pass
    elif headers.get("transfer-encoding") == "chunked":
        body = await _read_chunks(raw)
    elif "content-length" in headers:
        body = await raw.read_exactly(int(headers["content-length"]))
    else:
        body = await raw.read_to_end()
    return RawAnswer(status=status, headers=headers, body=body)


async def _read_chunks(raw: RawSocket) -> bytes:
    chunks = []
    while size_bytes := int(await raw.read_until(b"\r\n"), 16):
        chunks.append(await raw.read_exactly(size_bytes))
        await raw.read_until(b"\r\n")
    await raw.read_until(b"\r\n")
    return b"".join(chunks)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(first.split()[1]), headers
