"""The HTTP of the public port on a free port of loopback, with any publisher behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.web.app import WebParts, create_app
from gateway.web.http_port import HttpBounds, HttpPort
from gateway.web.http_protocol import HttpProtocol
from gateway.web.origins import OriginPolicy
from gateway.web.proxies import TrustedProxies
from gateway.web.publish import Publishes, PublishPlane
from gateway.web.websocket_port import WebSocketPort

_WAIT_S = 15.0


@dataclass(frozen=True)
class PublicHttp:
    """A port that answers."""

    address: str
    """Host and port."""
    http: httpx.AsyncClient
    listener: HttpListener


@asynccontextmanager
async def public_http(
    publisher: Publishes,
    limits: Limits | None = None,
    *,
    origins: OriginPolicy | None = None,
    bounds: dict[str, Any] | None = None,
    proxies: TrustedProxies | None = None,
    websockets: WebSocketPort | None = None,
    **plane: Any,  # noqa: ANN401
) -> AsyncIterator[PublicHttp]:
    """Answer with *publisher*; *bounds* are `HttpBounds`, *plane* the rest of `PublishPlane`'s."""
    origins = origins or OriginPolicy()
    port = HttpPort(
        PublishPlane(publisher, limits or Limits(), origins=origins, **plane),
        websockets=websockets,
        proxies=proxies,
        bounds=HttpBounds(**(bounds or {})),
    )
    listener = HttpListener("the public port", "127.0.0.1:0", grace_s=0.2)
    await listener.start(create_app(WebParts(origins=origins)), http=partial(HttpProtocol, port))
    url = f"http://{listener.address}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=_WAIT_S, trust_env=False) as http:
            yield PublicHttp(listener.address, http, listener)
    finally:
        await listener.stop()
