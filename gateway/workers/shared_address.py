"""
One address that several processes listen on, each with a socket of its own (SO_REUSEPORT).

Linux spreads those who connect over the sockets by a hash of their address; the measurement, and
what else there was to choose from: docs/decisions/0006-a-socket-for-each-worker.md.
"""

from __future__ import annotations

import socket

from gateway.addresses import join_address
from gateway.listener import bind_tcp


class SharedAddress:
    """The address; `bind`, then a `listener` for each process, last `close`."""

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._first: socket.socket | None = None
        self.address = address
        """Where it is: after `bind` with the port that the system chose for port 0."""

    def bind(self) -> None:
        """
        Take the address; who connects from now on waits for the first process.

        Raises:
            StartError: It is taken, or none of this machine; one sentence with what to do.
        """
        # First as if alone: sockets that share a port would share it with another gateway too.
        with bind_tcp(self._name, self.address) as alone:
            host, port = alone.getsockname()[:2]
            self.address = join_address(host, port)
        self._first = self.listener()

    def listener(self) -> socket.socket:
        """Return one more socket that listens there; raises StartError."""
        first, self._first = self._first, None
        return first or bind_tcp(self._name, self.address, shares_port=True)

    def close(self) -> None:
        """Close the listener that nobody has taken; idempotent."""
        if self._first is not None:
            self._first.close()
            self._first = None
