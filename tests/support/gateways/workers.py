"""Observe and kill the workers of a supervisor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.gateways.programs import Program

_WAIT_S = 90.0
TWO = ("0", "1")
"""Values of the label `worker` with two workers."""


@asynccontextmanager
async def gateway_with_two_workers(*flags: str) -> AsyncIterator[RunningGateway]:
    async with gateway_alone("--workers=2", "--log-format=json", *flags) as gateway:
        yield gateway


async def pid_of(program: Program, worker: int, *, other_than: int = 0) -> int:
    """Return the process id of a worker, or of its replacement for *other_than*."""
    pids = rf'"worker ready".*"worker": {worker}\b|"worker": {worker}\b.*"worker ready"'
    found = await program.said(rf'^(?=.*(?:{pids}))(?!.*"pid": {other_than}\b).*"pid": (\d+)')
    return int(found[1])


async def get_management(gateway: RunningGateway, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(
        base_url=gateway.management_url, timeout=_WAIT_S, trust_env=False
    ) as client:
        answer = await client.get(path)
        return answer.status_code, answer.text.strip()


async def publish_on_new_connection(gateway: RunningGateway, topic: str, body: bytes = b"x") -> int:
    """Publish on a new connection, which any worker may accept; return the status."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=_WAIT_S, trust_env=False) as client:
        answer = await client.post("/pub", content=body, params={"topic": topic})
        return answer.status_code


async def counts(gateway: RunningGateway, name: str, **labels: str) -> dict[str, float]:
    """Return the value of a metric by worker."""
    _, text = await get_management(gateway, "/metrics")
    return {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"nsq_gateway_{name}" and labels.items() <= sample.labels.items()
    }


async def published(gateway: RunningGateway) -> dict[str, float]:
    """Return the number of publishes that each worker answered with OK."""
    return await counts(gateway, "publish_requests_total", route="/pub", result="OK")


async def is_gone(pid: int) -> None:
    """Return once the process has ended, whichever process reaps it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(_WAIT_S):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
