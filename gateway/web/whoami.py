"""GET /whoami: who the caller is by the access file, until when, and what it may do."""

from __future__ import annotations

import math

import msgspec
from fastapi import APIRouter, Request, Response

from gateway.access.rights import Identity
from gateway.protocol.http_api import JSON, NSQ_HEADER
from gateway.web.auth import AccessPolicy, authorization_values, bearer_secret
from gateway.web.responses import TITLES

WHOAMI = "/whoami"


def whoami_router(policy: AccessPolicy) -> APIRouter:
    """Return the route; the application responds to the GatewayErrors that it raises."""
    router = APIRouter()

    async def whoami(request: Request) -> Response:
        identity = None
        if policy.control is not None:
            headers = request.scope["headers"]
            identity = policy.identify(bearer_secret(authorization_values(headers))).identity
        body = msgspec.json.encode(_describe(identity))
        response = Response(body)
        response.raw_headers = [
            (b"content-type", JSON),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            NSQ_HEADER,
        ]
        return response

    router.add_api_route(
        WHOAMI,
        whoami,
        methods=["GET"],
        operation_id="whoami",
        tags=["State"],
        responses={status: {"description": TITLES[status]} for status in (400, 401, 500)},
    )
    return router


def _describe(identity: Identity | None) -> dict[str, object]:
    """Return the members of the response; all null if there is no access file."""
    if identity is None:
        return dict.fromkeys(("identity", "issuer", "expires_at", "grants"))
    expires_at = identity.expires_at
    return {
        "identity": identity.name,
        "issuer": identity.issuer,
        "expires_at": None if math.isinf(expires_at) else expires_at,
        "grants": identity.rights.grants,
    }
