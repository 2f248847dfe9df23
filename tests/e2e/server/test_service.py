"""`Service`: the startup banner, failed starts and shutdown."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

import gateway
from gateway.aio import spawn
from gateway.errors import SettingsError, StartError
from gateway.server.broker import BrokerService
from gateway.server.runner import run_until_signal
from gateway.server.service import Service
from gateway.settings.broker import BrokerSettings
from gateway.settings.fields import flag_name
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.gateways.access_file import access_file, api_key, grant
from tests.support.gateways.free_port_settings import FREE, serve_settings
from tests.support.gateways.gateway import poll_until
from tests.support.gateways.programs import nsq_gateway


@asynccontextmanager
async def taken_address() -> AsyncIterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


async def status_of(address: str, path: str) -> int:
    """Return the status of a request to the management port."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://{address}{path}")).status_code


async def test_the_start_says_which_broker_where_and_what_to_try() -> None:
    """The banner has a line each for broker, addresses, publish, subscribe and console."""
    service = Service(serve_settings())

    lines = await service.start()
    await service.stop()

    where = service.address
    assert lines[0].startswith("nsq-gateway 0.1.0 with embedded broker (in memory; TCP 127.")
    assert [
        f"listening on http://{where} (management: http://{service.management_address}/readyz)",
        f"publish:    curl -d 'hello' 'http://{where}/pub?topic=greetings'",
        f"subscribe:  ws://{where}/sub?topic=greetings&channel=readers",
        f"console:    http://{where}/console",
    ] == lines[1:]


async def test_where_a_secret_is_wanted_the_start_says_how_to_bring_it() -> None:
    """The banner has the header, and a warning that the embedded broker accepts any secret."""
    service = Service(serve_settings(require_auth=True))

    with capture_logs() as log:
        lines = await service.start()
    await service.stop()

    publish = "curl -H 'Authorization: Bearer SECRET' -d 'hello'"
    assert f"publish:    {publish} 'http://{service.address}/pub?topic=greetings'" in lines
    assert "AUTH not enforced: the embedded broker accepts any secret" in [
        entry["event"] for entry in log
    ]


async def test_the_start_says_which_file_decides(tmp_path: Path) -> None:
    """With --access-file, the banner names it, and publishes with a token."""
    path = access_file(tmp_path, api_key("alice", "key", grant("^t$", "publish", channels=())))
    service = Service(serve_settings(access_file=path))

    lines = await service.start()
    await service.stop()

    publish = "curl -H 'Authorization: Bearer TOKEN' -d 'hello'"
    assert f"publish:    {publish} 'http://{service.address}/pub?topic=greetings'" in lines
    assert f"access:     {path} says who may do what" in lines


async def test_the_start_says_where_an_own_page_is(tmp_path: Path) -> None:
    """The banner has the URL of --static-dir, and no console if it is off."""
    (tmp_path / "index.html").write_text("hello")
    service = Service(serve_settings(static_dir=str(tmp_path), console=False))

    lines = await service.start()
    url = f"http://{service.address}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        page, console = await client.get("/"), await client.get("/console")
    await service.stop()

    assert [f"static dir: {url}/"] == lines[4:]
    assert ("hello", 404) == (page.text, console.status_code)


async def test_a_folder_that_is_not_there_is_told_before_anything_listens() -> None:
    """It is a SettingsError, whichever later step would have failed."""
    async with taken_address() as address:
        service = Service(serve_settings(listen=address, static_dir="/nowhere"))

        with pytest.raises(SettingsError, match="--static-dir is '/nowhere'"):
            await service.start()


async def test_an_nsqd_that_is_not_there_is_told_and_waited_for() -> None:
    """`serve` starts with a warning, responds with 503 and keeps trying to connect."""
    async with taken_address() as address:
        pass
    service = Service(serve_settings(nsqd_tcp_address=address))

    lines = await service.start()
    ready = await status_of(service.management_address, "/readyz")
    async with httpx.AsyncClient(trust_env=False) as client:
        publish = await client.post(f"http://{service.address}/pub?topic=t", content=b"x")
    await service.stop()

    assert f"with nsqd at {address}" in lines[0]
    assert lines[1].startswith(f"nsqd at {address}: ")
    assert lines[1].endswith("; trying again")
    assert (200, 503, "NO_BROKER") == (ready, publish.status_code, publish.json()["message"])


@pytest.mark.nsqd
async def test_an_nsqd_that_nsqlookupd_names_later_is_published_to() -> None:
    """With nsqlookupd alone, `serve` starts before any nsqd is known."""
    async with real_nsqlookupd() as lookupd:
        where = lookupd.http_address
        service = Service(serve_settings(lookupd_http_address=where, lookupd_poll_interval_s=0.1))
        lines = await service.start()
        ready = await status_of(service.management_address, "/readyz")
        url = f"http://{service.address}/pub?topic=t"
        async with (
            httpx.AsyncClient(trust_env=False) as client,
            real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}"),
        ):

            async def publish() -> int:
                return (await client.post(url, content=b"x")).status_code

            status = await poll_until(publish, 200)
            await service.stop()

    assert [
        f"nsq-gateway {gateway.__version__} with nsqlookupd at {where}",
        "no nsqd is known yet; publishes get 503 until nsqlookupd returns one",
    ] == lines[:2]
    assert (200, 200) == (ready, status)


async def test_an_nsqlookupd_that_is_not_there_stops_nothing() -> None:
    """`serve` starts with a warning, and keeps asking nsqlookupd."""
    async with taken_address() as address:
        pass
    service = Service(serve_settings(lookupd_http_address=address, nsqd_tcp_address=address))

    lines = await service.start()
    await service.stop()

    assert f"with nsqd at {address} and with nsqlookupd at {address}" in lines[0]
    assert 1 == sum("listening on" in line for line in lines)


async def test_a_secret_that_cannot_be_read_is_told_before_anything_listens() -> None:
    """It is a SettingsError, whichever later step would have failed."""
    async with taken_address() as address:
        service = Service(serve_settings(listen=address, auth_secret_file="/nowhere"))

        with pytest.raises(SettingsError, match="--auth-secret-file"):
            await service.start()

    assert address == service.address


async def test_ready_ends_with_the_drain_and_live_does_not() -> None:
    """Load balancers send traffic elsewhere, and no supervisor restarts the process."""
    service = Service(serve_settings())
    await service.start()
    management = service.management_address
    before = await status_of(management, "/readyz")

    await service.drain()

    after = await status_of(management, "/readyz"), await status_of(management, "/livez")
    await service.stop()
    assert (200, (503, 200)) == (before, after)


@pytest.mark.parametrize(
    "setting", ["listen", "management_listen", "broker_tcp_address", "broker_http_address"]
)
async def test_a_start_that_fails_leaves_nothing_listening(setting: str) -> None:
    """The error contains the address in use, and the other ports are closed again."""
    async with taken_address() as address:
        service = Service(serve_settings(**{setting: address}))

        with pytest.raises(StartError, match=f"cannot listen on {address}") as caught:
            await service.start()
    assert flag_name(setting) in str(caught.value)

    for freed in (service.address, service.management_address):
        if freed != address and not freed.endswith(":0"):
            host, port = freed.split(":")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, int(port))


async def test_two_listeners_on_one_address_do_not_start() -> None:
    """The public port and the management port are never the same."""
    async with taken_address() as address:
        pass
    service = Service(serve_settings(listen=address, management_listen=address))

    try:
        with pytest.raises(
            StartError, match=r"the management port \(--management-listen\) cannot listen on"
        ):
            await service.start()
    finally:
        await service.stop()


@pytest.mark.parametrize("setting", ["broker_tcp_address", "broker_http_address"])
async def test_a_broker_that_is_there_already_may_be_used(setting: str) -> None:
    """If nsqd's ports are in use, the error has the flags for using that nsqd."""
    async with taken_address() as address:
        service = Service(serve_settings(**{setting: address}))
        named = f"--nsqd-{setting.removeprefix('broker_').replace('_', '-')} {address}"

        with pytest.raises(StartError, match=f"if your nsqd listens there, add .*{named}"):
            await service.start()


async def test_an_address_of_nobody_is_no_nsqd() -> None:
    """An address of another machine is not in use, so the error has no such flags."""
    service = Service(serve_settings(broker_tcp_address="192.0.2.1:1", insecure=True))

    with pytest.raises(StartError, match=r"192\.0\.2\.1:1") as caught:
        await service.start()
    assert "your nsqd" not in str(caught.value)


@pytest.mark.parametrize(
    "others,lines_count",
    [({}, 1), ({"nsqd_http_address": "127.0.0.1:1"}, 0)],
    ids=["TCP alone", "both"],
)
async def test_it_is_told_what_is_not_known_without_http(
    others: dict[str, str], lines_count: int
) -> None:
    """A warning at the start has the missing flag."""
    service = Service(serve_settings(nsqd_tcp_address="127.0.0.1:1", **others))

    with capture_logs() as lines:
        await service.start()
        await service.stop()

    told = [line for line in lines if "--nsqd-http-address" in str(line.get("advice"))]
    assert lines_count == len(told)
    assert all("size limits" in line["missing"] for line in told)


async def test_the_broker_names_its_flags_when_its_address_is_taken() -> None:
    """`broker` has nsqd's flags, not those of `serve`."""
    async with taken_address() as address:
        service = BrokerService(BrokerSettings(tcp_address=address, http_address=FREE))

        with pytest.raises(StartError, match="another address with --tcp-address or --http-addr"):
            await service.start()


async def test_a_signal_drains_and_stops() -> None:
    """`run_until_signal` returns the first signal."""
    service = BrokerService(BrokerSettings(tcp_address=FREE, http_address=FREE))
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until_signal(service, announced.put_nowait))
    first_line = await announced.get()
    signal.raise_signal(signal.SIGTERM)

    assert signal.SIGTERM == await running
    assert "broker (in memory): TCP 127.0.0.1:" in first_line


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_the_exit_status_tells_how_it_ended(number: signal.Signals, status: int) -> None:
    """SIGTERM is a normal end, Ctrl-C an interruption."""
    async with nsq_gateway("broker", f"--tcp-address={FREE}", f"--http-address={FREE}") as program:
        await program.said("publish:")

        program.signal(number)

        assert status == await program.ended()
