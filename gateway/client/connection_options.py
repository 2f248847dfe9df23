"""What a connection to a broker is asked to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import ReferenceType, WeakKeyDictionary, ref

from gateway.client.tls import TlsOptions
from gateway.errors import SettingsError
from gateway.protocol.identify import Offer
from gateway.secret import Secret

DEFAULT_HEARTBEAT_MS = 30_000
_NEGOTIATING = Offer(feature_negotiation=True)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True)
class ConnectionOptions:
    """How to connect, and what to ask for in IDENTIFY."""

    offer: Offer = _NEGOTIATING
    output_buffer_wish_bytes: int = 0
    """
    What the broker may gather of messages before it writes them, where it allows as much (nsqd:
    --max-output-buffer-size); 0: what `offer` says, which is not a wish.
    """
    connect_timeout_ms: int = 2_000
    """Time for each step of the opening: TCP, IDENTIFY, TLS and its OK, compression, AUTH, SUB."""
    close_timeout_ms: int = 2_000
    """Time for the answer to CLS."""
    tls: TlsOptions | None = None
    """What is asked of TLS, which then must be had; None: nothing but clear text is spoken."""
    secret: Secret | None = None
    """For AUTH, sent to a broker that asks for it and to no other."""

    def __post_init__(self) -> None:
        """Raise SettingsError where two kinds of compression are asked for."""
        if self.offer.snappy and self.offer.deflate:
            raise SettingsError("deflate", value=True, allowed="one of snappy and deflate")

    @property
    def heartbeat_interval_s(self) -> float:
        """The interval that the broker keeps to after this offer; infinite where it is off."""
        interval_ms = self.offer.heartbeat_interval or DEFAULT_HEARTBEAT_MS
        return interval_ms / 1000 if interval_ms > 0 else math.inf


_shared: WeakKeyDictionary[ConnectionOptions, ReferenceType[ConnectionOptions]]
_shared = WeakKeyDictionary()


def share(options: ConnectionOptions) -> ConnectionOptions:
    """
    Return options that equal *options*, the same object for all who have those.

    Thousands of subscriptions ask for the same. Options with a secret are seldom alike, and are
    not kept where others look.
    """
    if options.secret is not None:
        return options
    kept = _shared.get(options)
    shared = None if kept is None else kept()
    if shared is None:
        _shared[options] = ref(options)
        return options
    return shared
