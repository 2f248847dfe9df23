"""
The broker's TCP door: takes connections, and carries out the catalog's agenda.

One timer, armed for the earliest deadline of all channels, and one callback for each turn of the
event loop that has something to deliver: however many connections and messages there are.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable

from gateway.addresses import join_address
from gateway.broker.catalog import Catalog
from gateway.broker.client import Client
from gateway.broker.connection import ClientConnection
from gateway.broker.consumer import Consumer
from gateway.broker.handler import Handler
from gateway.broker.message import Moment
from gateway.listener import bind_tcp
from gateway.telemetry import get_logger

_BACKLOG = 1024
_MIN_WAIT_S = 0.001
_STOP_TIMEOUT_S = 1.0

_log = get_logger()


class Server:
    """The connections of a broker, by the number of their client."""

    def __init__(self, catalog: Catalog, *, max_connections: int) -> None:
        self.catalog = catalog
        self.handler = Handler(catalog)
        self.limits = catalog.common.rules.limits
        self._max_connections = max_connections
        self._connections: dict[int, ClientConnection] = {}
        self._listener: asyncio.Server | None = None
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_moment = math.inf
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self, address: str) -> str:
        """
        Listen on *address*, host:port; return it with the port that the system chose for 0.

        Raises:
            StartError: Nothing can listen there.
        """
        listener = bind_tcp("broker TCP", address)
        host, port = listener.getsockname()[:2]
        self._listener = await self._loop.create_server(
            lambda: ClientConnection(self), sock=listener, backlog=_BACKLOG
        )
        return join_address(host, port)

    async def stop(self) -> None:
        """Close the listener, then every connection; again is without effect."""
        self._is_stopped = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections.values()):
            connection.close()
        try:
            await asyncio.wait_for(self._idle.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            for connection in list(self._connections.values()):
                connection.abort()
            await self._idle.wait()
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    # What connections and the HTTP API call

    def moment(self) -> Moment:
        """Return the time on both clocks."""
        return Moment(self._loop.time(), time.time_ns())

    def changed(self) -> None:
        """Have everything delivered that can be; to be called after a change of the catalog."""
        if self._turn is None and self.catalog.has_deliverable:
            # In the next turn of the loop: what other sockets bring in this one joins the batch.
            self._turn = self._loop.call_soon(self._deliver)
        self._arm()

    def disconnect(self, consumers: Iterable[Consumer]) -> None:
        """Close the connections of *consumers*, without a frame, as nsqd does."""
        for consumer in consumers:
            connection = self._connections.get(consumer.id)
            if connection is not None:
                connection.close()

    def open(self, connection: ClientConnection, remote_address: str) -> Client | None:
        """Return the client behind *connection*; None when there are too many."""
        if self._is_stopped or len(self._connections) >= self._max_connections:
            _log.warning("client refused", address=remote_address, most=self._max_connections)
            return None
        client = self.handler.connect(remote_address=remote_address, at=self.moment())
        self._connections[client.consumer.id] = connection
        self._idle.clear()
        _log.debug("client connected", address=remote_address)
        return client

    def close(self, client: Client) -> None:
        """Forget *client*, whose connection has ended."""
        self.handler.disconnect(client)
        del self._connections[client.consumer.id]
        if not self._connections:
            self._idle.set()
        _log.debug("client disconnected", address=client.remote_address)

    # The agenda

    def _deliver(self) -> None:
        self._turn = None
        for consumer, messages in self.catalog.deliver(self._loop.time()):
            self._connections[consumer.id].deliver(messages)
        self.changed()

    def _arm(self) -> None:
        """Have `_expire` called at the agenda's next moment."""
        moment = self.catalog.next_moment
        if moment is None or moment >= self._timer_moment:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_moment = moment
        self._timer = self._loop.call_at(max(moment, self._loop.time() + _MIN_WAIT_S), self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_moment = None, math.inf
        self.catalog.expire(self._loop.time())
        self.changed()
