"""Message limits from nsqd's HTTP interface, or from the settings."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.server.limits import fetch_limits
from tests.support.brokers.nsqd import real_nsqd

FREE = "127.0.0.1:0"


@asynccontextmanager
async def taken_address() -> AsyncIterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.mark.nsqd
async def test_limits_are_the_smallest_of_all_nsqd() -> None:
    """Every nsqd must accept every publish."""
    async with (
        real_nsqd("--max-msg-size=1000", "--max-req-timeout=2h") as one,
        real_nsqd("--max-body-size=5000") as other,
    ):
        limits, lines = await fetch_limits(Limits(), [one.http_address, other.http_address])

    assert (1_000, 5_000, 3_600_000, []) == (
        limits.max_msg_size_bytes,
        limits.max_body_size_bytes,
        limits.max_req_timeout_ms,
        lines,
    )


async def test_limits_are_asked_of_nsqd_and_not_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HTTP_PROXY in the environment is for other destinations."""

    async def seven(
        _scope: object, _receive: object, send: Callable[[object], Awaitable[None]]
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"7000000"})

    async with taken_address() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        nsqd = HttpListener("nsqd", FREE)
        await nsqd.start(seven)
        limits, lines = await fetch_limits(Limits(), [nsqd.address])
        await nsqd.stop()

    assert (7_000_000, 7, []) == (limits.max_msg_size_bytes, limits.max_req_timeout_ms, lines)


async def test_limits_that_are_not_told_are_those_of_the_settings() -> None:
    """A warning names the nsqd that did not respond."""
    async with taken_address() as address:
        pass

    limits, lines = await fetch_limits(Limits(max_msg_size_bytes=7), [address])

    assert Limits(max_msg_size_bytes=7) == limits
    assert 1 == len(lines)
    assert lines[0].startswith(f"nsqd at {address} does not return its limits")
