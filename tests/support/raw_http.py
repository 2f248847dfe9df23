"""HTTP/1.1 as it stands on the wire: a client that corrects nothing of what a test asks for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    """What came back, header names in small letters."""

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


async def exchange(
    address: str, method: str, target: str, body: bytes = b"", *, chunked: bool = False
) -> RawAnswer:
    """Send one request to *address* (host:port) on a connection of its own; read to the end."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n".encode()
    if chunked:
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        request = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    else:
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    try:
        writer.write(request)
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return _parse(answer)


def _parse(answer: bytes) -> RawAnswer:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return RawAnswer(status=int(first.split()[1]), headers=headers, body=body)
