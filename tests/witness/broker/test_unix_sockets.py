"""The broker on Unix sockets, beside nsqd on others."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.brokers.nsqd import DaemonLog, is_older_nsqd, nsqd_binary, running
from tests.support.gateways.programs import nsq_gateway

pytestmark = pytest.mark.nsqd

SUBSCRIBE_AND_PUBLISH = b"  V2SUB t c\nPUB t\n\0\0\0\x01x"
TWO_OKS = b"\0\0\0\x06\0\0\0\0OK" * 2


def flags(folder: Path) -> tuple[str, str]:
    """Return the flags of both addresses in *folder*."""
    return f"-tcp-address={folder}/tcp", f"-http-address={folder}/http"


def files_in(folder: Path) -> set[str]:
    """Return the names of what is in *folder*."""
    return {each.name for each in folder.iterdir()}


def started(folder: Path) -> str:
    """Return what the log has at the end of a start."""
    return f"TCP: listening on {folder}/tcp$"


async def said_by(folder: Path) -> list[str]:
    """Return what a broker in *folder* answers, with times replaced."""
    transport = httpx.AsyncHTTPTransport(uds=f"{folder}/http")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{folder}/tcp")
        client.sendall(SUBSCRIBE_AND_PUBLISH)
        answer = b""
        while len(answer) < len(TWO_OKS):
            answer += client.recv(100)
        assert TWO_OKS == answer
        async with httpx.AsyncClient(transport=transport, base_url="http://nsqd") as http:
            targets = (
                "/stats?format=json&include_mem=0",
                "/stats?include_mem=0",
                "/info",
                "/config/broadcast_tcp_port",
                "/config/broadcast_http_port",
            )
            texts = [(await http.get(target)).text for target in targets]
    info = json.loads(texts[2])
    assert (-1, -1) == (info["http_port"], info["tcp_port"])
    times = r'"(start_time|connect_ts)":\d+|start_time \S+|uptime \S+|connected: \d+s|^nsqd .*'
    return [re.sub(times, "<time>", text) for text in texts]


@pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version")
async def test_it_answers_as_nsqd_does(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "nsqd", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    async with running(nsqd_binary(), "nsqd", *flags(theirs), f"-data-path={theirs}") as (_, log):
        assert isinstance(log, DaemonLog)
        await log.match(started(theirs))
        async with nsq_gateway("broker", *flags(ours)) as broker:
            await broker.said(started(ours))

            assert await said_by(theirs) == await said_by(ours)


async def test_the_files_end_with_the_process(tmp_path: Path) -> None:
    async with nsq_gateway("broker", *flags(tmp_path)) as broker:
        await broker.said(started(tmp_path))
        assert {"tcp", "http"} == files_in(tmp_path)

        broker.signal(signal.SIGTERM)

        assert 0 == await broker.ended()
        assert set() == files_in(tmp_path)


async def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    async with nsq_gateway("broker", *flags(tmp_path)) as broker:
        await broker.said(started(tmp_path))
    # It was killed at the end of the block.
    assert {"tcp", "http"} == files_in(tmp_path)
    async with nsq_gateway("broker", *flags(tmp_path)) as again:
        await again.said(started(tmp_path))


@pytest.mark.parametrize("is_alive", [True, False], ids=["another broker", "a file"])
async def test_what_belongs_to_others_stays(tmp_path: Path, *, is_alive: bool) -> None:
    path = tmp_path / "tcp"
    with socket.socket(socket.AF_UNIX) as other:
        if is_alive:
            other.bind(str(path))
            other.listen()
        else:
            path.write_text("precious")
        async with nsq_gateway("broker", *flags(tmp_path)) as broker:
            await broker.said(f"cannot listen on {path}: Address already in use")
            assert 1 == await broker.ended()
        assert path.exists()
