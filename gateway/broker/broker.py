"""
The embedded broker: start it, read its addresses, stop it.

For clients it behaves as nsqd 1.3.0, with these intended differences: messages are kept in memory
only, up to max_memory_bytes, and are lost when the process ends; no TLS, AUTH or compression.
"""

from __future__ import annotations

import hashlib
import random
import socket
import time
import zlib
from dataclasses import dataclass, field

from gateway.addresses import split_address
from gateway.broker.http import HttpApi, InfoResponse
from gateway.broker.message import NODE_IDS, MemoryBudget
from gateway.broker.scheduler import BrokerLimits, BrokerState
from gateway.broker.server import Server
from gateway.broker.topics import TopicRegistry
from gateway.errors import StartError
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """The addresses and limits of a broker."""

    tcp_address: str = "127.0.0.1:4150"
    """host:port for TCP clients; port 0 lets the system choose."""
    http_address: str = "127.0.0.1:4151"
    """host:port for the HTTP API; port 0 lets the system choose, an empty string disables it."""
    broadcast_address: str | None = None
    """Host in the response to /info; None for the host name of this machine."""
    limits: Limits = field(default_factory=Limits)
    mem_queue_size: int = 10_000
    """Maximum messages queued in an ephemeral topic or channel; further ones are dropped."""
    max_memory_bytes: int = 1_073_741_824
    """
    Maximum memory of all messages, counted once per channel; publishes beyond it fail.

    The errors are E_PUB_FAILED, E_MPUB_FAILED, E_DPUB_FAILED, and 503 EXITING. Receive and send
    buffers are not included; they are limited per connection.
    """
    max_connections: int = 10_000
    """
    Maximum number of concurrent connections, for TCP and HTTP separately.

    Further TCP connections are closed, further HTTP requests get 503. nsqd has no such limit.
    """
    max_channel_consumers: int = 0
    """Maximum number of consumers of one channel; 0 is unlimited."""
    node_id: int | None = None
    """0 to 1023, a part of every message id; None derives it from the host name."""


def to_nsqd_options(options: BrokerOptions) -> dict[str, str | int]:
    """Return the options of GET /config/:opt with nsqd's names; durations in ns."""
    limits = options.limits
    return {
        "tcp_address": options.tcp_address,
        "http_address": options.http_address,
        "broadcast_address": options.broadcast_address or "",
        "node_id": options.node_id or 0,
        "mem_queue_size": options.mem_queue_size,
        "max_channel_consumers": options.max_channel_consumers,
        "max_msg_size": limits.max_msg_size_bytes,
        "max_body_size": limits.max_body_size_bytes,
        "max_req_timeout": limits.max_req_timeout_ms * _NS_PER_MS,
        "max_rdy_count": limits.max_rdy_count,
        "msg_timeout": limits.msg_timeout_ms * _NS_PER_MS,
        "max_msg_timeout": limits.max_msg_timeout_ms * _NS_PER_MS,
        "max_heartbeat_interval": limits.max_heartbeat_interval_ms * _NS_PER_MS,
        "max_output_buffer_size": limits.max_output_buffer_size_bytes,
        "output_buffer_timeout": limits.output_buffer_timeout_ms * _NS_PER_MS,
        "min_output_buffer_timeout": limits.min_output_buffer_timeout_ms * _NS_PER_MS,
        "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * _NS_PER_MS,
    }


class Broker:
    """A TCP server and an HTTP server with shared topics, on the running event loop."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.tcp_address = options.tcp_address
        """host:port of the TCP listener; after `start`, with the actual port in place of 0."""
        self.http_address = options.http_address
        """host:port of the HTTP API; after `start`, with the actual port. Empty disables HTTP."""
        self._server: Server | None = None
        self._http: HttpListener | None = None

    async def start(self) -> None:
        """
        Listen on both addresses. The broker starts without topics.

        Raises:
            StartError: An address is in use, or not one of this machine; no listener stays open.
        """
        options = self._options
        self._server = Server(
            TopicRegistry(_context(options)), max_connections=options.max_connections
        )
        self.tcp_address = await self._server.start(options.tcp_address)
        if not options.http_address:
            return
        self._http = HttpListener(
            "broker HTTP", options.http_address, limit_concurrency=options.max_connections
        )
        try:
            self._http.bind()
        except StartError:
            # The TCP listener is open by now.
            await self.stop()
            raise
        self.http_address = self._http.address
        # After both addresses are bound, because `_info` reports the actual ports.
        await self._http.start(
            HttpApi(self._server, info=self._info(), config=to_nsqd_options(options))
        )

    async def stop(self) -> None:
        """Stop the HTTP API, then close the TCP listener and all clients; idempotent."""
        if self._http is not None:
            await self._http.stop()
            self._http = None
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def _info(self) -> InfoResponse:
        limits, hostname = self._options.limits, socket.gethostname()
        return InfoResponse(
            broadcast_address=self._options.broadcast_address or hostname,
            hostname=hostname,
            http_port=split_address(self.http_address)[1],
            tcp_port=split_address(self.tcp_address)[1],
            start_time=int(time.time()),
            max_heartbeat_interval=limits.max_heartbeat_interval_ms * _NS_PER_MS,
            max_output_buffer_size=limits.max_output_buffer_size_bytes,
            max_output_buffer_timeout=limits.max_output_buffer_timeout_ms * _NS_PER_MS,
        )


def _context(options: BrokerOptions) -> BrokerState:
    node_id = options.node_id
    if node_id is None:
        # As in nsqd (nsqd/options.go). MD5 has no security purpose here.
        name = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
        node_id = zlib.crc32(name) % NODE_IDS
    return BrokerState(
        memory=MemoryBudget(limit_bytes=options.max_memory_bytes),
        random=random.randrange,
        limits=BrokerLimits(
            protocol=options.limits,
            mem_queue_size=options.mem_queue_size,
            max_channel_consumers=options.max_channel_consumers,
            node_id=node_id,
        ),
    )
