"""
A subscription at a gateway, over its WebSocket; docs/websocket.md is what holds here.

A socket that ends is opened again where its close code says so. What it had delivered and was not
finished comes again, on the next one.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, cast
from urllib.parse import urlencode

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from gateway.bearer import bearer_headers
from gateway.client.backoff import Backoff
from gateway.commands.feed import Received
from gateway.commands.trust import untrusted
from gateway.errors import AuthRequired, Forbidden, GatewayError, InvalidRequest, NoBroker
from gateway.nsqd_access import NsqdAccess
from gateway.settings_commands import SubSettings
from gateway.telemetry import get_logger

logger = get_logger()

_OPEN_TIMEOUT_S = 20.0
_CLOSE_TIMEOUT_S = 5.0
_FIRST_FINAL_CODE = 4_500
_FINAL_CODES = frozenset({1002, 1003, 1007, 1009})
"""What a repetition does not mend, beside the codes from 4500 on."""


class _Frame(msgspec.Struct):
    """What is read of an object from a gateway."""

    type: str
    id: str = ""
    timestamp_ns: str = ""
    attempts: int = 0
    body: str | None = None
    body_base64: str | None = None
    cmd: str | None = None
    code: str = ""
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Announcement(msgspec.Struct):
    """What is read of an unasked response."""

    reconnect_after_ms: int | None = None


class _Problem(msgspec.Struct):
    """What is read of the body of a refusal."""

    detail: str = ""


_frame_decoder = msgspec.json.Decoder(_Frame)


class GatewayFeed:
    """A client of ``nsq.json.v1``; see `Feed`."""

    def __init__(
        self,
        url: str,
        names: tuple[str, str],
        settings: SubSettings,
        access: NsqdAccess,
        *,
        window: int,
    ) -> None:
        self._url = url
        self._names = names
        self._settings = settings
        self._headers = bearer_headers(access.secret)
        self._window = window
        self._connection: ClientConnection | None = None
        self._backoff = Backoff(random.random)
        self._reconnect_after_s: float | None = None
        self._last_error = ""
        # On its debug level the library shows headers, and with them the secret.
        self._websocket_logger = logging.getLogger("gateway.websockets")
        self._websocket_logger.setLevel(logging.WARNING)

    async def __aenter__(self) -> Self:
        """
        Subscribe.

        Raises:
            GatewayError: Nobody answers there, or it is refused.
        """
        self._connection = await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close, which gives back what is in flight."""
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> ClientConnection:
        topic, channel = self._names
        query = {"topic": topic, "channel": channel, "max_in_flight": self._window}
        if self._settings.msg_timeout_ms:
            query["msg_timeout_ms"] = self._settings.msg_timeout_ms
        if self._settings.sample_rate:
            query["sample_rate"] = self._settings.sample_rate
        try:
            return await connect(
                f"{self._url.replace('http', 'ws', 1)}/sub?{urlencode(query)}",
                additional_headers=self._headers,
                subprotocols=[Subprotocol("nsq.json.v1")],
                compression=None,
                proxy=None,
                logger=self._websocket_logger,
                open_timeout=_OPEN_TIMEOUT_S,
                close_timeout=_CLOSE_TIMEOUT_S,
                # One message goes in one frame, however long it is.
                max_size=None,
                # The window bounds what waits. With a bound here nothing more would be read, not
                # even the answer to a close.
                max_queue=None,
            )
        except InvalidStatus as error:
            raise _refusal(self._url, error) from error
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            if (reason := untrusted(self._url, error)) is not None:
                raise reason from error
            text = f"no gateway answers at {self._url}: {str(error) or type(error).__name__}"
            raise NoBroker(text) from error

    # In

    async def batches(self) -> AsyncIterator[Sequence[Received]]:
        """Give what comes; see `Feed`."""
        while True:
            connection = self._connection
            assert connection is not None  # noqa: S101 - connected before
            opened_at = asyncio.get_running_loop().time()
            try:
                async for frame in connection:
                    if batch := self._read(connection, frame):
                        yield batch
            except ConnectionClosed:
                pass
            self._check_close(connection)
            self._backoff.connection_held(asyncio.get_running_loop().time() - opened_at)
            await self._reconnect()

    def _read(self, connection: ClientConnection, frame: str | bytes) -> list[Received]:
        """Return the messages in *frame*, and see to what else it holds."""
        lines = frame.encode() if isinstance(frame, str) else frame
        batch = []
        try:
            for line in lines.split(b"\n"):
                said = _frame_decoder.decode(line)
                if said.type == "message":
                    batch.append(_received(connection, said))
                elif said.type == "error":
                    self._last_error = f"{said.code} {said.message}".strip()
                    logger.warning("gateway refused", cmd=said.cmd, code=said.code, id=said.id)
                elif said.cmd == "CLS":
                    announced = msgspec.json.decode(said.data, type=_Announcement)
                    if announced.reconnect_after_ms is not None:
                        self._reconnect_after_s = announced.reconnect_after_ms / 1_000
        except (msgspec.DecodeError, ValueError) as error:
            raise NoBroker(f"{self._url} is no gateway: it does not speak nsq.json.v1") from error
        return batch

    def _check_close(self, connection: ClientConnection) -> None:
        """Raise what cannot be mended by coming back."""
        code = connection.close_code or 1006
        reason = " ".join(filter(None, (str(code), connection.close_reason, self._last_error)))
        if code >= _FIRST_FINAL_CODE or code in _FINAL_CODES:
            raise InvalidRequest("CLOSED", f"{self._url} closed the subscription: {reason}")
        logger.warning("gateway lost", url=self._url, reason=reason)

    async def _reconnect(self) -> None:
        """Come back, however long it takes."""
        while True:
            delay_s = self._backoff.next_delay_s()
            if self._reconnect_after_s is not None:
                delay_s, self._reconnect_after_s = self._reconnect_after_s, None
            await asyncio.sleep(delay_s)
            try:
                self._connection = await self._connect()
            except NoBroker as error:
                logger.warning("no gateway yet", reason=str(error))
            else:
                logger.info("gateway is back", url=self._url)
                return

    # Out

    async def set_window(self, count: int) -> None:
        """Let at most *count* messages be unanswered at a time."""
        if count != self._window:
            self._window = count
            await self._send(self._connection, {"cmd": "RDY", "count": count})

    async def finish(self, messages: Sequence[Received]) -> None:
        """Have *messages* counted as done."""
        await self._answer("FIN", messages)

    async def requeue(self, messages: Sequence[Received]) -> None:
        """Give *messages* back at once."""
        await self._answer("REQ", messages)

    async def _answer(self, verb: str, messages: Sequence[Received]) -> None:
        """Answer on the socket that delivered, if it is open still: no other one knows the ids."""
        ids = [message.id for message in messages if message.handle is self._connection]
        if ids:
            await self._send(self._connection, {"cmd": verb, "ids": ids})

    async def _send(self, connection: ClientConnection | None, command: dict[str, Any]) -> None:
        if connection is None:
            return
        try:
            await connection.send(msgspec.json.encode(command).decode())
        except ConnectionClosed:
            logger.debug("not sent, the socket has ended", cmd=command["cmd"])


def _received(connection: ClientConnection, frame: _Frame) -> Received:
    if frame.body_base64 is not None:
        body = base64.b64decode(frame.body_base64, validate=True)
    else:
        body = (frame.body or "").encode()
    return Received(
        id=frame.id,
        attempts=frame.attempts,
        timestamp_ns=frame.timestamp_ns,
        nsqd=None,
        body=body,
        handle=cast("object", connection),
    )


def _refusal(url: str, error: InvalidStatus) -> GatewayError:
    """Return what the answer to an upgrade means; only 5xx is worth another try."""
    status = error.response.status_code
    try:
        detail = msgspec.json.decode(error.response.body or b"{}", type=_Problem).detail
    except msgspec.DecodeError:
        detail = ""
    text = f"{url} answered {status}: {detail or 'nothing that a gateway says; is this one?'}"
    match status:
        case 401:
            return AuthRequired(text)
        case 403:
            return Forbidden(text)
        case status if status >= 500:  # noqa: PLR2004 - the class of RFC 9110
            return NoBroker(text)
        case _:
            return InvalidRequest("REFUSED", text)
