"""Alerts in a real Prometheus that reads real gateways: one process, and one with workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.chart.prometheus import Prometheus, prometheus
from tests.support.gateways.gateway import gateway_alone
from tests.support.project import ROOT

pytestmark = pytest.mark.promtool

RULES = ROOT / "helm" / "files" / "alerts.yaml"
_WAIT_S = 120.0


async def _looked_at(seen: Prometheus) -> list[dict[str, Any]]:
    """Return the rules once each has been looked at three times with data of both gateways."""
    async with asyncio.timeout(_WAIT_S):
        while 2 > len(await seen.query("count by (instance) (nsq_gateway_sockets_open)")):
            pass
        for _ in range(3):
            before = {rule["lastEvaluation"] for rule in await seen.rules()}
            while before & {rule["lastEvaluation"] for rule in await seen.rules()}:
                pass
        return await seen.rules()


async def test_a_healthy_gateway_lets_every_rule_be_looked_at() -> None:
    """No rule fails for what its labels match, and nothing fires."""
    async with gateway_alone() as one, gateway_alone("--workers=2") as many:
        targets = [each.management_url.removeprefix("http://") for each in (one, many)]
        async with prometheus(targets, rules=[RULES], namespace="here", pod="a-pod") as seen:
            rules = await _looked_at(seen)
            firing = await seen.query('ALERTS{alertstate="firing"}')

    assert {} == {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"}
    assert [] == firing
