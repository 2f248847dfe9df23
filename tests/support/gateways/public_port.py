"""The public port of a gateway in the test's process, with a controllable clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gateway.client.discovery import Discovery
from gateway.client.producer import Producer, ProducerOptions
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.web.app import AppContext, create_app
from gateway.web.auth import AccessPolicy
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpServerState
from gateway.web.subscribe.endpoint import SubscribeEndpoint, SubscribeOptions
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.websocket.protocol import WebSocketServerState

MIB = 1_048_576


@asynccontextmanager
async def public_port(
    nsqds: Sequence[str],
    *,
    access: AccessPolicy | None = None,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[str]:
    """
    Listen on a free port in front of *nsqds*; yield its http:// address.

    *options* are those of `SubscribeOptions`.
    """
    access = access or AccessPolicy()
    discovery = Discovery(nsqds)
    await discovery.start()
    publisher = Producer(discovery=discovery, options=ProducerOptions(connections_per_nsqd=1))
    await publisher.start()
    handler = PublishHandler(publisher, Limits(), access=access)
    subscribe = SubscribeEndpoint(
        SubscribeOptions(
            discovery=discovery,
            publishing=SocketPublishing(publisher, handler.rate_limiter),
            access=access,
            **options,
        )
    )
    websockets = WebSocketServerState(
        subscribe, max_frame_bytes=2 * MIB, ping_interval_s=None, ping_timeout_s=None
    )
    port = HttpServerState(handler, websockets=websockets)
    listener = HttpListener("the public port", "127.0.0.1:0")
    app = create_app(AppContext(refuse_upgrade=subscribe.refuse))
    await listener.start(app, http=partial(HttpProtocol, port))
    try:
        yield f"http://{listener.address}"
    finally:
        await subscribe.drain(0)
        await listener.stop()
        publisher.abort()
        await publisher.stop()
        await discovery.stop()
