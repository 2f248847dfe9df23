"""The embedded broker in the test's process, on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.broker.broker import Broker, BrokerOptions

_FREE = BrokerOptions(tcp_address="127.0.0.1:0", http_address="")


@asynccontextmanager
async def embedded_broker(
    options: BrokerOptions = _FREE, *, has_http: bool = False
) -> AsyncIterator[Broker]:
    """Run a broker with these *options* on free ports; HTTP only on request."""
    http = "127.0.0.1:0" if has_http else ""
    broker = Broker(
        replace(options, tcp_address="127.0.0.1:0", http_address=http, https_address=http)
    )
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
