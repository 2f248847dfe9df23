"""The end of a connection that nobody reads."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator

import pytest

from gateway.web.lingering_close import HangupWatcher, hangup_watcher_of
from tests.support.manual_clock import turn, until

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a connection; there is something to read at the first one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, other:
        other.sendall(b"x" * 10_000)
        yield ours, other


def end(sock: socket.socket, *, is_reset: bool) -> None:
    """Close *sock*, with FIN or RST."""
    if is_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("is_before", [False, True], ids=["later", "before"])
async def test_an_end_is_told_once(pair: Pair, *, is_before: bool, is_reset: bool) -> None:
    """Whatever is unread, and also where it has come before anybody looked."""
    ours, other = pair
    told: list[str] = []
    watch = HangupWatcher()
    if is_before:
        end(other, is_reset=is_reset)
    watch.watch(ours.fileno(), ended := lambda: told.append("end"))
    await turn(5)
    before = list(told)
    if not is_before:
        end(other, is_reset=is_reset)
    await until(lambda: bool(told))
    await turn(5)
    watch.unwatch(ours.fileno(), ended)

    assert ["end"] == told
    assert is_before or not before


async def test_nobody_is_told_of_what_is_forgotten(pair: Pair) -> None:
    """Nor of a file that is another connection's by now."""
    ours, other = pair
    told: list[str] = []
    watch = hangup_watcher_of(asyncio.get_running_loop())
    watch.watch(ours.fileno(), first := lambda: told.append("first"))
    watch.unwatch(ours.fileno(), first)
    watch.watch(ours.fileno(), second := lambda: told.append("second"))
    watch.unwatch(ours.fileno(), first)
    other.close()
    await until(lambda: bool(told))
    watch.unwatch(ours.fileno(), second)

    assert ["second"] == told


async def test_a_connection_that_is_closed_is_none_to_watch(pair: Pair) -> None:
    """Reading tells of it; nothing is raised, and nobody is told."""
    ours, other = pair
    file = ours.fileno()
    watch = HangupWatcher()
    ours.close()
    watch.watch(file, told := lambda: pytest.fail("told"))
    watch.unwatch(file, told)
    other.close()
    await turn(5)


async def test_a_system_without_such_events_tells_nobody(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere than on Linux: the end is seen once it is read."""
    monkeypatch.delattr("select.epoll")
    ours, other = pair
    watch = HangupWatcher()
    watch.watch(ours.fileno(), told := lambda: pytest.fail("told"))
    watch.unwatch(ours.fileno(), told)
    other.close()
    await turn(5)
