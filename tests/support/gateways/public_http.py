"""The public HTTP port on a free loopback port, with any publisher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from gateway.client.producer import Producer
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.web.app import AppContext, create_app
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpLimits, HttpServerState
from gateway.web.origins import OriginPolicy
from gateway.web.proxies import TrustedProxies
from gateway.web.websocket.protocol import WebSocketServerState
from tests.support.http.plain import NO_TLS

_WAIT_S = 60.0


@dataclass(frozen=True)
class PublicHttp:
    """A listening public HTTP port."""

    address: str
    """Host and port."""
    http: httpx.AsyncClient
    listener: HttpListener


@asynccontextmanager
async def public_http(
    publisher: Producer,
    limits: Limits | None = None,
    *,
    origins: OriginPolicy | None = None,
    http_limits: dict[str, Any] | None = None,
    proxies: TrustedProxies | None = None,
    websockets: WebSocketServerState | None = None,
    **handler_options: Any,  # noqa: ANN401
) -> AsyncIterator[PublicHttp]:
    """Serve *publisher*; *http_limits* and *handler_options* are keyword arguments."""
    origins = origins or OriginPolicy()
    port = HttpServerState(
        PublishHandler(publisher, limits or Limits(), origins=origins, **handler_options),
        websockets=websockets,
        proxies=proxies,
        limits=HttpLimits(**(http_limits or {})),
    )
    listener = HttpListener("the public port", "127.0.0.1:0", grace_s=0.2)
    await listener.start(create_app(AppContext(origins=origins)), http=partial(HttpProtocol, port))
    url = f"http://{listener.address}"
    try:
        async with httpx.AsyncClient(
            base_url=url, timeout=_WAIT_S, trust_env=False, verify=NO_TLS
        ) as http:
            yield PublicHttp(listener.address, http, listener)
    finally:
        await listener.stop()


def only_connection(served: PublicHttp) -> HttpProtocol:
    server = served.listener._server
    assert server is not None
    (connection,) = set[object](server.server_state.connections)
    assert isinstance(connection, HttpProtocol)
    return connection
