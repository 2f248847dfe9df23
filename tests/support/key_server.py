"""An HTTP server that answers as an issuer's `jwks_url` does, or should not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


def http_response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


class KeyServer:
    """A running server; make one with `key_server`."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: bytes | None = None
        """What every request is answered with; None: nothing, and the connection stays open."""
        self.requests: list[bytes] = []
        self._came = asyncio.Condition()
        self._serving: set[asyncio.Task[None]] = set()

    def serve_keys(self, body: bytes) -> None:
        """Answer with *body* from now on."""
        self.answer = http_response(body, "200 OK", "Content-Type: application/json")

    async def wait_for_requests(self, count: int) -> None:
        """Wait until *count* requests have come since the start."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.requests) >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                async with self._came:
                    self._came.notify_all()
                if self.answer is None:
                    await reader.read()
                else:
                    writer.write(self.answer)
                    await writer.drain()
        finally:
            self._serving.discard(task)
            writer.close()

    async def stop(self) -> None:
        """End the connections that are still open."""
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)


@asynccontextmanager
async def key_server() -> AsyncIterator[KeyServer]:
    """Run a server on loopback."""
    made = KeyServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"http://127.0.0.1:{port}/keys"
    try:
        yield made
    finally:
        server.close()
        await made.stop()
