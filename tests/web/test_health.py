"""The management port says whether the process lives, and whether it should get traffic."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.phase import Phase
from gateway.web.health import ManagementApp, OwnAccount
from tests.support.asgi import Exchange, http_client


def app(phase: Phase = Phase.READY) -> ManagementApp:
    """Return a management port of a process in *phase* that has counted to 1."""
    registry = CollectorRegistry()
    Counter("apples", "Apples.", registry=registry).inc()
    return ManagementApp(OwnAccount(lambda: phase, registry))


@pytest.mark.parametrize("phase", Phase)
async def test_a_process_that_answers_lives(phase: Phase) -> None:
    """Alive is alive in every phase: a restart would not help a drain."""
    answer = await http_client(app(phase)).get("/livez")

    assert (200, "alive\n") == (answer.status_code, answer.text)


@pytest.mark.parametrize(
    "phase,status", [(Phase.STARTING, 503), (Phase.READY, 200), (Phase.DRAINING, 503)]
)
async def test_only_a_ready_process_gets_traffic(phase: Phase, status: int) -> None:
    """Before and after, the answer names the phase."""
    answer = await http_client(app(phase)).get("/readyz")

    assert (status, f"{phase.value}\n") == (answer.status_code, answer.text)


async def test_metrics_are_shown() -> None:
    """The text format of Prometheus, with its type."""
    answer = await http_client(app()).get("/metrics")

    assert "apples_total 1.0" in answer.text.splitlines()
    assert "text/plain; version=0.0.4; charset=utf-8" == answer.headers["content-type"]


@pytest.mark.parametrize(
    "method,path,status",
    [("GET", "/pub", 404), ("POST", "/livez", 405), ("OPTIONS", "/readyz", 200)],
)
async def test_everything_else_is_answered_as_on_the_public_port(
    method: str, path: str, status: int
) -> None:
    """Paths of the public port are not here."""
    answer = await http_client(app()).request(method, path)

    assert status == answer.status_code
    assert "x-request-id" in answer.headers


async def test_start_and_end_of_the_server_need_nothing() -> None:
    """Both events of the lifespan are answered."""
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    exchange = await Exchange({"type": "lifespan"}, events).run(app())

    assert [
        {"type": "lifespan.startup.complete"},
        {"type": "lifespan.shutdown.complete"},
    ] == exchange.sent
