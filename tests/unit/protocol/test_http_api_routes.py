"""Paths and methods are told apart as nsqd does it."""

from __future__ import annotations

import pytest

from gateway.protocol.http_api import (
    ROUTES,
    OptionsResponse,
    Redirect,
    RouteError,
    RouteMatch,
    RouteResult,
    find_route,
    status_of,
)
from tests.support.brokers.nsqd import real_nsqd
from tests.support.http.raw_http import exchange


@pytest.mark.parametrize(
    "path,method", [(path, method) for path, methods in ROUTES.items() for method in methods]
)
def test_a_route_is_found_by_its_path_and_method(path: str, method: str) -> None:
    argument = "max_msg_size" if path.endswith(":opt") else ""

    assert RouteMatch(path, argument) == find_route(method, path.replace(":opt", argument))


@pytest.mark.parametrize(
    "method,path,expected",
    [
        ("GET", "/", RouteError("NOT_FOUND")),
        ("GET", "", RouteError("NOT_FOUND")),
        ("GET", "/nothing", RouteError("NOT_FOUND")),
        ("POST", "/topic", RouteError("NOT_FOUND")),
        ("GET", "/config", RouteError("NOT_FOUND")),
        ("GET", "/config/:opt/more", RouteError("NOT_FOUND")),
        ("GET", "/pub", RouteError("METHOD_NOT_ALLOWED", "OPTIONS, POST")),
        ("HEAD", "/ping", RouteError("METHOD_NOT_ALLOWED", "GET, OPTIONS")),
        ("POST", "/config/x", RouteError("METHOD_NOT_ALLOWED", "GET, OPTIONS, PUT")),
        ("OPTIONS", "/pub", OptionsResponse("OPTIONS, POST")),
        ("OPTIONS", "/ping", OptionsResponse("GET, OPTIONS")),
        ("OPTIONS", "/nothing", RouteError("NOT_FOUND")),
        ("GET", "/ping/", Redirect(301, "/ping")),
        ("GET", "/PING", Redirect(301, "/ping")),
        ("POST", "/pub/", Redirect(307, "/pub")),
        ("POST", "//Topic/./x/../Create/", Redirect(307, "/topic/create")),
        ("GET", "/Config/A%b c/", Redirect(301, "/config/A%25b%20c")),
        ("HEAD", "/ping/", RouteError("NOT_FOUND")),
    ],
)
def test_other_paths_have_nsqds_answer(method: str, path: str, expected: RouteResult) -> None:
    """404, 405 with Allow, OPTIONS and redirects are told apart."""
    assert expected == find_route(method, path)


def test_routes_may_be_fewer_than_those_of_nsqd() -> None:
    """With a smaller table, the paths left out are not found."""
    assert RouteError("NOT_FOUND") == find_route("GET", "/stats", routes={"/ping": ("GET",)})


METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "get"]
PATHS = [
    *(path.replace(":opt", "max_msg_size") for path in ROUTES),
    "/",
    "/ping/",
    "/ping//",
    "//ping",
    "/PING",
    "/Ping/",
    "/./ping",
    "/x/../ping",
    "/../ping",
    "/ping/.",
    "/ping/x",
    "/pin",
    "/pingx",
    "/pub/",
    "/PUB",
    "/topic",
    "/topic/",
    "/Topic/Create",
    "/topic/create/",
    "/config",
    "/config/",
    "/config/max_msg_size/",
    "/CONFIG/max_msg_size",
    "/config/max_msg_size/x",
    "/nothing",
]


def outcome(answer: RouteResult) -> tuple[int, str, str]:
    """Return status, Allow and Location of *answer*; those of a found route are not of interest."""
    match answer:
        case RouteMatch():
            return 0, "", ""
        case OptionsResponse(allow):
            return 200, allow, ""
        case Redirect(status, location):
            return status, "", location
        case RouteError(token, allow):
            return status_of(token), allow, ""


@pytest.mark.nsqd
async def test_a_real_nsqd_answers_every_path_and_method_so() -> None:
    """Paths, spelled well and badly, with every method, are answered by nsqd as by the table."""
    expected = {}
    actual = {}
    async with real_nsqd() as nsqd:
        for method in METHODS:
            for path in PATHS:
                ours = outcome(find_route(method, path))
                theirs = await exchange(nsqd.http_address, method, path)
                actual[method, path] = ours
                expected[method, path] = (
                    ours
                    if ours[0] == 0 and theirs.message not in {"NOT_FOUND", "METHOD_NOT_ALLOWED"}
                    else (
                        theirs.status,
                        theirs.headers.get("allow", ""),
                        theirs.headers.get("location", ""),
                    )
                )

    assert expected == actual
