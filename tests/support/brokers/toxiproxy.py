"""
Toxiproxy between a client and a broker, which simulates network faults.

Toxics, set over HTTP, apply to all connections of a proxy, open and later ones. *upstream*
is data from the client, *downstream* data to the client.
Source: Toxiproxy's README, sections Toxics and HTTP API.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import httpx

from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import running
from tests.support.project import ROOT

_BUILT_BY_MAKE = ROOT / "tools" / "bin"
_ANSWER_TIMEOUT_S = 60.0
_HEAL_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 90.0

Stream: TypeAlias = Literal["upstream", "downstream"]


class FaultyNetwork:
    """A proxy in front of an address; create one with `Toxiproxy.in_front_of`."""

    def __init__(self, http: httpx.AsyncClient, proxy: Mapping[str, str]) -> None:
        self.address = proxy["listen"]
        """The address for clients."""
        self._http = http
        self._proxy = proxy
        self._path = f"/proxies/{proxy['name']}"
        self._toxics: set[str] = set()

    async def delay(self, latency_ms: int, *, stream: Stream = "downstream") -> None:
        """Delay all data by *latency_ms*."""
        await self._add("latency", stream, latency=latency_ms)

    async def narrow(self, rate_kb_s: int, *, stream: Stream = "downstream") -> None:
        """Limit the bandwidth to *rate_kb_s* kB/s."""
        await self._add("bandwidth", stream, rate=rate_kb_s)

    async def fall_silent(self) -> None:
        """Drop all data and closes, as with a half-open connection."""
        await self._add("timeout", "upstream", timeout=0)
        await self._add("timeout", "downstream", timeout=0)

    async def cut_after(self, size_bytes: int, *, stream: Stream = "downstream") -> None:
        """
        Close each connection after *size_bytes* more in this direction.

        Another call changes the number for later connections.
        """
        await self._add("limit_data", stream, bytes=size_bytes)

    async def end_by_reset(self) -> None:
        """Close later connections by RST instead of FIN."""
        # Toxiproxy sets SO_LINGER 0 on every new connection with this toxic. A toxicity of 0
        # disables the toxic itself, so that another toxic can close the connection.
        await self._add("reset_peer", "upstream", toxicity=0.0, timeout=0)

    async def heal(self) -> None:
        """
        Remove all toxics; silent connections are closed.

        Toxiproxy 2.11 may deadlock here: it holds the lock that a closing connection needs, and
        waits for that connection. The proxy is then recreated, which closes its connections.
        """
        try:
            async with asyncio.timeout(_HEAL_TIMEOUT_S):
                for name in self._toxics:
                    await self._ask("DELETE", f"/toxics/{name}")
        except TimeoutError:
            await self._ask("DELETE", "")
            (await self._http.post("/proxies", json=self._proxy)).raise_for_status()
        self._toxics.clear()

    async def go_down(self) -> None:
        """Close open connections and refuse new ones."""
        await self._ask("PATCH", "", json={"enabled": False})

    async def come_back(self) -> None:
        """Listen on the same port again."""
        await self._ask("PATCH", "", json={"enabled": True})

    async def _add(
        self, kind: str, stream: Stream, *, toxicity: float = 1.0, **attributes: int
    ) -> None:
        name = f"{kind}_{stream}"
        toxic = {"type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        path = f"/toxics/{name}" if name in self._toxics else "/toxics"
        await self._ask("POST", path, json={"name": name, **toxic})
        self._toxics.add(name)

    async def _ask(self, method: str, path: str, *, json: object = None) -> httpx.Response:
        return (await self._http.request(method, self._path + path, json=json)).raise_for_status()


class Toxiproxy:
    """A running toxiproxy; create one with `toxiproxy`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._count = 0

    async def in_front_of(self, address: str) -> FaultyNetwork:
        """Return a new proxy to *address* (host:port), without faults."""
        self._count += 1
        name = f"way-{self._count}"
        proxy = {"name": name, "listen": "127.0.0.1:0", "upstream": address}
        made = (await self._http.post("/proxies", json=proxy)).raise_for_status().json()
        return FaultyNetwork(self._http, proxy | {"listen": made["listen"]})


def toxiproxy_binary() -> Path | None:
    """Return the path of toxiproxy, or None if it is not built."""
    found = shutil.which("toxiproxy-server", path=_BUILT_BY_MAKE)
    return Path(found) if found else None


@asynccontextmanager
async def toxiproxy() -> AsyncIterator[Toxiproxy]:
    """
    Run a toxiproxy without proxies; stop it with all of its proxies at the end.

    Raises:
        RuntimeError: The binary is missing.
        TimeoutError: Toxiproxy did not listen in time.
    """
    port = str(free_port())
    arguments = ("-host", "127.0.0.1", "-port", port)
    async with (
        running(toxiproxy_binary(), "toxiproxy", *arguments) as (_, log),
        # Keep connections open: a test compares the number of open files before and after.
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            limits=httpx.Limits(keepalive_expiry=None),
            # Toxiproxy removes a toxic only after sending the data that it holds back.
            timeout=_ANSWER_TIMEOUT_S,
        ) as http,
    ):
        # Toxiproxy logs this shortly before it listens, and nothing once it does.
        await log.match("Starting Toxiproxy HTTP server")
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not await _answers(http):
                pass
        yield Toxiproxy(http)


async def _answers(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/version")).is_success
    except httpx.ConnectError:
        return False
