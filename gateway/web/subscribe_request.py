"""What the address of a subscription asks for: query and subprotocols, checked."""

from __future__ import annotations

import base64
import difflib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gateway.errors import InvalidRequest
from gateway.protocol.http_api import (
    Query,
    parse_int64,
    parse_query,
    require_topic,
    require_topic_and_channel,
)
from gateway.protocol.wire import Limits, is_ephemeral
from gateway.session.messages import SUBPROTOCOL

DEFAULT_MAX_IN_FLIGHT = 10
_MIN_MSG_TIMEOUT_MS = 1_000
_MAX_SAMPLE_RATE = 99
_MAX_ATTEMPTS = 65_535
"""NSQ counts no further."""
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
_SHOWN_NAME = 40
"""Characters of an unknown parameter that come back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscribeRequest:
    """A subscription that can be made."""

    topic: str
    channel: str | None
    """None: the client named none."""
    max_in_flight: int
    msg_timeout_ms: int
    """0 is nsqd's default."""
    finishes_by_itself: bool
    """ack=auto."""
    requeue_on_close_ms: int
    max_attempts: int
    """What was tried more often is put off; 0 is never."""
    sample_rate: int

    @property
    def is_viewer(self) -> bool:
        """Whether it only looks, so that others may look with it."""
        return self.channel is None and self.finishes_by_itself


def parse_subscribe_request(
    raw_query: bytes, *, max_in_flight_limit: int, limits: Limits
) -> SubscribeRequest:
    """
    Read what a client asks for (docs/websocket.md, the address).

    Raises:
        InvalidRequest: A value is missing, wrong or out of range; the text names all three.
    """
    query = parse_query(raw_query)
    _refuse_unknown(raw_query)
    topic, channel = _names(query)
    sample_rate = _number(query, "sample_rate", default=0, bounds=(0, _MAX_SAMPLE_RATE))
    if sample_rate and channel is not None and not is_ephemeral(channel):
        text = (
            "sample_rate needs a channel of this socket's own (none, or one with #ephemeral): "
            "what nsqd skips is gone for everybody on the channel"
        )
        raise InvalidRequest("INVALID_ARG_SAMPLE_RATE", text)
    msg_timeout_ms = 0
    if query.get("msg_timeout_ms") is not None:
        bounds = (_MIN_MSG_TIMEOUT_MS, limits.max_msg_timeout_ms)
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
        finishes_by_itself=_ack(query, default=b"auto" if channel is None else b"client")
        == b"auto",
        requeue_on_close_ms=_number(
            query, "requeue_on_close_ms", default=0, bounds=(0, limits.max_req_timeout_ms)
        ),
        max_attempts=_number(query, "max_attempts", default=0, bounds=(0, _MAX_ATTEMPTS)),
        sample_rate=sample_rate,
    )


def _refuse_unknown(raw_query: bytes) -> None:
    """Raise InvalidRequest for a name that is no parameter: a slip would change what is meant."""
    for pair in raw_query.split(b"&"):
        name = unquote_to_bytes(pair.partition(b"=")[0].replace(b"+", b" ")).decode("latin-1")
        if pair and name not in _PARAMETERS:
            shown = name[:_SHOWN_NAME]
            near = difflib.get_close_matches(shown.lower(), _PARAMETERS, n=1, cutoff=0.5)
            hint = f" did you mean {near[0]}?" if near else ""
            known = ", ".join(_PARAMETERS)
            text = f"there is no parameter {shown!r};{hint} known are {known}"
            raise InvalidRequest("INVALID_ARG", text)


def _names(query: Query) -> tuple[str, str | None]:
    if query.get("channel") is not None:
        return require_topic_and_channel(query)
    return require_topic(query), None


def new_channel_name() -> str:
    """Return a name that nobody else has: ``gw.``, 26 random base32 digits, ``#ephemeral``."""
    digits = base64.b32encode(secrets.token_bytes(_RANDOM_NAME_BYTES)).decode().rstrip("=")
    return f"gw.{digits.lower()}#ephemeral"


def _number(query: Query, name: str, *, default: int, bounds: tuple[int, int]) -> int:
    text = query.get(name)
    if text is None:
        return default
    value = parse_int64(text)
    if value is None or not bounds[0] <= value <= bounds[1]:
        shown = text[:40].decode("utf-8", "replace")
        unit = " ms" if name.endswith("_ms") else ""
        allowed = f"{bounds[0]} to {bounds[1]}{unit}"
        raise InvalidRequest(
            f"INVALID_ARG_{name.upper()}", f"{name} is {shown!r}; allowed: {allowed}"
        )
    return value


def _ack(query: Query, *, default: bytes) -> bytes:
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
    Return what the answer to the upgrade names; None when the client offered nothing.

    Raises:
        InvalidRequest: Nothing of what it offered is spoken here (INVALID_SUBPROTOCOL).
    """
    if not offered:
        return None
    if SUBPROTOCOL not in offered:
        shown = ", ".join(offered)[:80]
        text = f"no subprotocol of {shown!r} is spoken here; offer {SUBPROTOCOL}, or none"
        raise InvalidRequest("INVALID_SUBPROTOCOL", text)
    return SUBPROTOCOL
