"""What is answered to a request that no route takes: nsqd's answer, with a problem body."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope

from gateway.protocol.http_routes import Options, Redirect, Refused, find_route
from gateway.web.answers import Answer
from gateway.web.faults import METHOD_NOT_ALLOWED, NOT_FOUND, render


def is_unrouted(method: str, path: str, routes: Mapping[str, tuple[str, ...]]) -> bool:
    """Tell whether none of *routes* has a say about *path*: it would be 404."""
    found = find_route(method, path, routes=routes)
    return isinstance(found, Refused) and not found.allow


def answer_unrouted(scope: Scope, routes: Mapping[str, tuple[str, ...]], request_id: str) -> Answer:
    """Return 404, 405, the answer to OPTIONS, or a redirect, as nsqd would with these *routes*."""
    method, path = scope["method"], scope["path"]
    found = find_route(method, path, routes=routes)
    if isinstance(found, Refused) and found.allow:
        detail = f"{path} takes {found.allow}, not {method}"
        status, headers, body = render(METHOD_NOT_ALLOWED, detail, request_id)
        return status, [*headers, (b"allow", found.allow.encode())], body
    if isinstance(found, Options):
        return _empty(200, (b"allow", found.allow.encode()), request_id)
    if isinstance(found, Redirect):
        query = scope["query_string"]
        location = found.location.encode() + (b"?" + query if query else b"")
        return _empty(found.status, (b"location", location), request_id)
    # One name for all that is below it: the files of a page say nothing to who lost the way.
    known = ", ".join(sorted(each for each in routes if each.rpartition("/")[0] not in routes))
    return render(NOT_FOUND, f"there is no {path[:200]}; there are {known}", request_id)


def _empty(status: int, header: tuple[bytes, bytes], request_id: str) -> Answer:
    headers = [header, (b"content-length", b"0"), (b"x-request-id", request_id.encode())]
    return status, headers, b""
