"""The admin API of the running program: which nodes it finds, and when it is closed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import gateway as package
from tests.support.brokers.auth_server import auth_server
from tests.support.brokers.nsqd import CURRENT_VERSION, NSQD_VERSION, real_nsqd
from tests.support.gateways.discovered import found
from tests.support.gateways.gateway import (
    RunningGateway,
    gateway_alone,
    gateway_with_nsqd,
    poll_until,
)

SECRET = "of-the-administrator"
WITH_SECRET = {"Authorization": f"Bearer {SECRET}"}
REQUESTS = [
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("GET", "/stats"),
    ("GET", "/info"),
]


def secret_file(folder: Path) -> str:
    """Return the flag that names the administrator's secret."""
    path = folder / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return f"--admin-secret-file={path}"


async def outcomes(gateway: RunningGateway, headers: dict[str, str]) -> set[int]:
    """Return every status that administration answers."""
    return {
        (await gateway.http.request(method, path, headers=headers)).status_code
        for method, path in REQUESTS
    }


async def channels(gateway: RunningGateway, topic: str) -> list[tuple[str, list[str]]]:
    query = {"format": "json", "topic": topic}
    report = (await gateway.http.get("/stats", params=query)).json()
    return [
        (each["node"], [channel["channel_name"] for channel in each["channels"]])
        for each in report["topics"] or ()
    ]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_broker_behind_is_administered(gateway: RunningGateway, topic: str) -> None:
    """From the first channel to the end of the topic, and the broker itself says the same."""
    names = {"topic": topic, "channel": "c"}
    created = await gateway.http.post("/channel/create", params=names)
    there = await gateway.channels_become(topic, ["c"])
    told = await channels(gateway, topic)
    deleted = await gateway.http.post("/topic/delete", params=names)
    again = await gateway.http.post("/topic/delete", params=names)

    assert (200, 200, 404) == (created.status_code, deleted.status_code, again.status_code)
    assert (["c"], [["c"]]) == (there, [names for _, names in told])
    assert [] == await channels(gateway, topic)


@pytest.mark.asyncio(loop_scope="session")
async def test_info_has_the_port_of_the_request(kind: str, gateway: RunningGateway) -> None:
    info = (await gateway.http.get("/info")).json()

    assert gateway.address.endswith(f":{info['http_port']}")
    version = NSQD_VERSION if kind == "nsqd" else CURRENT_VERSION
    assert (version, package.__version__) == (info["version"], info["gateway"])


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "GET"])
async def test_another_method_is_answered_as_nsqd_does(
    gateway: RunningGateway, method: str
) -> None:
    """405 or the list of methods; a path with a slash too many is elsewhere."""
    answer = await gateway.http.request(method, "/topic/pause?topic=t")
    near = await gateway.http.post("/topic/pause/?topic=t")

    assert (200 if method == "OPTIONS" else 405) == answer.status_code
    assert "OPTIONS, POST" == answer.headers["allow"]
    assert (307, "/topic/pause?topic=t") == (near.status_code, near.headers["location"])


@pytest.mark.nsqd
async def test_nsqds_from_nsqlookupd_are_administered(topic: str) -> None:
    """Without any address of an nsqd in the settings."""
    async with found(nsqds=2) as (gateway, nsqds, _):

        async def create() -> int:
            names = {"topic": topic, "channel": "c"}
            return (await gateway.http.post("/channel/create", params=names)).status_code

        # Until discovery has had its first answer there is nobody to ask.
        assert 200 == await poll_until(create, 200)
        nodes = {nsqd.http_address for nsqd in nsqds}

        async def known() -> set[str]:
            return {node for node, _ in await channels(gateway, topic)}

        assert 200 == await poll_until(create, 200)
        assert nodes == await poll_until(known, nodes)


async def test_two_workers_give_the_same_responses() -> None:
    """Each knows the embedded broker, which runs beside them."""
    async with gateway_alone("--workers=2") as gateway:
        answers = []
        for _ in range(8):
            # A connection each: the system spreads them.
            async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
                report = await client.get("/stats?format=json")
                answers.append((report.status_code, len(report.json()["nodes"])))

    assert {(200, 1)} == set(answers)


async def test_require_auth_closes_administration() -> None:
    """The embedded broker asks for no secret, and so could not judge one."""
    async with gateway_alone("--require-auth") as gateway:
        closed = await outcomes(gateway, WITH_SECRET)
        ping = (await gateway.http.get("/ping")).status_code

    assert ({403}, 200) == (closed, ping)


async def test_the_file_of_the_administrator_closes_and_opens(tmp_path: Path) -> None:
    """Also without AUTH; publishing is not affected."""
    async with gateway_alone(secret_file(tmp_path)) as gateway:
        without = await outcomes(gateway, {})
        wrong = await outcomes(gateway, {"Authorization": "Bearer of-somebody"})
        await gateway.http.post("/channel/create?topic=t&channel=c", headers=WITH_SECRET)
        right = await outcomes(gateway, WITH_SECRET)
        await gateway.publish("t", b"x")

    assert ({401}, {403}, {200}) == (without, wrong, right)


@pytest.mark.nsqd
async def test_an_nsqd_that_asks_for_auth_by_tcp_closes_administration_of_all() -> None:
    """Though its HTTP is not known, and another one's is."""
    async with (
        auth_server() as auth,
        real_nsqd(f"--auth-http-address={auth.address}") as guarded,
        real_nsqd() as free,
        gateway_with_nsqd([free.tcp_address, guarded.tcp_address], [free.http_address]) as gateway,
    ):
        closed = await outcomes(gateway, {})

    assert {403} == closed
