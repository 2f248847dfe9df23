"""The admin API in this process, in front of real or scripted nsqds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from gateway.client.admin import Administration, AuthProbe
from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.node_drains import NodeDrains
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from gateway.client.peek import ChannelPeek
from gateway.credentials import Secret
from gateway.web.admin.merge import GatewayIdentity
from gateway.web.admin.routes import AdminContext, admin_router
from gateway.web.app import AppContext, create_app
from gateway.web.auth import AccessPolicy, AdminAccess
from tests.support.http.asgi import http_client
from tests.support.manual_clock import until

IDENTITY = GatewayIdentity(
    version="0.0.1",
    broadcast_address="gateway.example",
    hostname="gateway",
    http_port=8080,
    start_time=1_700_000_000,
)


@dataclass(frozen=True, kw_only=True)
class AdminAppOptions:
    """Options of `admin_app`."""

    lookupds: tuple[str, ...] = ()
    found: int = 0
    """Number of nsqds that nsqlookupd must list before the app starts."""
    secret: Secret | None = None
    is_closed: bool = False
    looks_for_auth: bool = False
    """Probe the nodes' own configuration for AUTH."""
    policy: AccessPolicy | None = None
    """With an access file, who may administer what."""
    options: NsqdHttpOptions = field(default_factory=NsqdHttpOptions)
    tcp_addresses: tuple[str, ...] = ()
    """TCP host:port of *nsqds*, which drains need."""
    on_drains: Callable[[frozenset[str]], None] = lambda _addresses: None
    """Called with the TCP addresses of all drained nsqds when these change."""


@asynccontextmanager
async def admin_app(
    *nsqds: str, setup: AdminAppOptions = AdminAppOptions()
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the admin API for *nsqds* (host:port of their HTTP); yield an HTTP client of it."""
    lookup = LookupOptions(lookupd_http_addresses=setup.lookupds, poll_interval_s=0.05)
    discovery = Discovery(setup.tcp_addresses, lookup)
    nodes = NsqdHttp(nsqds, discovery, setup.options)
    async with AsyncExitStack() as life:
        life.push_async_callback(discovery.stop)
        await discovery.start()
        life.push_async_callback(nodes.stop)
        await nodes.start()
        await until(lambda: len(nodes.http_addresses) == len(nsqds) + setup.found)
        drains = NodeDrains(nodes, discovery, setup.on_drains, poll_interval_s=3_600)
        life.push_async_callback(drains.stop)
        await drains.start()
        parts = AdminContext(
            nsqds=nodes,
            drains=drains,
            peek=ChannelPeek(nodes, discovery, ConnectionOptions()),
            administration=Administration(nodes, discovery),
            access=AdminAccess(
                setup.secret,
                is_closed=lambda: setup.is_closed,
                probe_auth=AuthProbe(nodes).probe_auth if setup.looks_for_auth else _no,
                policy=setup.policy,
            ),
            identity=IDENTITY,
            user_agent="nsq-gateway/test",
        )
        app = create_app(AppContext(routers=[admin_router(parts)]))
        yield await life.enter_async_context(http_client(app))


async def _no() -> bool:
    return False
