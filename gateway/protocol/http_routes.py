"""
nsqd's HTTP paths, and what nsqd answers to a path or a method that is not there.

Source: nsqd/http.go, newHTTPServer; httprouter 1.3.0, ServeHTTP; compared with a real nsqd in
tests/protocol/test_http_routes.py. One difference: ``/config//``, which nsqd redirects to a path
that it does not have, is 404 at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

ROUTES: Mapping[str, tuple[str, ...]] = {
    "/ping": ("GET",),
    "/info": ("GET",),
    "/pub": ("POST",),
    "/mpub": ("POST",),
    "/stats": ("GET",),
    "/topic/create": ("POST",),
    "/topic/delete": ("POST",),
    "/topic/empty": ("POST",),
    "/topic/pause": ("POST",),
    "/topic/unpause": ("POST",),
    "/channel/create": ("POST",),
    "/channel/delete": ("POST",),
    "/channel/empty": ("POST",),
    "/channel/pause": ("POST",),
    "/channel/unpause": ("POST",),
    "/config/:opt": ("GET", "PUT"),
}
"""nsqd's paths and their methods (without /debug); ``:opt`` stands for one part of a path."""


@dataclass(frozen=True, slots=True)
class Found:
    """The route that a request asks for; *argument* is what stands for ``:opt``."""

    route: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The path is a route but for a slash or letter case; the caller adds the query again."""

    status: int
    location: str


@dataclass(frozen=True, slots=True)
class Options:
    """The answer to OPTIONS: 200, an ``Allow`` header, nothing else."""

    allow: str


@dataclass(frozen=True, slots=True)
class Refused:
    """No such path, or not with this method; *allow* goes into a header when it is not empty."""

    token: str
    allow: str = ""


RouteAnswer: TypeAlias = Found | Redirect | Options | Refused


def find_route(
    method: str, path: str, *, routes: Mapping[str, tuple[str, ...]] = ROUTES
) -> RouteAnswer:
    """
    Tell which of *routes* a request asks for, or what nsqd answers in its place.

    *path* is decoded and has no query. Source: httprouter's ServeHTTP: exact match, then a path
    that only differs by a slash or letter case and has this method, then OPTIONS, 405, 404.
    """
    found = _match(path, routes)
    methods = routes[found.route] if found else ()
    if found and method in methods:
        return found
    if path != "/":
        near = _match_nearly(path, routes)
        if near and method in routes[near.route]:
            location = near.route.replace(":opt", quote(near.argument, safe="$&+,:;=@"))
            return Redirect(301 if method == "GET" else 307, location)
    if not methods:
        return Refused("NOT_FOUND")
    if method == "OPTIONS":
        return Options(", ".join(sorted((*methods, "OPTIONS"))))
    return Refused("METHOD_NOT_ALLOWED", ", ".join(sorted((*methods, "OPTIONS"))))


def _match(path: str, routes: Mapping[str, tuple[str, ...]]) -> Found | None:
    """Return the route that *path* spells exactly."""
    if path in routes and ":" not in path:
        return Found(path)
    parent, _, last = path.rpartition("/")
    route = f"{parent}/:opt"
    return Found(route, last) if last and route in routes else None


def _match_nearly(path: str, routes: Mapping[str, tuple[str, ...]]) -> Found | None:
    """Return the route of *path* without double slashes, dots, end slash and capital letters."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    lowered = [part.lower() for part in parts]
    found = _match("/" + "/".join(lowered), routes)
    return Found(found.route, parts[-1]) if found and found.argument else found
