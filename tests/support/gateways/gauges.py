"""Read gauges from a gateway's /metrics."""

from __future__ import annotations

import re

import httpx

from tests.support.gateways.gateway import poll_until


async def gauges_become_zero(management: httpx.AsyncClient, *names: str) -> None:
    """Wait until each gauge in *names* (without prefix, with any labels) is 0."""
    kinds = "|".join(names)

    async def left() -> list[str]:
        text = (await management.get("/metrics")).text
        return re.findall(rf"^nsq_gateway_(?:{kinds}) .*[1-9].*$", text, re.MULTILINE)

    nothing: list[str] = []
    assert nothing == await poll_until(left, nothing)


async def gauge(management: httpx.AsyncClient, series: str) -> float:
    """Return the value of *series*, name and labels as exposed; 0 if it is missing."""
    text = (await management.get("/metrics")).text
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0
