"""Parse and check the query, and the subprotocols, with which a client requests GET /sub."""

from __future__ import annotations

import base64
import difflib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import InvalidRequest
from gateway.protocol.http_api import (
    HttpQuery,
    int_or_none,
    parse_query,
    require_topic,
    require_topic_and_channel,
)
from gateway.protocol.wire import Limits, is_ephemeral
from gateway.session.json_frames import SUBPROTOCOL

DEFAULT_MAX_IN_FLIGHT = 10
MIN_MSG_TIMEOUT_MS = 1_000
"""The least that nsqd accepts, and that a lease may last."""
_MAX_SAMPLE_RATE = 99
_MAX_ATTEMPTS = 65_535
"""nsqd counts attempts in 16 bits."""
_RANDOM_NAME_BYTES = 16
_PARAMETERS = (
    "topic",
    "channel",
    "max_in_flight",
    "msg_timeout_ms",
    "ack",
    "requeue_on_close_ms",
    "max_attempts",
    "sample_rate",
)
_PULL_PARAMETERS = ("topic", "channel", "max", "wait_ms", "lease_ms")
DEFAULT_PULL, MAX_PULL = 10, 1_000
MAX_PULL_WAIT_MS = 30_000
_UNITS = {
    "max": "messages",
    "max_in_flight": "messages",
    "max_attempts": "attempts",
    "sample_rate": "%",
}
"""What the numbers count; names of times end in their unit."""
_SHOWN_NAME = 40
"""Characters of an unknown parameter in its error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscribeRequest:
    """The valid parameters of one GET /sub; docs/websocket.md describes them."""

    topic: str
    channel: str | None
    """None if the client named none."""
    max_in_flight: int
    msg_timeout_ms: int
    """0 is nsqd's default."""
    is_auto_ack: bool
    """ack=auto: the gateway finishes messages, not the client."""
    requeue_on_close_ms: int
    max_attempts: int
    """A message with more attempts is requeued with a delay, not delivered; 0 is no limit."""
    sample_rate: int
    """Percentage of the messages that nsqd sends; 0 is all."""

    @property
    def is_viewer(self) -> bool:
        """True if the client only watches: it named no channel, and acknowledges nothing."""
        return self.channel is None and self.is_auto_ack


@dataclass(frozen=True, kw_only=True, slots=True)
class PullParams:
    """The valid parameters of one POST /pull; docs/pull.md describes them."""

    topic: str
    channel: str
    max_messages: int
    wait_ms: int
    """Time to wait for messages."""
    lease_ms: int
    """0 is nsqd's message timeout."""


def parse_pull_request(raw_query: bytes, *, limits: Limits) -> PullParams:
    """
    Parse the query of POST /pull.

    Raises:
        InvalidRequest: As `parse_subscribe_request`.
    """
    query = parse_query(raw_query)
    _refuse_unknown(query, _PULL_PARAMETERS)
    topic, channel = require_topic_and_channel(query)
    lease_ms = 0
    if query.get("lease_ms") is not None:
        bounds = (MIN_MSG_TIMEOUT_MS, limits.max_msg_timeout_ms)
        lease_ms = _number(query, "lease_ms", default=0, bounds=bounds)
    return PullParams(
        topic=topic,
        channel=channel,
        max_messages=_number(query, "max", default=DEFAULT_PULL, bounds=(1, MAX_PULL)),
        wait_ms=_number(query, "wait_ms", default=0, bounds=(0, MAX_PULL_WAIT_MS)),
        lease_ms=lease_ms,
    )


def parse_subscribe_request(
    raw_query: bytes, *, max_in_flight_limit: int, limits: Limits
) -> SubscribeRequest:
    """
    Parse the query of GET /sub; docs/websocket.md describes it.

    Raises:
        InvalidRequest: A parameter is missing, unknown or out of range; the text names the value
            and what is allowed.
    """
    query = parse_query(raw_query)
    _refuse_unknown(query, _PARAMETERS)
    topic, channel = _names(query)
    sample_rate = _number(query, "sample_rate", default=0, bounds=(0, _MAX_SAMPLE_RATE))
    if sample_rate and channel is not None and not is_ephemeral(channel):
        text = (
            "sample_rate needs a channel of this socket's own (none, or one with #ephemeral): "
            "nsqd drops the other messages for all consumers of the channel"
        )
        raise InvalidRequest("INVALID_ARG_SAMPLE_RATE", text)
    msg_timeout_ms = 0
    if query.get("msg_timeout_ms") is not None:
        bounds = (MIN_MSG_TIMEOUT_MS, limits.max_msg_timeout_ms)
        msg_timeout_ms = _number(query, "msg_timeout_ms", default=0, bounds=bounds)
    return SubscribeRequest(
        topic=topic,
        channel=channel,
        max_in_flight=_number(
            query,
            "max_in_flight",
            default=min(DEFAULT_MAX_IN_FLIGHT, max_in_flight_limit),
            bounds=(1, max_in_flight_limit),
        ),
        msg_timeout_ms=msg_timeout_ms,
        is_auto_ack=_ack(query, default=b"auto" if channel is None else b"client") == b"auto",
        requeue_on_close_ms=_number(
            query, "requeue_on_close_ms", default=0, bounds=(0, limits.max_req_timeout_ms)
        ),
        max_attempts=_number(query, "max_attempts", default=0, bounds=(0, _MAX_ATTEMPTS)),
        sample_rate=sample_rate,
    )


def _refuse_unknown(query: HttpQuery, parameters: Sequence[str]) -> None:
    """Raise InvalidRequest if a parameter is unknown: a misspelt one would have no effect."""
    for name in query:
        if name not in parameters:
            shown = name[:_SHOWN_NAME]
            near = difflib.get_close_matches(shown.lower(), parameters, n=1, cutoff=0.5)
            hint = f" did you mean {near[0]}?" if near else ""
            known = ", ".join(parameters)
            text = f"unknown parameter {shown!r};{hint} allowed: {known}"
            raise InvalidRequest("INVALID_ARG", text)


def _names(query: HttpQuery) -> tuple[str, str | None]:
    if query.get("channel") is not None:
        return require_topic_and_channel(query)
    return require_topic(query), None


def new_channel_name() -> str:
    """Return a unique channel name: ``gw.``, 26 random base32 digits, ``#ephemeral``."""
    # Without base32's padding, because nsqd allows no "=" in a name.
    digits = base64.b32encode(secrets.token_bytes(_RANDOM_NAME_BYTES)).decode().rstrip("=")
    return f"gw.{digits.lower()}#ephemeral"


def _number(query: HttpQuery, name: str, *, default: int, bounds: tuple[int, int]) -> int:
    text = query.get(name)
    if text is None:
        return default
    value = int_or_none(text)
    if value is None or not bounds[0] <= value <= bounds[1]:
        shown = text[:40].decode("utf-8", "replace")
        unit = "ms" if name.endswith("_ms") else _UNITS[name]
        allowed = f"{bounds[0]} to {bounds[1]} {unit}"
        raise InvalidRequest(
            f"INVALID_ARG_{name.upper()}", f"{name} is {shown!r}; allowed: {allowed}"
        )
    return value


def _ack(query: HttpQuery, *, default: bytes) -> bytes:
    value = query.get("ack")
    if value is None:
        return default
    if value not in (b"client", b"auto"):
        shown = value[:40].decode("utf-8", "replace")
        text = f"ack is {shown!r}; allowed: client (the client finishes) or auto (the gateway does)"
        raise InvalidRequest("INVALID_ARG_ACK", text)
    return value


def choose_subprotocol(offered: Sequence[str]) -> str | None:
    """
    Return the subprotocol for the 101 response; None if the client offered none.

    Raises:
        InvalidRequest: None of the offered subprotocols is supported (INVALID_SUBPROTOCOL).
    """
    if not offered:
        return None
    if SUBPROTOCOL not in offered:
        shown = ", ".join(offered)[:80]
        text = f"none of the subprotocols {shown!r} is supported; offer {SUBPROTOCOL}, or none"
        raise InvalidRequest("INVALID_SUBPROTOCOL", text)
    return SUBPROTOCOL
