"""
Three gateways behind a balancer without stickiness, and the history of their pulls.

    client - balancer - one of the gateways - its tap - broker

Each gateway has its own tap next to the broker.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd_tap import carry, nsqd_tap
from tests.support.gateways.programs import Program, nsq_gateway
from tests.support.history.events import BrokerEnded, GatewayEnded, History
from tests.support.history.system import (
    PUBLISH_TIMEOUT_S,
    RestartableEmbeddedBroker,
    RestartableRealNsqd,
    history_broker,
)

REPLICAS = 3
DRAIN_IN_FLIGHT_S = 0.5


class Replica:
    """One gateway, which can end and come back at the same addresses."""

    def __init__(self, life: AsyncExitStack, tap_address: str, key_file: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._management = f"127.0.0.1:{free_port()}"
        self._life = life
        self._tap_address = tap_address
        self._key_file = key_file
        self._gateway: Program | None = None

    async def start(self) -> None:
        """Start the gateway, for the first time or after `end`."""
        self._gateway = await self._life.enter_async_context(
            nsq_gateway(
                "serve",
                f"--listen={self.address}",
                f"--management-listen={self._management}",
                f"--advertise-address={self._management}",
                f"--lease-key-file={self._key_file}",
                f"--nsqd-tcp-address={self._tap_address}",
                f"--drain-in-flight-s={DRAIN_IN_FLIGHT_S}",
                "--drain-window-s=0",
                "--heartbeat-interval-ms=1000",
                f"--publish-timeout-ms={PUBLISH_TIMEOUT_S * 1000:.0f}",
            )
        )
        await self._gateway.said("listening on ")

    async def end(self, number: signal.Signals) -> None:
        """End the gateway by SIGKILL, or by SIGTERM, which drains it."""
        assert self._gateway is not None
        self._gateway.signal(number)
        await self._gateway.ended()


class ReplicaSystem:
    """The running system; make one with `replica_system`."""

    def __init__(
        self,
        history: History,
        broker: RestartableRealNsqd | RestartableEmbeddedBroker,
        replicas: Sequence[Replica],
        url: str,
    ) -> None:
        self.history = history
        self.broker = broker
        self.replicas = replicas
        self.url = url
        """URL of the balancer."""

    async def end_replica(self, replica: Replica, number: signal.Signals) -> None:
        """End *replica* by SIGKILL or SIGTERM, and start it again."""
        await replica.end(number)
        self.history.add(GatewayEnded())
        await replica.start()

    async def end_broker(self, number: signal.Signals) -> None:
        """End the broker by SIGKILL or SIGTERM, and start it again with its disk."""
        self.history.add(BrokerEnded(await self.broker.end(number)))
        await self.broker.start()


@asynccontextmanager
async def _balancer(addresses: Sequence[str]) -> AsyncIterator[str]:
    """
    Forward each connection to the next of *addresses* that accepts it; yield the own address.

    A new connection goes to another gateway than the one before, so nothing is sticky.
    """
    turns = count()
    calls: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        calls.add(call)
        try:
            for _ in addresses:
                host, _, port = addresses[next(turns) % len(addresses)].rpartition(":")
                try:
                    answers, asks = await asyncio.open_connection(host, int(port))
                except OSError:
                    continue
                async with asyncio.TaskGroup() as group:
                    group.create_task(carry(reader, asks, len))
                    group.create_task(carry(answers, writer, len))
                break
        except asyncio.CancelledError:
            pass  # the block has ended
        finally:
            writer.transport.abort()
            calls.discard(call)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield ":".join(map(str, server.sockets[0].getsockname()))
        finally:
            server.close()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


@asynccontextmanager
async def replica_system(kind: str, history: History) -> AsyncIterator[ReplicaSystem]:
    """Run the system in front of a broker of *kind*, ``nsqd`` or ``embedded``."""
    async with AsyncExitStack() as life:
        folder = Path(life.enter_context(tempfile.TemporaryDirectory(prefix="leases-")))
        key_file = folder / "key"
        key_file.write_bytes(secrets.token_bytes(32))
        key_file.chmod(0o600)
        broker = await history_broker(kind, life)
        connections = count(1)
        replicas = []
        for _ in range(REPLICAS):
            tap = await life.enter_async_context(nsqd_tap(broker.tcp_address, history, connections))
            replicas.append(Replica(life, tap.address, key_file))
        await asyncio.gather(*(each.start() for each in replicas))
        address = await life.enter_async_context(_balancer([each.address for each in replicas]))
        yield ReplicaSystem(history, broker, replicas, f"http://{address}")
