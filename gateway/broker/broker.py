"""
The embedded broker as one part: start it, read where it listens, stop it.

It is nsqd 1.3.0 in what clients can see. Different on purpose: nothing is on disk, so messages
live as long as this process and are bounded by max_memory_bytes; no TLS, AUTH and compression.
"""

from __future__ import annotations

import hashlib
import random
import socket
import time
import zlib

from gateway.addresses import split_address
from gateway.broker.catalog import Catalog
from gateway.broker.common import Common, Rules
from gateway.broker.http import HttpApi, Node
from gateway.broker.message import NODE_IDS, Memory
from gateway.broker.options import BrokerOptions, as_nsqd_names
from gateway.broker.server import Server
from gateway.errors import StartError
from gateway.listener import HttpListener

_NS_PER_MS = 1_000_000


class Broker:
    """A TCP server and an HTTP server over one catalog, on the running event loop."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.tcp_address = options.tcp_address
        """host:port; after `start` with the port that the system chose for 0."""
        self.http_address = options.http_address
        """The same for HTTP; empty when there is none."""
        self._server: Server | None = None
        self._http: HttpListener | None = None

    async def start(self) -> None:
        """
        Listen on both addresses, with an empty catalog.

        Raises:
            StartError: An address is taken or not one of this machine; nothing is left listening.
        """
        options = self._options
        self._server = Server(Catalog(_common(options)), max_connections=options.max_connections)
        self.tcp_address = await self._server.start(options.tcp_address)
        if not options.http_address:
            return
        self._http = HttpListener(
            "broker HTTP", options.http_address, limit_concurrency=options.max_connections
        )
        try:
            self._http.bind()
        except StartError:
            await self.stop()
            raise
        self.http_address = self._http.address
        await self._http.start(
            HttpApi(self._server, node=self._node(), config=as_nsqd_names(options))
        )

    async def stop(self) -> None:
        """Close the listeners, then the clients; again is without effect."""
        if self._http is not None:
            await self._http.stop()
            self._http = None
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def _node(self) -> Node:
        limits, hostname = self._options.limits, socket.gethostname()
        return Node(
            broadcast_address=self._options.broadcast_address or hostname,
            hostname=hostname,
            http_port=split_address(self.http_address)[1],
            tcp_port=split_address(self.tcp_address)[1],
            start_time=int(time.time()),
            max_heartbeat_interval=limits.max_heartbeat_interval_ms * _NS_PER_MS,
            max_output_buffer_size=limits.max_output_buffer_size_bytes,
            max_output_buffer_timeout=limits.max_output_buffer_timeout_ms * _NS_PER_MS,
        )


def _common(options: BrokerOptions) -> Common:
    node_id = options.node_id
    if node_id is None:
        # nsqd's own way (nsqd/options.go); MD5 spreads the name and protects nothing.
        name = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
        node_id = zlib.crc32(name) % NODE_IDS
    return Common(
        memory=Memory(limit_bytes=options.max_memory_bytes),
        random=random.randrange,
        rules=Rules(
            limits=options.limits,
            mem_queue_size=options.mem_queue_size,
            max_channel_consumers=options.max_channel_consumers,
            node_id=node_id,
        ),
    )
