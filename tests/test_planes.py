"""The planes of one process: where they listen, in which phase they are, what they leave."""

from __future__ import annotations

import asyncio
import resource

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.addresses import split_address
from gateway.drain_account import KINDS
from gateway.listener import bind_tcp
from gateway.nsqd_access import Nsqds, read_access
from gateway.phase import Phase
from gateway.planes import Planes, longest_answer_s, longest_drain_s
from gateway.settings import ServeSettings
from gateway.telemetry import spawn

# An nsqlookupd that is not there: no nsqd is known, and none is needed.
SETTINGS = ServeSettings(listen="127.0.0.1:0", lookupd_http_address=("127.0.0.1:1",))


async def ping(address: str) -> int:
    """Return the status of /ping."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://{address}/ping")).status_code


async def test_they_answer_on_a_listener_that_somebody_else_bound() -> None:
    """The address is that of the listener."""
    planes = Planes(SETTINGS)
    listener = bind_tcp("test", "127.0.0.1:0")
    port = listener.getsockname()[1]
    planes.adopt(listener)

    lines = await planes.start(Nsqds((), ()), read_access(SETTINGS))
    status = await ping(planes.address)
    await planes.stop()

    assert (200, f"127.0.0.1:{port}") == (status, planes.address)
    assert ["no nsqd is known yet; publishes answer 503 until nsqlookupd names one"] == lines


async def test_the_phase_goes_from_starting_to_stopped() -> None:
    """It is ready in between, and a drain does not close the port yet."""
    planes = Planes(SETTINGS)
    planes.bind()
    phases = [planes.phase]

    await planes.start(Nsqds((), ()), read_access(SETTINGS))
    phases.append(planes.phase)
    await planes.drain()
    phases.append(planes.phase)
    status = await ping(planes.address)
    await planes.stop()
    phases.append(planes.phase)

    assert (list(Phase), 200) == (phases, status)


async def test_what_a_drain_came_to_is_told_when_all_is_over() -> None:
    """A stop that is cut goes on to its end, and until then the process drains."""
    planes = Planes(SETTINGS)
    planes.bind()
    await planes.start(Nsqds((), ()), read_access(SETTINGS))
    with capture_logs() as lines:
        await planes.drain()
        _, writer = await asyncio.open_connection(*split_address(planes.address))
        stop = spawn("stop", planes.stop())
        await asyncio.wait({stop}, timeout=0.01)
        planes.abort()
        cut = (planes.phase, [line["event"] for line in lines if line["event"] == "drained"])
        await stop
        await planes.stop()
        writer.close()

    assert (Phase.DRAINING, []) == cut
    assert Phase.STOPPED is planes.phase
    [line] = [line for line in lines if line["event"] == "drained"]
    assert [0, 0, 0] == [line[f"cut_{kind}"] for kind in KINDS]


async def test_what_was_bound_and_never_started_is_given_back() -> None:
    """A drain and a stop before the start are no error."""
    planes = Planes(SETTINGS)
    planes.bind()
    await planes.drain()
    await planes.stop()

    bind_tcp("again", planes.address).close()


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
    """Each takes one, and one for every nsqd."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    given = {"listen": "127.0.0.1:0", "max_sockets": hard, **values}
    settings = ServeSettings.model_validate(given)
    nsqds = Nsqds(settings.nsqd_tcp_address, ())
    planes = Planes(settings)

    with capture_logs() as lines:
        await planes.start(nsqds, read_access(settings))
        await planes.stop()

    [line] = [line for line in lines if "open files" in line["event"]]
    assert (hard, needed * hard) == (line["limit"], line["needed"] // hard * hard)


def test_how_long_an_end_may_take_follows_from_the_settings() -> None:
    """The times of the drain and the publish timeout are in it, each with some grace."""
    update = {"drain_in_flight_s": 4.0, "drain_window_s": 30.0, "publish_timeout_ms": 7_000}
    settings = SETTINGS.model_copy(update=update)

    assert (44.0, 8.0) == (longest_drain_s(settings), longest_answer_s(settings))
