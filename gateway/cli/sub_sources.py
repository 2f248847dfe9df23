"""
Message sources of `nsq-gateway sub`: nsqd over TCP, or a gateway over its WebSocket.

After a close, the WebSocket source connects again, unless the close code is final: then another
attempt would fail too. The gateway requeues the unfinished messages of a closed WebSocket.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, cast
from urllib.parse import urlencode

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from gateway.aio import spawn
from gateway.cli.stdio import untrusted_certificate_error
from gateway.client.backoff import Backoff
from gateway.client.consumer import Consumer, ConsumerOptions
from gateway.client.deliveries import Delivery, DeliveryOptions
from gateway.client.from_settings import NsqdAccess
from gateway.client.rdy import RdyOptions
from gateway.credentials import bearer_headers
from gateway.errors import AuthRequired, Forbidden, GatewayError, InvalidRequest, NoBroker
from gateway.settings.commands import SubSettings
from gateway.telemetry import get_logger


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to write; *handle* is what its source needs to finish or requeue it."""

    id: str
    """The message id from nsqd, or the delivery id from a gateway."""
    attempts: int
    timestamp_ns: str
    """Time of the publish, in ns since 1970, as a decimal string."""
    nsqd: str | None
    """host:port of the nsqd that delivered it; None for messages from a gateway."""
    body: bytes
    handle: object


class MessageSource(Protocol):
    """
    A subscription, used with ``async with``.

    Entering the context subscribes; leaving it requeues unfinished messages.
    """

    def batches(self) -> AsyncIterator[Sequence[ReceivedMessage]]:
        """
        Yield messages in lists, for ever: the source reconnects by itself.

        Raises:
            GatewayError: The subscription was refused, and another attempt would be refused too.
        """

    async def set_window(self, count: int) -> None:
        """Limit the messages in flight to *count*."""

    async def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Finish *messages* (FIN)."""

    async def requeue(self, messages: Sequence[ReceivedMessage]) -> None:
        """Requeue *messages* without a delay (REQ)."""


class NsqdSource:
    """A source that connects to nsqd with a `Consumer`; see `MessageSource`."""

    def __init__(
        self, names: tuple[str, str], settings: SubSettings, access: NsqdAccess, *, window: int
    ) -> None:
        offer = msgspec.structs.replace(
            access.connection.offer,
            msg_timeout=settings.msg_timeout_ms,
            sample_rate=settings.sample_rate,
            output_buffer_size=settings.output_buffer_size,
            output_buffer_timeout=settings.output_buffer_timeout_ms,
        )
        options = ConsumerOptions(
            max_in_flight=window,
            # 0: no limit. Messages never fail here, they are only requeued at the end.
            delivery=DeliveryOptions(max_attempts=0),
            connection=replace(access.connection, offer=offer, secret=access.secret),
            rdy=RdyOptions(
                low_rdy_idle_timeout_s=settings.low_rdy_idle_timeout_s,
                low_rdy_timeout_s=settings.low_rdy_timeout_s,
                rdy_redistribute_interval_s=settings.rdy_redistribute_interval_s,
            ),
        )
        self._window = window
        self._consumer = Consumer(*names, settings.nsqd_tcp_address, options, lookup=access.lookup)

    async def __aenter__(self) -> Self:
        """Subscribe; raises like `Consumer.start`."""
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Requeue messages in flight, and disconnect."""
        await self._consumer.stop()

    async def batches(self) -> AsyncIterator[Sequence[ReceivedMessage]]:
        """Yield messages; see `MessageSource`."""
        async for deliveries in self._consumer.batches():
            yield [_from_delivery(delivery) for delivery in deliveries]

    async def set_window(self, count: int) -> None:
        """Limit the messages in flight to *count*."""
        if count != self._window:
            self._window = count
            self._consumer.set_max_in_flight(count)

    async def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Finish *messages* (FIN)."""
        self._consumer.finish([_delivery(message) for message in messages])

    async def requeue(self, messages: Sequence[ReceivedMessage]) -> None:
        """Requeue *messages* without a delay; no backoff of the consumer, since none failed."""
        for message in messages:
            _delivery(message).requeue(0, backoff=False)


def _from_delivery(delivery: Delivery) -> ReceivedMessage:
    return ReceivedMessage(
        id=delivery.id.decode("latin-1"),
        attempts=delivery.attempts,
        timestamp_ns=str(delivery.timestamp_ns),
        nsqd=delivery.nsqd,
        body=delivery.body,
        handle=delivery,
    )


def _delivery(message: ReceivedMessage) -> Delivery:
    return cast("Delivery", message.handle)


logger = get_logger()

_OPEN_TIMEOUT_S = 20.0
_CLOSE_TIMEOUT_S = 5.0
_FIRST_FINAL_CODE = 4_500
_FINAL_CODES = frozenset({1002, 1003, 1007, 1009})
"""Close codes below 4500 after which a reconnect would fail again."""


class _Frame(msgspec.Struct):
    """The members used of a JSON object from a gateway."""

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


class _CloseAnnouncement(msgspec.Struct):
    """The members used of ``data`` in a CLS frame, which announces that the socket will close."""

    reconnect_after_ms: int | None = None


class _UpgradeErrorBody(msgspec.Struct):
    """The members used of the body of a refused upgrade (RFC 9457)."""

    detail: str = ""


_frame_decoder = msgspec.json.Decoder(_Frame)


class GatewaySource:
    """A source that connects to a gateway with ``nsq.json.v1``; see `MessageSource`."""

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
        # At debug level the library logs the request headers, with the secret.
        self._websocket_logger = logging.getLogger("gateway.websockets")
        self._websocket_logger.setLevel(logging.WARNING)

    async def __aenter__(self) -> Self:
        """
        Subscribe.

        Raises:
            GatewayError: The gateway does not respond, or refuses the subscription.
        """
        self._connection = await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the socket; the gateway then requeues messages in flight."""
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
                # The settings replace ws:// by http://: the URL always begins with http or https.
                f"{self._url.replace('http', 'ws', 1)}/sub?{urlencode(query)}",
                additional_headers=self._headers,
                subprotocols=[Subprotocol("nsq.json.v1")],
                compression=None,
                proxy=None,
                logger=self._websocket_logger,
                open_timeout=_OPEN_TIMEOUT_S,
                close_timeout=_CLOSE_TIMEOUT_S,
                # A message is one frame, and only nsqd limits its size.
                max_size=None,
                # max_in_flight bounds the queue already. With a bound here, a full queue would
                # stop the library from reading, and a close handshake would time out.
                max_queue=None,
            )
        except InvalidStatus as error:
            raise _upgrade_error(self._url, error) from error
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            if (tls_error := untrusted_certificate_error(self._url, error)) is not None:
                raise tls_error from error
            reason = str(error) or type(error).__name__
            raise NoBroker(f"cannot connect to the gateway at {self._url}: {reason}") from error

    # Incoming frames

    async def batches(self) -> AsyncIterator[Sequence[ReceivedMessage]]:
        """Yield messages; see `MessageSource`."""
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
            # A gateway that accepts a WebSocket and closes it at once must not reset the delay.
            self._backoff.reset_after(asyncio.get_running_loop().time() - opened_at)
            await self._reconnect()

    def _read(self, connection: ClientConnection, frame: str | bytes) -> list[ReceivedMessage]:
        """
        Return the messages in *frame*.

        Log error objects. Remember the delay in a CLS object, which says when to reconnect.
        """
        lines = frame.encode() if isinstance(frame, str) else frame
        batch = []
        try:
            # The gateway may put several JSON objects in a frame, one on each line.
            for line in lines.split(b"\n"):
                received = _frame_decoder.decode(line)
                if received.type == "message":
                    batch.append(_from_frame(connection, received))
                elif received.type == "error":
                    self._last_error = f"{received.code} {received.message}".strip()
                    logger.warning(
                        "command refused by gateway",
                        cmd=received.cmd,
                        code=received.code,
                        id=received.id,
                    )
                elif received.cmd == "CLS":
                    announced = msgspec.json.decode(received.data, type=_CloseAnnouncement)
                    if announced.reconnect_after_ms is not None:
                        self._reconnect_after_s = announced.reconnect_after_ms / 1_000
        except (msgspec.DecodeError, ValueError) as error:
            raise NoBroker(
                f"{self._url} is not a gateway: its frames are not nsq.json.v1"
            ) from error
        return batch

    def _check_close(self, connection: ClientConnection) -> None:
        """Log why *connection* was closed; raise InvalidRequest if the close code is final."""
        # 1006: the connection ended without a close frame (RFC 6455 §7.4.1).
        code = connection.close_code or 1006
        reason = " ".join(filter(None, (str(code), connection.close_reason, self._last_error)))
        if code >= _FIRST_FINAL_CODE or code in _FINAL_CODES:
            raise InvalidRequest("CLOSED", f"{self._url} closed the subscription: {reason}")
        logger.warning("gateway connection lost", url=self._url, reason=reason)

    async def _reconnect(self) -> None:
        """
        Connect again; repeat while the gateway is unreachable or answers 5xx (NoBroker).

        Raises any other GatewayError, such as a refusal of the subscription.
        """
        while True:
            delay_s = self._backoff.next_delay_s()
            # Only once: after a failed attempt, the backoff applies again.
            if self._reconnect_after_s is not None:
                delay_s, self._reconnect_after_s = self._reconnect_after_s, None
            await asyncio.sleep(delay_s)
            try:
                self._connection = await self._connect()
            except NoBroker as error:
                logger.warning("gateway reconnect failed", reason=str(error))
            else:
                logger.info("gateway reconnected", url=self._url)
                return

    # Outgoing commands

    async def set_window(self, count: int) -> None:
        """Limit the messages in flight to *count*."""
        if count != self._window:
            self._window = count
            await self._send(self._connection, {"cmd": "RDY", "count": count})

    async def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Finish *messages* (FIN)."""
        await self._respond("FIN", messages)

    async def requeue(self, messages: Sequence[ReceivedMessage]) -> None:
        """Requeue *messages* without a delay (REQ)."""
        await self._respond("REQ", messages)

    async def _respond(self, verb: str, messages: Sequence[ReceivedMessage]) -> None:
        """Send *verb*, FIN or REQ, for those of *messages* that the current socket delivered."""
        # The gateway knows ids only on the socket that delivered them, and requeues the messages of
        # a closed socket.
        ids = [message.id for message in messages if message.handle is self._connection]
        if ids:
            await self._send(self._connection, {"cmd": verb, "ids": ids})

    async def _send(self, connection: ClientConnection | None, command: dict[str, Any]) -> None:
        if connection is None:
            return
        try:
            await connection.send(msgspec.json.encode(command).decode())
        except ConnectionClosed:
            logger.debug("command not sent: socket closed", cmd=command["cmd"])


_PULL_WAIT_MS = 20_000
_PULL_TIMEOUT_S = 40.0
_MAX_PULL = 1_000


class _Pulled(msgspec.Struct):
    """The members used of a message in the response to POST /pull."""

    lease: str
    id: str
    timestamp_ns: str
    attempts: int
    body: str | None = None
    body_base64: bytes | None = None


class _PullResponse(msgspec.Struct):
    messages: list[_Pulled]


class _RefusedLease(msgspec.Struct):
    code: str
    message: str


class _AckResponse(msgspec.Struct):
    refused: list[_RefusedLease]


class PullSource:
    """A source that pulls from a gateway by plain HTTP requests; see `MessageSource`."""

    def __init__(
        self, url: str, names: tuple[str, str], access: NsqdAccess, *, window: int
    ) -> None:
        self._url = url
        self._names = names
        self._window = window
        self._backoff = Backoff(random.random)
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=bearer_headers(access.secret),
            timeout=_PULL_TIMEOUT_S,
            trust_env=False,
        )
        self._acks: set[asyncio.Task[None]] = set()
        """Acks without a response yet."""

    async def __aenter__(self) -> Self:
        """Return this object: the first pull subscribes."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for the responses to acks, and disconnect."""
        if self._acks:
            await asyncio.wait(self._acks, timeout=_CLOSE_TIMEOUT_S)
        await self._client.aclose()

    async def batches(self) -> AsyncIterator[Sequence[ReceivedMessage]]:
        """Yield messages; see `MessageSource`."""
        while self._window:
            topic, channel = self._names
            query = {
                "topic": topic,
                "channel": channel,
                "max": min(self._window, _MAX_PULL),
                "wait_ms": _PULL_WAIT_MS,
            }
            began_at = asyncio.get_running_loop().time()
            try:
                body = await self._post("/pull", params=query)
                pulled = msgspec.json.decode(body, type=_PullResponse).messages
            except msgspec.DecodeError as error:
                raise NoBroker(f"{self._url} is not a gateway; check --url") from error
            except NoBroker as error:
                logger.warning("gateway pull failed", reason=str(error))
                await asyncio.sleep(self._backoff.next_delay_s())
                continue
            self._backoff.reset_after(asyncio.get_running_loop().time() - began_at)
            if pulled:
                yield [_from_pulled(each) for each in pulled]

    async def set_window(self, count: int) -> None:
        """Pull at most *count* messages at a time from now on; 0: none any more."""
        self._window = count

    async def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Finish *messages* (FIN)."""
        await self._ack({"fin": [each.handle for each in messages]})

    async def requeue(self, messages: Sequence[ReceivedMessage]) -> None:
        """Requeue *messages* without a delay (REQ)."""
        await self._ack({"req": [{"lease": each.handle} for each in messages]})

    async def _ack(self, ack: dict[str, list[Any]]) -> None:
        """Answer leases; that goes on if the caller is cancelled, as by a signal."""
        task = spawn("answer leases", self._send_ack(ack))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)
        await asyncio.shield(task)

    async def _send_ack(self, ack: dict[str, list[Any]]) -> None:
        """Answer leases; what fails is delivered again, so it is only logged."""
        try:
            body = await self._post("/ack", json=ack)
            refused = msgspec.json.decode(body, type=_AckResponse).refused
        except (GatewayError, msgspec.DecodeError) as error:
            logger.warning("gateway ack failed", reason=str(error))
            return
        for each in refused:
            logger.warning("lease refused by gateway", code=each.code, reason=each.message)

    async def _post(self, path: str, **request: Any) -> bytes:  # noqa: ANN401 - httpx's
        """Return the body of a response 200; raises NoBroker if another attempt may succeed."""
        try:
            answer = await self._client.post(path, **request)
        except httpx.HTTPError as error:
            if (tls_error := untrusted_certificate_error(self._url, error)) is not None:
                raise tls_error from error
            reason = str(error) or type(error).__name__
            text = f"the gateway at {self._url} does not respond: {reason}"
            raise NoBroker(text) from error
        if answer.status_code != httpx.codes.OK:
            raise _refusal(self._url, answer.status_code, answer.content)
        return answer.content


def _from_pulled(pulled: _Pulled) -> ReceivedMessage:
    body = pulled.body_base64
    return ReceivedMessage(
        id=pulled.id,
        attempts=pulled.attempts,
        timestamp_ns=pulled.timestamp_ns,
        nsqd=None,
        body=(pulled.body or "").encode() if body is None else body,
        handle=pulled.lease,
    )


def _from_frame(connection: ClientConnection, frame: _Frame) -> ReceivedMessage:
    if frame.body_base64 is not None:
        body = base64.b64decode(frame.body_base64, validate=True)
    else:
        body = (frame.body or "").encode()
    return ReceivedMessage(
        id=frame.id,
        attempts=frame.attempts,
        timestamp_ns=frame.timestamp_ns,
        nsqd=None,
        body=body,
        handle=cast("object", connection),
    )


def _upgrade_error(url: str, error: InvalidStatus) -> GatewayError:
    """Return the exception for a refused upgrade: NoBroker for 5xx, the only one to retry."""
    return _refusal(url, error.response.status_code, bytes(error.response.body or b"{}"))


def _refusal(url: str, status: int, body: bytes) -> GatewayError:
    """Return the exception for a response that is an error: NoBroker for 5xx."""
    try:
        detail = msgspec.json.decode(body, type=_UpgradeErrorBody).detail
    except msgspec.DecodeError:
        detail = ""
    text = f"{url} answered {status}: {detail or 'not a response of a gateway; check --url'}"
    match status:
        case 401:
            return AuthRequired(text)
        case 403:
            return Forbidden(text)
        case status if status >= 500:  # noqa: PLR2004 - the class of RFC 9110
            return NoBroker(text)
        case _:
            return InvalidRequest("REFUSED", text)
