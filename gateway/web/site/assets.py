"""
Serve the static files of the package: `nsq.js`, its TypeScript declarations, and the console.

The files are read into memory at startup, so that no request path is ever used as a file path.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

BYTES = "application/octet-stream"

_OWN_TYPES = {
    # Browsers load modules only with this type; some Python versions have
    # application/javascript.
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".cjs": "text/javascript",
    # Unknown to some Python versions.
    ".avif": "image/avif",
    ".map": "application/json",
    ".md": "text/markdown",
    ".ogg": "audio/ogg",
    ".otf": "font/otf",
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


def _table() -> mimetypes.MimeTypes:
    # A separate instance does not read the mime.types files of the system.
    table = mimetypes.MimeTypes()
    for suffix, media_type in _OWN_TYPES.items():
        table.add_type(media_type, suffix)
    return table


_TABLE = _table()


def media_type_of(name: str) -> str:
    """Return the media type of a file called *name*, without a charset; `BYTES` if unknown."""
    found, encoding = _TABLE.guess_type(f"/{name}")
    # Compressed files are served as they are, without Content-Encoding.
    return BYTES if found is None or encoding is not None else found


READING = ("GET", "HEAD")
MODULE_ROUTES = dict.fromkeys(("/nsq.js", "/nsq.d.ts"), READING)
CONSOLE_ROUTES = dict.fromkeys(("/console", "/console/:opt"), READING)

_INDEX = "index.html"
_COMMON = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_MODULE_HEADERS = {
    **_COMMON,
    # Any page may import the module; /sub checks the origin.
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
    # Needed by a plain GET of /sub, which has no Origin (`same_origin_referer`).
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """A file in memory, with the headers of its responses."""

    content: bytes
    headers: Mapping[str, str]

    def answer(self, request: Request) -> Response:
        """Return the response to GET or HEAD; 304 if If-None-Match has the current ETag."""
        if _has(request.headers.get("if-none-match", ""), self.headers["ETag"]):
            kept = {name: self.headers[name] for name in self.headers if name != "Content-Type"}
            return Response(status_code=304, headers=kept)
        response = Response(self.content, headers=dict(self.headers))
        if request.method == "HEAD":
            # Only now, so that Content-Length is that of GET (RFC 9110 §9.3.2).
            response.body = b""
        return response


def static_files_router(folder: Traversable | None = None, *, console: bool = True) -> APIRouter:
    """
    Return routes for /nsq.js and /nsq.d.ts and, with *console*, for /console.

    *folder* defaults to the static files of the package.

    Raises:
        FileNotFoundError: The package was built without its static files.
    """
    folder = folder or resources.files("gateway.web.site") / "static"
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
        # One route per method, because FastAPI gives all methods of a route the same
        # operation id.
        for method in READING:
            router.add_api_route(
                path, send, methods=[method], response_class=Response, responses=responses
            )
    return router


def _console_files(folder: Traversable) -> dict[str, StaticFile]:
    """Return the console's files by path; skip hidden files, which editors create."""
    files = {
        f"/console/{file.name}": _read(file, _CONSOLE_HEADERS)
        for file in folder.iterdir()
        if file.is_file() and file.name != _INDEX and not file.name.startswith(".")
    }
    return {"/console": _read(folder / _INDEX, _CONSOLE_HEADERS), **files}


def _read(file: Traversable, headers: Mapping[str, str]) -> StaticFile:
    content = file.read_bytes()
    # .d.ts has no registered media type; as text/plain, browsers display the file.
    kind = "text/plain" if file.name.endswith(".d.ts") else media_type_of(file.name)
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    own = {
        "Content-Type": kind + charset,
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
    return StaticFile(content=content, headers={**own, **headers})


def _has(known: str, etag: str) -> bool:
    """Return whether *known*, an If-None-Match header, matches *etag* (RFC 9110 §13.1.2)."""
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    # W/ is ignored: If-None-Match uses the weak comparison (RFC 9110 §8.8.3.2).
    return etag in tags or tags == ["*"]
