"""
The folder of --static-dir: an operator's own page, under the same origin as the gateway.

Which file a path stands for says Starlette's `StaticFiles`, which follows no link out of the
folder; what is asked of it is said here.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import Forbidden
from gateway.telemetry import get_logger
from gateway.web.answers import send_answer
from gateway.web.faults import problem
from gateway.web.media_types import media_type_of

logger = get_logger()

INDEX = "index.html"
_SHOWN = 200
"""Characters of a path that are told."""
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_RANGE = re.compile(r"\s*([0-9]{0,18})-([0-9]{0,18})\s*")


@dataclass(frozen=True)
class _Found:
    """What a path stands for; *is_folder*: its index, whose address ends with a slash."""

    path: str
    status: os.stat_result
    is_folder: bool = False


class PageFolder:
    """Answers GET and HEAD with the files of a folder, as they are at that moment."""

    def __init__(self, path: str) -> None:
        self._files = StaticFiles(directory=path, check_dir=False)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer with the file that is asked for; False: there is none, and nothing was sent."""
        outgoing = _Outgoing(send, has_body=scope["method"] != "HEAD")
        failure: OSError | None = None
        try:
            response = await self._response(scope)
            if response is None:
                return False
            await response(_with_right_range(scope), receive, outgoing)
        except* OSError as errors:
            # The first one will do: there is one file.
            failure = next(_leaves(errors))
        if failure is None or outgoing.is_complete:
            return True
        if outgoing.has_begun:
            logger.warning(
                "a file of --static-dir changed while it was sent", path=scope["path"][:_SHOWN]
            )
            return True
        if failure.errno in _NOT_THERE:
            return False
        shown = scope["path"][:_SHOWN]
        logger.warning("a file of --static-dir cannot be read", path=shown, error=str(failure))
        error: Exception = failure
        if isinstance(failure, PermissionError):
            error = Forbidden(f"{shown} is there, and the gateway may not read it; chmod a+r helps")
        await send_answer(send, problem(error, scope["state"]["request_id"]))
        return True

    async def _response(self, scope: Scope) -> Response | None:
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
        """Return the file that *path*, without dots and double slashes, stands for."""
        if any(map(_is_hidden, PurePath(path).parts)):
            return None
        try:
            found = self._look(path)
            if found is None or not stat.S_ISDIR(found.status.st_mode):
                return found
            index = self._look(str(PurePath(path, INDEX)))
        except ValueError:
            return None  # a NUL, or what is no text for this system
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
    What goes out of one file.

    Its head waits for its first bytes: until then another answer may be given. Somebody may write
    the file meanwhile: of what it grew nothing goes out, and less than was promised is an OSError.
    """

    def __init__(self, send: Send, *, has_body: bool) -> None:
        self.has_begun = False
        self._send = send
        self._has_body = has_body
        self._head: Message | None = None
        self._left_bytes: int | None = None
        """What the head has promised; None: nothing."""
        self.is_complete = False
        """Whether all that was promised has gone out."""

    async def __call__(self, event: Message) -> None:
        if event["type"] == "http.response.start":
            self._head = event
            length = Headers(raw=event["headers"]).get("content-length")
            self._left_bytes = int(length) if length and self._has_body else None
            return
        if self._head is not None:
            self.has_begun = True
            await self._send(self._head)
            self._head = None
        if self._left_bytes is None:
            await self._send(event)
        else:
            await self._send_promised(event.get("body", b""), event.get("more_body", False))

    async def _send_promised(self, body: bytes, more_body: bool) -> None:  # noqa: FBT001 - ASGI's
        assert self._left_bytes is not None  # noqa: S101 - the head came first
        if self.is_complete:
            if body:
                raise OSError(errno.EFBIG, "the file is longer than it was")
            return
        body = body[: self._left_bytes]
        self._left_bytes -= len(body)
        if self._left_bytes and not more_body:
            raise OSError(errno.EIO, "the file is shorter than it was")
        self.is_complete = not self._left_bytes
        more_body = more_body and not self.is_complete
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


def _is_hidden(part: str) -> bool:
    return part.startswith(".") and part not in {".", ".well-known"}


def _to_folder(scope: Scope) -> Response:
    """Return a redirect to the same path with a slash, so that its page may say ``./style.css``."""
    name = quote(scope["path"].rpartition("/")[2])
    query = scope["query_string"].decode("latin-1")
    # Without host and path before it: a proxy in front may have others.
    location = f"./{name}/" + (f"?{query}" if query else "")
    return Response(status_code=307, headers={**_HEADERS, "Location": location})


def _with_right_range(scope: Scope) -> Scope:
    """Return *scope* without a Range that is malformed, which is to be ignored (RFC 9110 §14.2)."""
    headers = scope["headers"]
    asked = [value.decode("latin-1") for name, value in headers if name == b"range"]
    if not asked or (len(asked) == 1 and _is_range(asked[0])):
        return scope
    return {**scope, "headers": [header for header in headers if header[0] != b"range"]}


def _is_range(value: str) -> bool:
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
