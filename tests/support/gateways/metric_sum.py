"""Read one metric from a gateway's /metrics."""

from __future__ import annotations

import re

import httpx

_PREFIX = "nsq_gateway_"


async def metric_sum(management_url: str, name: str, *values: str) -> float:
    """Return the sum of the samples of *name* whose labels contain all of *values*."""
    async with httpx.AsyncClient(trust_env=False, timeout=15) as http:
        text = (await http.get(f"{management_url}/metrics")).raise_for_status().text
    pattern = re.compile(rf"{_PREFIX}{name}(?:\{{(.*)\}})? (\S+)")
    found = [match for line in text.splitlines() if (match := pattern.match(line))]
    wanted = [f'"{value}"' for value in values]
    return sum(
        float(match[2]) for match in found if all(each in (match[1] or "") for each in wanted)
    )
