"""
Serve the folder of `--static-dir` under the origin of the gateway.

Starlette's `StaticFiles` maps paths to files, and follows no symbolic links out of the folder. In
addition, this module serves the index file of a folder, and redirects to the folder's path with a
slash. It responds with 404 for hidden files and 403 for unreadable ones, ignores invalid Range
headers, and handles files that change while they are sent.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import Forbidden, SettingsError
from gateway.telemetry import get_logger
from gateway.web.errors import is_not_found, problem_response
from gateway.web.responses import send_response
from gateway.web.site.assets import media_type_of

logger = get_logger()

INDEX = "index.html"
_SHOWN = 200
"""Characters of a path in logs and errors."""
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors that mean that no such file exists, for which the client gets 404."""
_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_RANGE = re.compile(r"\s*([0-9]{0,18})-([0-9]{0,18})\s*")


@dataclass(frozen=True)
class _Found:
    """The file to send for the path of a request."""

    path: str
    status: os.stat_result
    is_folder: bool = False
    """True if the requested path is a folder, and the file its index file."""


class StaticDir:
    """The files of the folder *path*, for GET and HEAD requests."""

    def __init__(self, path: str) -> None:
        self._files = StaticFiles(directory=path, check_dir=False)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """
        Send the file that *scope* requests, a redirect to it, or an error.

        Return False, with nothing sent, if there is no such file.
        """
        outgoing = _Outgoing(send, has_body=scope["method"] != "HEAD")
        failure: OSError | None = None
        try:
            response = await self._response(scope)
            if response is None:
                return False
            await response(_without_invalid_range(scope), receive, outgoing)
        except* OSError as errors:
            # FileResponse sends in a task group, which raises a group of errors. All concern the
            # same file, so the first one will do.
            failure = next(_leaves(errors))
        if failure is None or outgoing.is_complete:
            return True
        if outgoing.has_begun:
            # The response is incomplete, and uvicorn closes the connection: the client notices.
            logger.warning("static file changed while being sent", path=scope["path"][:_SHOWN])
            return True
        if failure.errno in _NOT_THERE:
            return False
        shown = scope["path"][:_SHOWN]
        logger.warning("static file not readable", path=shown, error=str(failure))
        error: Exception = failure
        if isinstance(failure, PermissionError):
            error = Forbidden(f"the gateway has no permission to read {shown}; try chmod a+r")
        await send_response(send, problem_response(error, scope["state"]["request_id"]))
        return True

    async def _response(self, scope: Scope) -> Response | None:
        # In a thread, since the file system may block.
        found = await run_in_threadpool(self._find, self._files.get_path(scope))
        path: str = scope["path"]
        if found is None or (path.endswith("/") and not found.is_folder):
            return None
        if found.is_folder and not path.endswith("/"):
            return _to_folder(scope)
        name = INDEX if found.is_folder else path.rpartition("/")[2]
        response = FileResponse(
            found.path,
            headers=_HEADERS,
            media_type=media_type_of(name),
            stat_result=found.status,
        )
        if self._files.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response

    def _find(self, path: str) -> _Found | None:
        """Return the file for a *path* from `StaticFiles.get_path`; None if there is none."""
        if any(map(_is_hidden, PurePath(path).parts)):
            return None
        try:
            found = self._look(path)
            if found is None or not stat.S_ISDIR(found.status.st_mode):
                return found
            index = self._look(str(PurePath(path, INDEX)))
        except ValueError:
            return None  # the path has a NUL, or a character that this file system cannot encode
        if index is None or not stat.S_ISREG(index.status.st_mode):
            return None
        return _Found(index.path, index.status, is_folder=True)

    def _look(self, path: str) -> _Found | None:
        full_path, status = self._files.lookup_path(path)
        if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return None
        return _Found(full_path, status)


class _Outgoing:
    """
    An ASGI send function for the response with one file, which may change while being sent.

    The head of the response is sent together with the first bytes of the file, so that an error can
    be sent instead. If the file has become longer, the client gets only the bytes of the announced
    Content-Length.

    Raises:
        OSError: The file became shorter or longer.
    """

    def __init__(self, send: Send, *, has_body: bool) -> None:
        self.has_begun = False
        self._send = send
        self._has_body = has_body
        self._head: Message | None = None
        self._remaining_bytes: int | None = None
        """Bytes of the body yet to be sent; None without Content-Length, and for HEAD."""
        self.is_complete = False
        """True if the body has been sent completely."""

    async def __call__(self, event: Message) -> None:
        if event["type"] == "http.response.start":
            self._head = event
            length = Headers(raw=event["headers"]).get("content-length")
            self._remaining_bytes = int(length) if length and self._has_body else None
            return
        if self._head is not None:
            self.has_begun = True
            await self._send(self._head)
            self._head = None
        if self._remaining_bytes is None:
            await self._send(event)
        else:
            await self._send_body(event.get("body", b""), event.get("more_body", False))

    async def _send_body(self, body: bytes, more_body: bool) -> None:  # noqa: FBT001 - ASGI's
        assert self._remaining_bytes is not None  # noqa: S101 - the head came first
        if self.is_complete:
            if body:
                raise OSError(errno.EFBIG, "the file is longer than it was")
            return
        body = body[: self._remaining_bytes]
        self._remaining_bytes -= len(body)
        if self._remaining_bytes and not more_body:
            raise OSError(errno.EIO, "the file is shorter than it was")
        self.is_complete = not self._remaining_bytes
        more_body = more_body and not self.is_complete
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


def _is_hidden(part: str) -> bool:
    # Files below .well-known are made for the public (RFC 8615).
    return part.startswith(".") and part not in {".", ".well-known"}


def _to_folder(scope: Scope) -> Response:
    """Return a redirect that appends a slash to the path, so that relative links work."""
    name = quote(scope["path"].rpartition("/")[2])
    query = scope["query_string"].decode("latin-1")
    # Relative, since a proxy in front may have another host name or path prefix.
    location = f"./{name}/" + (f"?{query}" if query else "")
    return Response(status_code=307, headers={**_HEADERS, "Location": location})


def _without_invalid_range(scope: Scope) -> Scope:
    """Return *scope* without a malformed Range header, which is ignored (RFC 9110 §14.2)."""
    headers = scope["headers"]
    ranges = [value.decode("latin-1") for name, value in headers if name == b"range"]
    if not ranges or (len(ranges) == 1 and _is_valid_range(ranges[0])):
        return scope
    return {**scope, "headers": [header for header in headers if header[0] != b"range"]}


def _is_valid_range(value: str) -> bool:
    unit, _, ranges = value.partition("=")
    bounds = [_RANGE.fullmatch(each) for each in ranges.split(",")]
    return unit.strip().lower() == "bytes" and all(
        each is not None
        and (each[1] or each[2])
        and (not (each[1] and each[2]) or int(each[1]) <= int(each[2]))
        for each in bounds
    )


def _leaves(errors: BaseExceptionGroup[OSError]) -> Iterator[OSError]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


_MAX_LISTED = 20
"""Maximum number of files that the warning of `check_static_dir` lists."""


def check_static_dir(path: str | None, routes: Mapping[str, tuple[str, ...]]) -> None:
    """
    Check that --static-dir, the folder *path*, can be served; do nothing for None.

    Log a warning if the folder has files that are never served because a route of *routes* has the
    same path, or if it has no index.html.

    Raises:
        SettingsError: *path* is missing, not a folder, or not readable.
    """
    if path is None:
        return
    try:
        if not path:
            raise FileNotFoundError(errno.ENOENT, "the path is empty; use . for the current folder")
        hidden = list(_hidden_by(routes, Path(path)))
        has_index = Path(path, INDEX).is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = "" if Path(path).is_absolute() else f", relative to {Path.cwd()}"
        allowed = f"the path of a folder that the gateway may read{where}; {reason}"
        raise SettingsError("--static-dir", path, allowed=allowed) from error
    if not has_index:
        logger.warning("static directory has no index.html: / is 404", folder=path)
    if hidden:
        logger.warning(
            "static files hidden by the gateway's routes",
            paths=", ".join(hidden[:_MAX_LISTED]),
            count=len(hidden),
            advice="give them other names",
        )


def _hidden_by(routes: Mapping[str, tuple[str, ...]], folder: Path) -> Iterator[str]:
    """
    Yield the path of each file that is never served because *routes* have the same path.

    Raises:
        OSError: *folder* cannot be read.
    """
    parents = {route.split("/")[1] for route in routes if route.count("/") > 1}
    for entry in sorted(folder.iterdir()):
        names = [entry.name]
        # A request for an unreadable subfolder gets 403.
        with suppress(OSError):
            if entry.is_dir():
                within = sorted(each.name for each in entry.iterdir())
                names = [f"{entry.name}/"] if INDEX in within else []
                if entry.name.lower() in parents:
                    names += [f"{entry.name}/{name}" for name in within]
        yield from (f"/{name}" for name in names if not is_not_found("GET", f"/{name}", routes))
