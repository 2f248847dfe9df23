"""
An auth server for nsqd (``--auth-http-address``) with a table of grants set by tests.

nsqd sends ``GET /auth?common_name=…&remote_ip=…&secret=…&tls=…`` and expects 200
with JSON; any other status, or no response, is a refusal. Source: internal/auth/authorizations.go.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.brokers.killable_broker import free_port

_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Permissions on topics and channels; regular expressions, which nsqd does not anchor."""

    topic: str = ".*"
    channels: tuple[str, ...] = (".*",)
    """Publishing needs one that matches the empty channel, as this does."""
    permissions: tuple[str, ...] = ("subscribe", "publish")


@dataclass(frozen=True, kw_only=True)
class AuthRequest:
    """The query parameters of one request from nsqd."""

    secret: str
    common_name: str
    remote_ip: str
    tls: str


class AuthServer:
    """A running auth server with its table of secrets; make one with `auth_server`."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        """Value for ``--auth-http-address``; constant during a test."""
        self.counts: Counter[str] = Counter()
        """Number of nsqd's requests, by secret."""
        self._answers: dict[str, dict[str, Any]] = {}
        self._questions: asyncio.Queue[AuthRequest] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def grant(
        self,
        secret: str,
        *grants: Grant,
        ttl_s: int = 3600,
        identity: str = "",
        identity_url: str = "",
    ) -> None:
        """
        Grant *secret* the permissions *grants*; nsqd caches the response for *ttl_s*.

        Without grants, nsqd accepts the secret but allows nothing (E_UNAUTHORIZED).
        """
        self._answers[secret] = {
            "ttl": ttl_s,
            "authorizations": [asdict(grant) for grant in grants],
            "identity": identity,
            "identity_url": identity_url,
        }

    def revoke(self, secret: str) -> None:
        """Answer *secret* with 403 from now on, as one that was never known."""
        self._answers.pop(secret, None)

    async def asked(self) -> AuthRequest:
        """Return the next request of nsqd not returned before; its response is being sent."""
        async with asyncio.timeout(_WAIT_S):
            return await self._questions.get()

    async def come_back(self) -> None:
        """Start listening, for the first time or after a stop."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port), reuse_address=True)

    async def go_down(self) -> None:
        """Refuse connections, and end those that are open; the table stays."""
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            status, body = self._answer(head.split()[1].decode())
            said = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(said.encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # nsqd has given up, or the test has taken the server down
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, target: str) -> tuple[str, bytes]:
        """Return status and body of the response, and record the request."""
        parts = urlsplit(target)
        if parts.path != "/auth":
            return "404 Not Found", b""
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        names = ("secret", "common_name", "remote_ip", "tls")
        question = AuthRequest(**{name: asked.get(name, "") for name in names})
        self.counts[question.secret] += 1
        self._questions.put_nowait(question)
        answer = self._answers.get(question.secret)
        if answer is None:
            return "403 Forbidden", b""
        return "200 OK", json.dumps(answer).encode()


@asynccontextmanager
async def auth_server() -> AsyncIterator[AuthServer]:
    """Listen on a free port of 127.0.0.1; no secret is known at first."""
    server = AuthServer()
    await server.come_back()
    try:
        yield server
    finally:
        await server.go_down()
