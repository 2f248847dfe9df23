"""The response to /channel/peek of the embedded broker and of the gateway; nsqd has none."""

from __future__ import annotations

import base64

import msgspec


class PeekedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that is shown, and that the channel still has."""

    node: str = ""
    """HTTP address of its nsqd; empty in the broker's own response."""
    id: str
    timestamp_ns: str
    """Text, because numbers in JavaScript are exact only up to 2^53."""
    attempts: int
    """Deliveries so far, with that of the peek if the message was taken."""
    state: str
    """queued, in_flight or deferred."""
    body: str | None = None
    """The body if it is UTF-8; otherwise `body_base64` has it."""
    body_base64: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if `body_base64` is none; msgspec adds where it was."""
        if self.body_base64 is not None:
            base64.b64decode(self.body_base64, validate=True)

    @property
    def body_bytes(self) -> bytes:
        """The body as it was published."""
        if self.body_base64 is not None:
            return base64.b64decode(self.body_base64)
        return (self.body or "").encode()


class PeekResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a channel."""

    is_free: bool | None = None
    """False if the messages were taken and given back; None in the broker's own response."""
    more: bool
    """True if the channel has messages that the limits left out."""
    messages: list[PeekedMessage]


def peeked_message(
    *, id_: bytes, timestamp_ns: int, attempts: int, state: str, body: bytes
) -> PeekedMessage:
    """Return the message with its body as text, or else in base64."""
    text: str | None = None
    encoded: str | None = None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        encoded = base64.b64encode(body).decode()
    return PeekedMessage(
        id=id_.decode("latin-1"),
        timestamp_ns=str(timestamp_ns),
        attempts=attempts,
        state=state,
        body=text,
        body_base64=encoded,
    )
