"""A small page that subscribes with the browser's own WebSocket, on its own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_PAGE = b"""<!doctype html>
<meta charset="utf-8">
<title>A subscriber</title>
<script>
"use strict";
/** One socket; objects come one at a time, with a limit on every wait. */
class Subscriber {
  constructor(url, protocols = []) {
    this.socket = new WebSocket(url, protocols);
    this.waiting = [];
    this.objects = [];
    this.opened = new Promise((resolve) => {
      this.socket.addEventListener("open", () => resolve(this.socket.protocol));
      this.socket.addEventListener("close", () => resolve("closed before it was open"));
    });
    this.closed = new Promise((resolve) => {
      this.socket.addEventListener("close", ({ code, reason }) => resolve({ code, reason }));
    });
    this.socket.addEventListener("message", ({ data }) => {
      for (const line of data.split("\\n")) {
        const object = JSON.parse(line);
        const waits = this.waiting.shift();
        if (waits) waits(object);
        else this.objects.push(object);
      }
    });
  }

  send(...commands) {
    this.socket.send(commands.map((command) => JSON.stringify(command)).join("\\n"));
  }

  next() {
    if (this.objects.length) return Promise.resolve(this.objects.shift());
    return new Promise((resolve, reject) => {
      this.waiting.push(resolve);
      setTimeout(() => reject(new Error("nothing came for 10 s")), 10_000);
    });
  }

  async take(count) {
    const taken = [];
    while (taken.length < count) taken.push(await this.next());
    return taken;
  }

  ask(command) {
    this.send(command);
    return this.next();
  }
}
</script>
"""
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(_PAGE)
)


@dataclass(frozen=True)
class BrowserPage:
    """A page with two host names, which a browser treats as two origins."""

    ours: str
    """Its origin by address."""
    foreign: str
    """Its origin by name."""


@asynccontextmanager
async def browser_page() -> AsyncIterator[BrowserPage]:
    """Serve the page at every path until the block ends."""
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield BrowserPage(ours=f"http://127.0.0.1:{port}", foreign=f"http://localhost:{port}")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_HEAD + _PAGE)
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # a browser opens connections that it then does without
    finally:
        writer.close()
