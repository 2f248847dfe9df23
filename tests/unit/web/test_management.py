"""The management port says whether the process lives, and whether it should get traffic."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.addresses import TrustedHosts
from gateway.lifecycle import LifecycleState
from gateway.web.management import ManagementApp, ProcessStatus
from tests.support.http.asgi import Exchange, http_client


def app(
    phase: LifecycleState = LifecycleState.READY, listen: str = "127.0.0.1:8081"
) -> ManagementApp:
    """Return a management port of a process in *phase* that has counted to 1."""
    registry = CollectorRegistry()
    Counter("apples", "Apples.", registry=registry).inc()
    hosts = TrustedHosts(listen, ["metrics.example.org"], flag="--management-allow-host")
    return ManagementApp(ProcessStatus(lambda: phase, registry), hosts)


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:8081", "[::1]:8081", "0.0.0.0:8081", "/run/gateway/http"]
)
@pytest.mark.parametrize(
    "host,is_trusted",
    [
        ("127.0.0.1:8081", True),
        ("10.1.2.3:8081", True),
        ("[fd00::1]:8081", True),
        ("localhost:8081", True),
        ("gateway.localhost", True),
        ("nsq-gateway:8081", True),
        ("Metrics.Example.Org.:8081", True),
        ("evil.example:8081", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8081", False),
        ("nsq-gateway.ns.svc:8081", False),
    ],
)
async def test_a_page_reads_nothing_through_a_name_of_its_own(
    host: str, listen: str, *, is_trusted: bool
) -> None:
    """DNS rebinding: to the browser it is the page's own origin."""
    headers = {"Host": host, "Accept-Language": "en"}

    answers = [
        await http_client(app(listen=listen)).get(path, headers=headers)
        for path in ("/metrics", "/readyz", "/livez")
    ]

    assert [200 if is_trusted else 403] * 3 == [answer.status_code for answer in answers]
    assert is_trusted or "--management-allow-host" in answers[0].json()["detail"]


@pytest.mark.parametrize(
    "host", ["nsq-gateway.ns.svc:8081", "nsq-gateway.ns.svc.cluster.local", "pod.example.org:8081"]
)
async def test_what_is_no_browser_may_scrape_by_any_name(host: str) -> None:
    """Prometheus and the kubelet, where the port is not on loopback; a proxy at a Unix socket."""
    answers = [
        await http_client(app(listen=listen)).get("/metrics", headers={"Host": host})
        for listen in ("0.0.0.0:8081", "/run/gateway/http", "127.0.0.1:8081")
    ]

    assert [200, 200, 403] == [answer.status_code for answer in answers]


@pytest.mark.parametrize("phase", LifecycleState)
async def test_a_process_that_answers_lives(phase: LifecycleState) -> None:
    """Alive is alive in every phase: a restart would not help a drain."""
    answer = await http_client(app(phase)).get("/livez")

    assert (200, "alive\n") == (answer.status_code, answer.text)


@pytest.mark.parametrize(
    "phase,status",
    [(LifecycleState.STARTING, 503), (LifecycleState.READY, 200), (LifecycleState.DRAINING, 503)],
)
async def test_only_a_ready_process_gets_traffic(phase: LifecycleState, status: int) -> None:
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
