"""One address with several listeners."""

from __future__ import annotations

import socket

import pytest

from gateway.addresses import split_address
from gateway.errors import StartError
from gateway.listener import bind_tcp
from gateway.workers.shared_address import SharedAddress

CONNECTIONS = 64


def bound() -> SharedAddress:
    """Return an address on a free port."""
    shared = SharedAddress("test", "127.0.0.1:0")
    shared.bind()
    return shared


def test_many_connections_are_spread_over_all_listeners() -> None:
    """Of 64 each of two gets at least 8: less has odds of 1 in 10 thousand millions."""
    shared = bound()
    with shared.listener() as one, shared.listener() as two:
        clients = [
            socket.create_connection(split_address(shared.address)) for _ in range(CONNECTIONS)
        ]
        counts = [_accepted(each) for each in (one, two)]
        for client in clients:
            client.close()
    shared.close()

    assert CONNECTIONS == sum(counts)
    assert min(counts) >= CONNECTIONS / 8


def _accepted(listener: socket.socket) -> int:
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_the_port_is_held_from_the_bind_on() -> None:
    """Who connects waits for the first process, and who wants to listen there is told."""
    shared = bound()

    socket.create_connection(split_address(shared.address)).close()
    with pytest.raises(StartError, match="Address already in use"):
        bind_tcp("another", shared.address)
    shared.close()
    shared.close()

    bind_tcp("another", shared.address).close()


def test_two_do_not_share_their_address_by_mistake() -> None:
    """A second gateway on the same address would get a part of the first one's connections."""
    first = bound()
    with first.listener(), pytest.raises(StartError, match="Address already in use"):
        SharedAddress("test", first.address).bind()
    first.close()
