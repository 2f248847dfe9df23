"""What no route takes is answered as nsqd does."""

from __future__ import annotations

import json

import pytest

from gateway.web.errors import is_not_found, not_found_response
from tests.support.http.asgi import http_scope

ROUTES = {"/pub": ("POST",), "/ping": ("GET",)}


def test_an_unknown_path_is_404_and_tells_the_known_ones() -> None:
    """The body is a problem with nsqd's token."""
    status, _, body = not_found_response(http_scope("GET", "/nothing"), ROUTES, "r")

    document = json.loads(body)
    assert (404, "NOT_FOUND") == (status, document["message"])
    assert "no such path: /nothing; known paths: /ping, /pub" == document["detail"]


def test_a_wrong_method_is_405_with_allow() -> None:
    status, headers, body = not_found_response(http_scope("GET", "/pub"), ROUTES, "r")

    assert (405, "METHOD_NOT_ALLOWED") == (status, json.loads(body)["message"])
    assert (b"allow", b"OPTIONS, POST") in headers


def test_options_is_empty_with_allow() -> None:
    """Status 200, no body, no type."""
    answer = not_found_response(http_scope("OPTIONS", "/ping"), ROUTES, "r")

    headers = [(b"allow", b"GET, OPTIONS"), (b"content-length", b"0"), (b"x-request-id", b"r")]
    assert (200, headers, b"") == answer


@pytest.mark.parametrize(
    "method,path,query,status,location",
    [
        ("GET", "/ping/", b"", 301, b"/ping"),
        ("POST", "/Pub", b"topic=t&x=%20", 307, b"/pub?topic=t&x=%20"),
    ],
)
def test_a_path_that_is_nearly_right_is_redirected(
    method: str, path: str, query: bytes, status: int, location: bytes
) -> None:
    """The query goes along."""
    answer = not_found_response(http_scope(method, path, query=query), ROUTES, "r")

    headers = [(b"location", location), (b"content-length", b"0"), (b"x-request-id", b"r")]
    assert (status, headers, b"") == answer


def test_the_known_ones_do_not_name_what_is_below_one_of_them() -> None:
    """Who looks for a page of many files is told of the page."""
    routes = {"/console": ("GET",), "/console/:opt": ("GET",), "/topic/create": ("POST",)}

    _, _, body = not_found_response(http_scope("GET", "/nothing"), routes, "r")

    assert (
        "no such path: /nothing; known paths: /console, /topic/create" == json.loads(body)["detail"]
    )


@pytest.mark.parametrize(
    "method,path,free",
    [
        ("GET", "/nothing", True),
        ("HEAD", "/nothing", True),
        ("GET", "/", True),
        ("GET", "/ping", False),
        ("HEAD", "/ping", False),
        ("GET", "/pub", False),
        ("GET", "/Ping/", False),
        ("OPTIONS", "/ping", False),
    ],
)
def test_a_path_is_unrouted_when_it_would_be_404(method: str, path: str, *, free: bool) -> None:
    """A wrong method and a redirect are answers of a route."""
    assert free is is_not_found(method, path, ROUTES)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_leads_to_the_console(method: str) -> None:
    """Where it is served; 307, for another version may have a page of its own there."""
    scope = {"method": method, "path": "/", "query_string": b""}
    status, headers, _ = not_found_response(scope, {"/console": ("GET",)}, "r-1")

    assert (307, b"/console") == (status, dict(headers)[b"location"])


@pytest.mark.parametrize("method,routes", [("GET", {}), ("POST", {"/console": ("GET",)})])
def test_the_root_without_a_console_names_the_routes(
    method: str, routes: dict[str, tuple[str, ...]]
) -> None:
    scope = {"method": method, "path": "/", "query_string": b""}
    status, _, body = not_found_response(scope, {"/ping": ("GET",), **routes}, "r-1")

    assert (404, True) == (status, b"/ping" in body)
