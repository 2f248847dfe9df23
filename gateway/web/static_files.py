"""
What a browser gets from the package itself: the module, its types, the console page.

All of it is read at the start and kept: no path of a request leads to a file, so none leads out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from gateway.web.media_types import media_type_of

READING = ("GET", "HEAD")
MODULE_ROUTES = dict.fromkeys(("/nsq.js", "/nsq.d.ts"), READING)
CONSOLE_ROUTES = dict.fromkeys(("/console", "/console/:opt"), READING)

_INDEX = "index.html"
_COMMON = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_MODULE_HEADERS = {
    **_COMMON,
    # Any page may import it: what may be done with it decides the Origin at /sub.
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
_CONSOLE_HEADERS = {
    **_COMMON,
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    # To our own host: a plain GET of /sub is judged by it.
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """One file, as it goes out."""

    content: bytes
    headers: Mapping[str, str]

    def answer(self, request: Request) -> Response:
        """Return the answer to GET or HEAD: 304 where the browser has it already."""
        if _has(request.headers.get("if-none-match", ""), self.headers["ETag"]):
            kept = {name: self.headers[name] for name in self.headers if name != "Content-Type"}
            return Response(status_code=304, headers=kept)
        response = Response(self.content, headers=dict(self.headers))
        if request.method == "HEAD":
            response.body = b""
        return response


def static_files_router(folder: Traversable | None = None, *, console: bool = True) -> APIRouter:
    """
    Return GET and HEAD of /nsq.js and /nsq.d.ts, and where *console* says so of /console.

    *folder* is the package's own where none is given.

    Raises:
        FileNotFoundError: The package was built without its files.
    """
    folder = folder or resources.files("gateway.web") / "static"
    files = {path: _read(folder / path[1:], _MODULE_HEADERS) for path in MODULE_ROUTES}
    routes = [*MODULE_ROUTES]
    if console:
        files |= _console_files(folder / "console")
        routes += ["/console", "/console/{name}"]

    async def send(request: Request) -> Response:
        file = files.get(request.scope["path"])
        if file is None:
            raise HTTPException(404)
        return file.answer(request)

    router = APIRouter(tags=["Browser"])
    for path in routes:
        statuses = (304, 404) if path.endswith("}") else (304,)
        responses: dict[int | str, dict[str, Any]] = {status: {} for status in statuses}
        # One at a time: FastAPI would give both the same name.
        for method in READING:
            router.add_api_route(
                path, send, methods=[method], response_class=Response, responses=responses
            )
    return router


def _console_files(folder: Traversable) -> dict[str, StaticFile]:
    """Return the page and its files by path; one that is hidden is an editor's."""
    files = {
        f"/console/{file.name}": _read(file, _CONSOLE_HEADERS)
        for file in folder.iterdir()
        if file.is_file() and file.name != _INDEX and not file.name.startswith(".")
    }
    return {"/console": _read(folder / _INDEX, _CONSOLE_HEADERS), **files}


def _read(file: Traversable, headers: Mapping[str, str]) -> StaticFile:
    content = file.read_bytes()
    # The types of the module are for people and their editors; no browser runs them.
    kind = "text/plain" if file.name.endswith(".d.ts") else media_type_of(file.name)
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    own = {
        "Content-Type": kind + charset,
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
    return StaticFile(content=content, headers={**own, **headers})


def _has(known: str, etag: str) -> bool:
    """Tell whether *etag* is among those of an If-None-Match (RFC 9110 §13.1.2)."""
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    return etag in tags or tags == ["*"]
