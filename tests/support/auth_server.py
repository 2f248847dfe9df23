"""
An auth server as nsqd asks one (``--auth-http-address``), with a table that a test changes.

nsqd sends ``GET /auth?common_name=…&remote_ip=…&secret=…&tls=…`` and takes 200 with JSON for an
answer; any other status, or no answer, is a refusal. Source: internal/auth/authorizations.go.
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

from tests.support.mortal_broker import free_port

_WAIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What may be done where; all are regular expressions that nsqd does not anchor."""

    topic: str = ".*"
    channels: tuple[str, ...] = (".*",)
    """Publishing needs one that matches the empty channel, as this does."""
    permissions: tuple[str, ...] = ("subscribe", "publish")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What nsqd asked, in its own words."""

    secret: str
    common_name: str
    remote_ip: str
    tls: str


class AuthServer:
    """Knows secrets and what they are good for; make one with `auth_server`."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        """As ``--auth-http-address`` takes it; the same through the whole test."""
        self.counts: Counter[str] = Counter()
        """How often nsqd asked, by secret."""
        self._answers: dict[str, dict[str, Any]] = {}
        self._questions: asyncio.Queue[Question] = asyncio.Queue()
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
        Answer *secret* with *grants* from now on; nsqd keeps the answer for *ttl_s*.

        Without any grant nsqd takes the secret and allows nothing (E_UNAUTHORIZED).
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

    async def asked(self) -> Question:
        """Return the next question that has not been taken, with its answer on the way."""
        async with asyncio.timeout(_WAIT_S):
            return await self._questions.get()

    async def come_back(self) -> None:
        """Listen, for the first time or again."""
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
        """Return status and body of the answer, with the question counted and told."""
        parts = urlsplit(target)
        if parts.path != "/auth":
            return "404 Not Found", b""
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        names = ("secret", "common_name", "remote_ip", "tls")
        question = Question(**{name: asked.get(name, "") for name in names})
        self.counts[question.secret] += 1
        self._questions.put_nowait(question)
        answer = self._answers.get(question.secret)
        if answer is None:
            return "403 Forbidden", b""
        return "200 OK", json.dumps(answer).encode()


@asynccontextmanager
async def auth_server() -> AsyncIterator[AuthServer]:
    """Listen on a free port of 127.0.0.1, knowing no secret, until the block ends."""
    server = AuthServer()
    await server.come_back()
    try:
        yield server
    finally:
        await server.go_down()
