"""Administration without a server: the public application in this process, real nodes behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from gateway.client.administration import Administration
from gateway.client.auth_survey import AuthSurvey
from gateway.client.lookup import Discovery, LookupOptions
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from gateway.secret import Secret
from gateway.web.admin import AdminParts, admin_router
from gateway.web.admin_access import AdminAccess
from gateway.web.app import WebParts, create_app
from gateway.web.node_reports import Identity
from tests.support.asgi import http_client
from tests.support.manual_clock import until

IDENTITY = Identity(
    version="0.0.1",
    broadcast_address="gateway.example",
    hostname="gateway",
    http_port=8080,
    start_time=1_700_000_000,
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an administered gateway knows."""

    lookupds: tuple[str, ...] = ()
    found: int = 0
    """How many nsqds nsqlookupd is waited for to name."""
    secret: Secret | None = None
    is_closed: bool = False
    looks_for_auth: bool = False
    """Whether the nodes are asked for their own configuration."""
    options: NsqdHttpOptions = field(default_factory=NsqdHttpOptions)


@asynccontextmanager
async def administered(*nsqds: str, setup: Setup = Setup()) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway that knows the HTTP of *nsqds* (host:port); yield who asks it."""
    lookup = LookupOptions(lookupd_http_addresses=setup.lookupds, poll_interval_s=0.05)
    discovery = Discovery((), lookup)
    nodes = NsqdHttp(nsqds, discovery, setup.options)
    async with AsyncExitStack() as life:
        life.push_async_callback(discovery.stop)
        await discovery.start()
        life.push_async_callback(nodes.stop)
        await nodes.start()
        await until(lambda: len(nodes.nodes) == len(nsqds) + setup.found)
        parts = AdminParts(
            nsqds=nodes,
            administration=Administration(nodes, discovery),
            access=AdminAccess(
                setup.secret,
                is_closed=lambda: setup.is_closed,
                finds_auth=AuthSurvey(nodes).finds_auth if setup.looks_for_auth else _no,
            ),
            identity=IDENTITY,
        )
        app = create_app(WebParts(routers=[admin_router(parts)]))
        yield await life.enter_async_context(http_client(app))


async def _no() -> bool:
    return False
