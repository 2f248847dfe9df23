"""
Clients, gateway and broker behind proxies that tests break, and their history.

    client - way - gateway - way - tap - broker

A way is a Toxiproxy proxy. The tap is next to the broker: recorded commands of the gateway did
reach the broker, but recorded frames of the broker may still be lost.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from tests.support.brokers.disk_queue import bodies_on_disk
from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.brokers.nsqd_tap import nsqd_tap
from tests.support.brokers.toxiproxy import FaultyNetwork, toxiproxy
from tests.support.gateways.programs import Program, nsq_gateway
from tests.support.history.events import BrokerEnded, FinalCounts, GatewayEnded, History

TOPIC, CHANNEL = "orders", "billing"
MSG_TIMEOUT_S = 2.0
PUBLISH_TIMEOUT_S = 1.0

# What has its OK is on the disk, and so is how far a queue was read: a SIGKILL takes what was in
# flight or deferred, and that the disk then tells.
_DURABLE = ("--mem-queue-size=0", "--sync-every=1")
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of its own there
"""A file system in memory: nsqd syncs after each message, and only processes die here."""
_MSG_TIMEOUT = f"--msg-timeout={MSG_TIMEOUT_S * 1000:.0f}ms"
_IMPATIENT = (
    "--heartbeat-interval-ms=1000",
    "--ping-interval-s=0.5",
    "--ping-timeout-s=1",
    "--drain-window-s=0.3",
    "--drain-in-flight-s=0.3",
    f"--publish-timeout-ms={PUBLISH_TIMEOUT_S * 1000:.0f}",
)
_WAIT_S = 90.0


class RestartableRealNsqd:
    """The real nsqd, with a data folder that survives restarts."""

    def __init__(self, life: AsyncExitStack) -> None:
        self.tcp_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self._life = life
        folder = life.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-", dir=_MEMORY))
        self._data_path = Path(folder)
        self._nsqd: RealNsqd | None = None

    async def start(self) -> None:
        """Start with the data on disk, for the first time or after `end`."""
        self._nsqd = await self._life.enter_async_context(
            real_nsqd(
                *_DURABLE,
                _MSG_TIMEOUT,
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
        """Suspend the process (SIGSTOP)."""
        assert self._nsqd is not None
        self._nsqd.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        assert self._nsqd is not None
        self._nsqd.process.send_signal(signal.SIGCONT)


class RestartableEmbeddedBroker:
    """The embedded broker in its own process; its messages are in memory only."""

    def __init__(self, life: AsyncExitStack) -> None:
        self._broker = KillableBroker("embedded", life, _MSG_TIMEOUT)
        self.tcp_address = self._broker.tcp_address
        self.http_address = self._broker.http_address

    async def start(self) -> None:
        """Start with an empty broker."""
        await self._broker.start()

    async def end(self, _number: signal.Signals) -> frozenset[str]:
        """Kill the broker; return the bodies that it kept, which are none."""
        await self._broker.kill()
        return frozenset()

    def freeze(self) -> None:
        """Suspend the process (SIGSTOP)."""
        self._broker.freeze()

    def thaw(self) -> None:
        """Resume the process."""
        self._broker.thaw()


class HistorySystem:
    """The running system; make one with `history_system`."""

    def __init__(
        self,
        life: AsyncExitStack,
        history: History,
        broker: RestartableRealNsqd | RestartableEmbeddedBroker,
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
        """URL of the gateway for clients, through the proxy."""
        return f"http://{self.client_way.address}"

    async def start_gateway(self) -> None:
        """Start the gateway, for the first time or after `end_gateway`."""
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
        """End the gateway by SIGKILL, or by SIGTERM, which drains it."""
        assert self._gateway is not None
        self._gateway.signal(number)
        await self._gateway.ended()
        self.history.add(GatewayEnded())

    def freeze_gateway(self) -> None:
        """Suspend the process (SIGSTOP)."""
        assert self._gateway is not None
        self._gateway.signal(signal.SIGSTOP)

    def thaw_gateway(self) -> None:
        """Resume the gateway (SIGCONT)."""
        assert self._gateway is not None
        self._gateway.signal(signal.SIGCONT)

    async def end_broker(self, number: signal.Signals) -> None:
        """Kill the broker, and record its stored messages; its connections may still be open."""
        kept = await self.broker.end(number)
        self.history.add(BrokerEnded(kept))

    async def settles(self) -> FinalCounts:
        """Return the broker's counts once they are zero, or at the timeout."""
        return await final_counts(self.broker.http_address)


async def final_counts(address: str) -> FinalCounts:
    """Return the counts of the broker at *address* once they are zero, or at the timeout."""
    counts = FinalCounts(-1, -1, -1)
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            async with asyncio.timeout(_WAIT_S):
                while counts != FinalCounts(0, 0, 0):
                    counts = await _counts(http, address)
        except TimeoutError:
            pass
    return counts


async def _counts(http: httpx.AsyncClient, address: str) -> FinalCounts:
    query = {"format": "json", "topic": TOPIC, "channel": CHANNEL}
    stats = (await http.get(f"http://{address}/stats", params=query)).raise_for_status().json()
    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    return FinalCounts(
        topic["depth"] + channel["depth"], channel["in_flight_count"], channel["deferred_count"]
    )


@asynccontextmanager
async def history_system(kind: str, history: History) -> AsyncIterator[HistorySystem]:
    """Run the system in front of a broker of *kind*, ``nsqd`` or ``embedded``."""
    async with AsyncExitStack() as life:
        broker = await history_broker(kind, life)
        tap = await life.enter_async_context(nsqd_tap(broker.tcp_address, history))
        proxy = await life.enter_async_context(toxiproxy())
        address = f"127.0.0.1:{free_port()}"
        ways = await proxy.in_front_of(address), await proxy.in_front_of(tap.address)
        place = HistorySystem(life, history, broker, ways, address)
        await place.start_gateway()
        yield place


async def history_broker(
    kind: str, life: AsyncExitStack
) -> RestartableRealNsqd | RestartableEmbeddedBroker:
    """Start a broker of *kind*, ``nsqd`` or ``embedded``, that has the channel already."""
    broker = RestartableRealNsqd(life) if kind == "nsqd" else RestartableEmbeddedBroker(life)
    await broker.start()
    await _make_channel(broker.http_address)
    if kind == "nsqd":
        # A channel that was there at the start is looked at for timeouts from the start.
        await broker.end(signal.SIGTERM)
        await broker.start()
    return broker


async def _make_channel(address: str) -> None:
    names = {"topic": TOPIC, "channel": CHANNEL}
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
        for path in ("/topic/create", "/channel/create"):
            (await http.post(path, params=names)).raise_for_status()
