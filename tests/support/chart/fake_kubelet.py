"""
A load balancer, endpoints and a kubelet without a cluster.

A deleted pod leaves the endpoints after a while and gets SIGTERM after its preStop hook, in either
order; its open connections stay. It is killed after its grace period.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from random import Random

import httpx

from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until

_BLOCK_BYTES = 65_536


class Balancer:
    """A load balancer: each new connection goes to the next endpoint, in turn."""

    def __init__(self) -> None:
        self.endpoints: list[str] = []
        """Host and port of each; the owner adds and removes them."""
        self.refused = 0
        """Number of connections without an endpoint."""
        self.address = ""
        self._turns = count()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def stop(self) -> None:
        """Stop accepting connections."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            endpoint = self.endpoints[next(self._turns) % len(self.endpoints)]
            host, _, port = endpoint.rpartition(":")
            theirs = await asyncio.open_connection(host, int(port))
        except (OSError, ZeroDivisionError):
            self.refused += 1
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, theirs[1]))
                pumps.create_task(_pump(theirs[0], writer))
        except* OSError:
            # One side was cut: so is the other.
            for each in (writer, theirs[1]):
                each.transport.abort()
        else:
            for each in (writer, theirs[1]):
                each.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward data and the end of the stream."""
    while data := await reader.read(_BLOCK_BYTES):
        writer.write(data)
        await writer.drain()
    if not writer.is_closing():
        with contextlib.suppress(OSError):
            writer.write_eof()


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """The termination settings of a pod, and how late its endpoint is removed."""

    pre_stop_s: float
    grace_s: float
    """Counted from the deletion, the preStop hook included."""
    endpoint_delay_s: float
    """Maximum delay of an endpoint's removal; the actual one is random."""


@dataclass
class PodEnd:
    """The result of a pod's termination."""

    status: int | None
    was_killed: bool


class Kubelet:
    """Run pods in front of one nsqd; make one with `fake_cluster`."""

    def __init__(
        self, options: PodOptions, nsqd: tuple[str, str], chance: Random, life: AsyncExitStack
    ) -> None:
        self.balancer = Balancer()
        self.pods: list[RunningGateway] = []
        self._options = options
        self._nsqd = nsqd
        self._chance = chance
        self._life = life

    async def run_pod(self, *flags: str) -> RunningGateway:
        """Start a gateway, and send traffic there once it is ready."""
        tcp, http = self._nsqd
        pod = await self._life.enter_async_context(gateway_with_nsqd([tcp], [http], *flags))
        assert 200 == await poll_until(lambda: _probe(pod, "/readyz"), 200)
        self.pods.append(pod)
        self.balancer.endpoints.append(pod.address)
        return pod

    async def delete(self, pod: RunningGateway) -> PodEnd:
        """Delete *pod*, which has been alive until then; return how it ended."""
        assert 200 == await _probe(pod, "/livez")
        end = PodEnd(status=None, was_killed=False)
        loop = asyncio.get_running_loop()
        self.pods.remove(pod)

        def kill() -> None:
            end.was_killed = True
            pod.program.signal(signal.SIGKILL)

        delay_s = self._chance.uniform(0, self._options.endpoint_delay_s)
        loop.call_later(delay_s, self.balancer.endpoints.remove, pod.address)
        loop.call_later(self._options.pre_stop_s, pod.program.signal, signal.SIGTERM)
        last = loop.call_later(self._options.grace_s, kill)
        end.status = await pod.program.ended()
        last.cancel()
        return end


async def _probe(pod: RunningGateway, path: str) -> int:
    """Return the status of a probe of the pod's management port."""
    async with httpx.AsyncClient(base_url=pod.management_url, trust_env=False) as probe:
        return (await probe.get(path)).status_code


@asynccontextmanager
async def fake_cluster(
    options: PodOptions, nsqd: tuple[str, str], chance: Random
) -> AsyncIterator[Kubelet]:
    """Run a kubelet and a balancer for pods in front of *nsqd* (TCP and HTTP address)."""
    async with AsyncExitStack() as life:
        kubelet = Kubelet(options, nsqd, chance, life)
        await kubelet.balancer.start()
        try:
            yield kubelet
        finally:
            kubelet.balancer.stop()
