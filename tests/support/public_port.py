"""The public port of a gateway in the test's own process, where its clock can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gateway.client.lookup import Discovery
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.web.app import WebParts, create_app
from gateway.web.credentials import AccessPolicy
from gateway.web.http_port import HttpPort
from gateway.web.http_protocol import HttpProtocol
from gateway.web.publish import PublishPlane
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.subscribe import SubscribeEndpoint, SubscribeOptions
from gateway.web.websocket_port import WebSocketPort

MIB = 1_048_576


@asynccontextmanager
async def public_port(
    nsqds: Sequence[str],
    *,
    access: AccessPolicy | None = None,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[str]:
    """
    Answer on a free port, in front of the brokers at *nsqds*; return its http:// address.

    *options* are those of `SubscribeOptions`.
    """
    access = access or AccessPolicy()
    discovery = Discovery(nsqds)
    await discovery.start()
    publisher = Publisher(discovery=discovery, options=PublisherOptions(connections_per_nsqd=1))
    await publisher.start()
    plane = PublishPlane(publisher, Limits(), access=access)
    subscribe = SubscribeEndpoint(
        SubscribeOptions(
            discovery=discovery,
            publishing=SocketPublishing(publisher, plane.callers),
            access=access,
            **options,
        )
    )
    websockets = WebSocketPort(
        subscribe, max_frame_bytes=2 * MIB, ping_interval_s=None, ping_timeout_s=None
    )
    port = HttpPort(plane, websockets=websockets)
    listener = HttpListener("the public port", "127.0.0.1:0")
    app = create_app(WebParts(refuse_upgrade=subscribe.refuse))
    await listener.start(app, http=partial(HttpProtocol, port))
    try:
        yield f"http://{listener.address}"
    finally:
        await subscribe.drain(0)
        await listener.stop()
        publisher.abort()
        await publisher.stop()
        await discovery.stop()
