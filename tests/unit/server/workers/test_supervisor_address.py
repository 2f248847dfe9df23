"""Several listeners on one address (SO_REUSEPORT)."""

from __future__ import annotations

import socket

import pytest

from gateway.addresses import split_address
from gateway.errors import StartError
from gateway.listener import listen_tcp
from gateway.server.workers.supervisor import SharedAddress

CONNECTIONS = 64


def bound() -> SharedAddress:
    shared = SharedAddress("test", "127.0.0.1:0")
    shared.bind()
    return shared


def test_many_connections_are_spread_over_all_listeners() -> None:
    """Of 64 connections each listener gets 8 or more; fewer has a probability of 1e-10."""
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
    """Clients wait for the first worker, and another listener is refused."""
    shared = bound()

    socket.create_connection(split_address(shared.address)).close()
    with pytest.raises(StartError, match="Address already in use"):
        listen_tcp("another", shared.address)
    shared.close()
    shared.close()

    listen_tcp("another", shared.address).close()


def test_two_do_not_share_their_address_by_mistake() -> None:
    """A second gateway on the address would get some of the first one's connections."""
    first = bound()
    with first.listener(), pytest.raises(StartError, match="Address already in use"):
        SharedAddress("test", first.address).bind()
    first.close()
