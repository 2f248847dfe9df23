"""`GatewayServer`: its address, its states, its drain and its limits."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.addresses import split_address
from gateway.aio import spawn
from gateway.client.from_settings import NsqdAddresses, read_access
from gateway.lifecycle import LifecycleState
from gateway.listener import listen_tcp
from gateway.server.gateway import KINDS, GatewayServer, max_answer_s, max_drain_s
from gateway.settings.serve import ServeSettings

# An nsqlookupd that does not respond: the tests need no nsqd.
SETTINGS = ServeSettings(listen="127.0.0.1:0", lookupd_http_address=("127.0.0.1:1",))


async def ping(address: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://{address}/ping")).status_code


async def test_they_answer_on_a_listener_that_somebody_else_bound() -> None:
    planes = GatewayServer(SETTINGS)
    listener = listen_tcp("test", "127.0.0.1:0")
    port = listener.getsockname()[1]
    planes.adopt_socket(listener)

    lines = await planes.start(NsqdAddresses((), ()), read_access(SETTINGS))
    status = await ping(planes.address)
    await planes.stop()

    assert (200, f"127.0.0.1:{port}") == (status, planes.address)
    assert ["no nsqd is known yet; publishes get 503 until nsqlookupd returns one"] == lines


async def test_the_phase_goes_from_starting_to_stopped() -> None:
    """The port is still open after a drain."""
    planes = GatewayServer(SETTINGS)
    planes.bind()
    states = [planes.state]

    await planes.start(NsqdAddresses((), ()), read_access(SETTINGS))
    states.append(planes.state)
    await planes.drain()
    states.append(planes.state)
    status = await ping(planes.address)
    await planes.stop()
    states.append(planes.state)

    assert (list(LifecycleState), 200) == (states, status)


async def test_what_a_drain_came_to_is_told_when_all_is_over() -> None:
    """An aborted stop completes; the state is DRAINING until then."""
    planes = GatewayServer(SETTINGS)
    planes.bind()
    await planes.start(NsqdAddresses((), ()), read_access(SETTINGS))
    with capture_logs() as lines:
        await planes.drain()
        _, writer = await asyncio.open_connection(*split_address(planes.address))
        stop = spawn("stop", planes.stop())
        await asyncio.wait({stop}, timeout=0.01)
        planes.abort()
        cut = (planes.state, [line["event"] for line in lines if line["event"] == "drained"])
        await stop
        await planes.stop()
        writer.close()

    assert (LifecycleState.DRAINING, []) == cut
    assert LifecycleState.STOPPED is planes.state
    [line] = [line for line in lines if line["event"] == "drained"]
    assert [0, 0, 0] == [line[f"aborted_{kind}"] for kind in KINDS]


async def test_what_was_bound_and_never_started_is_given_back() -> None:
    """`drain` and `stop` before `start` close the listener without an error."""
    planes = GatewayServer(SETTINGS)
    planes.bind()
    await planes.drain()
    await planes.stop()

    listen_tcp("again", planes.address).close()


@pytest.mark.parametrize(
    "values,needed",
    [
        ({"nsqd_tcp_address": ("a:1", "b:1")}, 3),
        ({"lookupd_http_address": ("a:1",)}, 2),
        ({}, 3),
        ({"workers": 2}, 2),
    ],
    ids=["two nsqds", "one at least", "both ends of a broker", "a broker elsewhere"],
)
async def test_it_is_told_when_sockets_may_take_more_files_than_there_are(
    values: dict[str, object], needed: int
) -> None:
    """A WebSocket uses one file, and one more for every nsqd."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    given = {"listen": "127.0.0.1:0", "max_sockets": hard, **values}
    settings = ServeSettings.model_validate(given)
    nsqds = NsqdAddresses(settings.nsqd_tcp_address, ())
    planes = GatewayServer(settings)

    with capture_logs() as lines:
        await planes.start(nsqds, read_access(settings))
        await planes.stop()

    [line] = [line for line in lines if "open files" in line["event"]]
    assert (hard, needed * hard) == (line["limit"], line["needed"] // hard * hard)


def test_the_longest_end_has_the_delay_of_the_drain_in_it() -> None:
    """Service managers must wait for the delay as well before they kill."""
    delayed = SETTINGS.model_copy(update={"drain_delay_s": 7.0})

    assert 7.0 == GatewayServer(delayed).max_shutdown_s - GatewayServer(SETTINGS).max_shutdown_s


def test_how_long_an_end_may_take_follows_from_the_settings() -> None:
    """The limits are the drain times and the publish timeout, each with a grace time."""
    update = {"drain_in_flight_s": 4.0, "drain_window_s": 30.0, "publish_timeout_ms": 7_000}
    settings = SETTINGS.model_copy(update=update)

    assert (44.0, 8.0) == (max_drain_s(settings), max_answer_s(settings))


@pytest.mark.parametrize(
    "settings,expected",
    [
        ({"listen": "127.0.0.1:0"}, ("127.0.0.1", None)),
        ({"listen": "[::1]:0"}, ("::1", None)),
        ({"listen": "0.0.0.0:0", "insecure": True, "hostname": "pod-1"}, ("pod-1", None)),
        (
            {"listen": "127.0.0.1:0", "broadcast_address": "gw.example", "broadcast_http_port": 80},
            ("gw.example", 80),
        ),
    ],
    ids=["loopback", "IPv6", "every address", "told"],
)
async def test_info_names_an_address_that_leads_here(
    settings: dict[str, Any], expected: tuple[str, int | None]
) -> None:
    """nsqadmin connects to this address: by default that of --listen."""
    told = ServeSettings(lookupd_http_address=("127.0.0.1:1",), **settings)
    planes = GatewayServer(told)
    planes.bind()
    await planes.start(NsqdAddresses((), ()), read_access(told))
    identity = planes._identity()
    _, port = split_address(planes.address)
    await planes.stop()

    host, told_port = expected
    assert (host, told_port or port) == (identity.broadcast_address, identity.http_port)
