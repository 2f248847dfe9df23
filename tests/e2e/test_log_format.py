"""With --log-format json, a server writes log lines only, from start to end."""

from __future__ import annotations

import json
import signal
import socket

import pytest

from gateway import __version__
from tests.support.brokers.killable_broker import killable_broker
from tests.support.gateways.gateway import ON_FREE_PORTS, WITH_EMBEDDED_BROKER, gateway_with_nsqd
from tests.support.gateways.programs import nsq_gateway
from tests.support.gateways.shell import run
from tests.support.websocket.raw_socket import raw_websocket
from tests.support.websocket.subscriber_client import Json

JSON = "--log-format=json"


def events(lines: list[str]) -> list[Json]:
    """Return *lines* as what they say, each an event with its level and time."""
    found = [json.loads(line) for line in lines]
    for each in found:
        assert {"event", "level", "timestamp"} <= each.keys()
    return found


def place(lines: list[Json], event: str) -> int:
    """Return where the one process, or the supervisor, tells of *event*."""
    [found] = [
        number
        for number, line in enumerate(lines)
        if line["event"] == event and "worker" not in line
    ]
    return found


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_log_from_start_to_end_is_one_json_object_per_line(workers: int) -> None:
    """With traffic, a refusal, an nsqd that goes away, and a drain; on both outputs."""
    async with killable_broker("embedded") as broker:
        addresses = [broker.tcp_address], [broker.http_address]
        async with gateway_with_nsqd(*addresses, JSON, f"--workers={workers}") as gateway:
            async with gateway.subscribe("t", "c") as client:
                await gateway.publish("t", b"hello")
                await client.finish(await client.message())
                await gateway.http.post("/pub?topic=no%20topic", content=b"x")
                await gateway.http.get("/nowhere")
                await broker.kill()
                await gateway.program.said("publisher disconnected")
                gateway.program.signal(signal.SIGTERM)
                await client.closed()
            assert 0 == await gateway.program.ended()
            await gateway.program._log.end()
            lines = events(gateway.program._log.matches(""))

    life = [place(lines, event) for event in ("started", "ready", "draining", "stopped")]
    assert sorted(life) == life
    # With workers the last line is the supervisor's.
    assert "stopped" == lines[-1]["event"]
    started = lines[life[0]]
    assert (__version__, gateway.url, gateway.management_url, workers) == (
        started["version"],
        started["address"],
        started["management_address"],
        started["workers"],
    )
    of_workers = {(line.get("worker"), line["event"]) for line in lines}
    if workers > 1:
        expected = {(number, event) for number in (0, 1) for event in ("ready", "stopped")}
        assert expected <= of_workers
    assert {"startup", "subscriber connected", "subscriber disconnected", "stopping"} <= {
        line["event"] for line in lines
    }


async def test_the_log_names_the_side_that_closed_a_socket_and_why() -> None:
    """An invalid frame, a lost connection, a close by the client."""
    async with killable_broker("embedded") as broker:
        addresses = [broker.tcp_address], [broker.http_address]
        async with gateway_with_nsqd(*addresses, JSON) as gateway:
            ends = {1003: b"\x82\x84" + bytes(4) + b"  V2", 1006: b"", 1005: b"\x88\x80" + bytes(4)}
            for code, end in ends.items():
                async with raw_websocket(gateway.sub_url("t", "c")) as raw:
                    await raw.read_frame()
                    if end:
                        await raw.send(end)
                        await raw.read_to_end()
                    else:
                        raw.reset()
                    await gateway.program.said(f'"close_code": {code}')
            lines = events(gateway.program._log.matches("subscriber disconnected"))

    fields = [(each["closed_by"], each["close_code"], each["reason"]) for each in lines]
    assert [
        ("gateway", 1003, "commands are text messages, this one is binary"),
        ("client", 1006, "the client disconnected"),
        ("client", 1005, "the client disconnected"),
    ] == fields


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_start_that_fails_is_an_event(workers: int) -> None:
    """Status 1 and the reason; nothing on standard output."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"--listen=127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("serve", *ON_FREE_PORTS, *WITH_EMBEDDED_BROKER, listen, JSON)
        status, output, errors = await run(*arguments, f"--workers={workers}")

    [line] = events(errors.splitlines())
    assert (1, b"", "start failed") == (status, output, line["event"])
    assert listen.partition("=")[2] in line["reason"]


async def test_the_broker_command_logs_start_and_stop() -> None:
    arguments = ("broker", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", JSON)
    async with nsq_gateway(*arguments) as program:
        await program.said('"event": "startup"')
        program.signal(signal.SIGTERM)
        assert 0 == await program.ended()
        await program._log.end()
        lines = events(program._log.matches(""))

    assert ["started", "stopping", "stopped"] == [
        line["event"] for line in lines if line["event"] != "startup"
    ]
    assert lines[0]["tcp_address"].startswith("127.0.0.1:")
