"""
Clients, gateway and broker with everything between them that can break, and a history of it all.

    client - way - gateway - way - tap - broker

A way is a proxy of toxiproxy's. The tap stands at the broker's door: what it saw of the gateway did
reach the broker, and what it saw of the broker may still be lost.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from tests.support.disk_queue import bodies_on_disk
from tests.support.history import BrokerEnded, Finally, GatewayEnded, History
from tests.support.mortal_broker import MortalBroker, free_port
from tests.support.nsqd import RealNsqd, real_nsqd
from tests.support.nsqd_tap import nsqd_tap
from tests.support.programs import Program, nsq_gateway
from tests.support.toxiproxy import FaultyNetwork, toxiproxy

TOPIC, CHANNEL = "orders", "billing"
MSG_TIMEOUT_S = 2.0
PUBLISH_TIMEOUT_S = 1.0

# What has its OK is on the disk, and so is how far a queue was read: a SIGKILL takes what was in
# flight or deferred, and that the disk then tells.
_DURABLE = ("--mem-queue-size=0", "--sync-every=1")
_IMPATIENT = (
    "--heartbeat-interval-ms=1000",
    "--ping-interval-s=0.5",
    "--ping-timeout-s=1",
    "--drain-window-s=0.3",
    "--drain-in-flight-s=0.3",
    f"--publish-timeout-ms={PUBLISH_TIMEOUT_S * 1000:.0f}",
)
_WAIT_S = 15.0


class NsqdInTheWorld:
    """The real one, with a disk that outlives it."""

    def __init__(self, life: AsyncExitStack) -> None:
        self.tcp_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self._life = life
        folder = life.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-"))
        self._data_path = Path(folder)
        self._nsqd: RealNsqd | None = None

    async def start(self) -> None:
        """Start on what the disk holds, for the first time or after `end`."""
        self._nsqd = await self._life.enter_async_context(
            real_nsqd(
                *_DURABLE,
                f"--data-path={self._data_path}",
                f"--tcp-address={self.tcp_address}",
                f"--http-address={self.http_address}",
            )
        )

    async def end(self, number: signal.Signals) -> frozenset[str]:
        """End by SIGKILL or SIGTERM; return the bodies that are on the disk then."""
        assert self._nsqd is not None
        self._nsqd.process.send_signal(number)
        await self._nsqd.process.wait()
        # After a SIGKILL the queues do not say yet where they end; they do when they have been
        # opened once and closed in order (go-diskqueue, retrieveMetaData).
        async with real_nsqd(*_DURABLE, f"--data-path={self._data_path}"):
            pass
        return bodies_on_disk(self._data_path)

    def freeze(self) -> None:
        """Stop it where it is."""
        assert self._nsqd is not None
        self._nsqd.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._nsqd is not None
        self._nsqd.process.send_signal(signal.SIGCONT)


class EmbeddedInTheWorld:
    """Ours in a process of its own: in memory, so that its end takes everything."""

    def __init__(self, life: AsyncExitStack) -> None:
        self._broker = MortalBroker("embedded", life)
        self.tcp_address = self._broker.tcp_address
        self.http_address = self._broker.http_address

    async def start(self) -> None:
        """Start with nothing."""
        await self._broker.start()

    async def end(self, _number: signal.Signals) -> frozenset[str]:
        """End it; return the bodies that are left, which are none."""
        await self._broker.kill()
        return frozenset()

    def freeze(self) -> None:
        """Stop it where it is."""
        self._broker.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self._broker.thaw()


class World:
    """All of it, running; make one with `world`."""

    def __init__(
        self,
        life: AsyncExitStack,
        history: History,
        broker: NsqdInTheWorld | EmbeddedInTheWorld,
        ways: tuple[FaultyNetwork, FaultyNetwork],
        address: str,
    ) -> None:
        self.history = history
        self.broker = broker
        self.client_way, self.broker_way = ways
        self.address = address
        """The gateway's own, with no way before it; the same through all its lives."""
        self._life = life
        self._gateway: Program | None = None

    @property
    def url(self) -> str:
        """Where clients find the gateway, at the end of their way."""
        return f"http://{self.client_way.address}"

    async def start_gateway(self) -> None:
        """Start it, for the first time or after `end_gateway`."""
        self._gateway = await self._life.enter_async_context(
            nsq_gateway(
                "serve",
                f"--listen={self.address}",
                "--management-listen=127.0.0.1:0",
                f"--nsqd-tcp-address={self.broker_way.address}",
                *_IMPATIENT,
            )
        )
        await self._gateway.said("listening on ")

    async def end_gateway(self, number: signal.Signals) -> None:
        """End it by SIGKILL, or by SIGTERM: a drain."""
        assert self._gateway is not None
        self._gateway.signal(number)
        await self._gateway.ended()
        self.history.add(GatewayEnded())

    def freeze_gateway(self) -> None:
        """Stop it where it is."""
        assert self._gateway is not None
        self._gateway.signal(signal.SIGSTOP)

    def thaw_gateway(self) -> None:
        """Let it go on."""
        assert self._gateway is not None
        self._gateway.signal(signal.SIGCONT)

    async def end_broker(self, number: signal.Signals) -> None:
        """End it, and write down what it leaves; a connection that it had may still be open."""
        kept = await self.broker.end(number)
        self.history.add(BrokerEnded(kept))

    async def settles(self) -> Finally:
        """Return what the broker counts, once that is nothing or time is up."""
        counts = Finally(-1, -1, -1)
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                async with asyncio.timeout(_WAIT_S):
                    while counts != Finally(0, 0, 0):
                        counts = await _counts(http, self.broker.http_address)
            except TimeoutError:
                pass
        return counts


async def _counts(http: httpx.AsyncClient, address: str) -> Finally:
    query = {"format": "json", "topic": TOPIC, "channel": CHANNEL}
    stats = (await http.get(f"http://{address}/stats", params=query)).raise_for_status().json()
    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    return Finally(
        topic["depth"] + channel["depth"], channel["in_flight_count"], channel["deferred_count"]
    )


@asynccontextmanager
async def world(kind: str, history: History) -> AsyncIterator[World]:
    """Run everything in front of a broker of *kind*, ``nsqd`` or ``embedded``."""
    async with AsyncExitStack() as life:
        broker = NsqdInTheWorld(life) if kind == "nsqd" else EmbeddedInTheWorld(life)
        await broker.start()
        await _make_channel(broker.http_address)
        if kind == "nsqd":
            # A channel that was there at the start is looked at for timeouts from the start.
            await broker.end(signal.SIGTERM)
            await broker.start()
        tap = await life.enter_async_context(nsqd_tap(broker.tcp_address, history))
        proxy = await life.enter_async_context(toxiproxy())
        address = f"127.0.0.1:{free_port()}"
        ways = await proxy.in_front_of(address), await proxy.in_front_of(tap.address)
        place = World(life, history, broker, ways, address)
        await place.start_gateway()
        yield place


async def _make_channel(address: str) -> None:
    names = {"topic": TOPIC, "channel": CHANNEL}
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
        for path in ("/topic/create", "/channel/create"):
            (await http.post(path, params=names)).raise_for_status()
