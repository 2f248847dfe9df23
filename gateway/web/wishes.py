"""What sockets ask for in their address: read once, and shared by all that ask for the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.client.subscription import SubscriptionOptions
from gateway.session.options import SessionOptions
from gateway.web.subscribe_request import SubscribeRequest

_MAX_KEPT = 1_024
_MAX_QUERY_BYTES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """A request that can be granted, for both sides of a socket."""

    request: SubscribeRequest
    session: SessionOptions
    session_with_secret: SessionOptions
    """The same for a socket that brought its secret, and gives no AUTH."""
    subscription: SubscriptionOptions
    """Without a secret; where the client has named no channel, so does this."""


class Wishes:
    """Remembers what was read; *read* raises where a query cannot be granted."""

    def __init__(self, read: Callable[[bytes], Wish]) -> None:
        self._read = read
        self._kept: dict[bytes, Wish] = {}

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._kept)

    def find(self, raw_query: bytes) -> Wish:
        """Return what *raw_query* asks for; raises InvalidRequest where it is wrong."""
        wish = self._kept.get(raw_query)
        if wish is None:
            wish = self._read(raw_query)
            if len(raw_query) <= _MAX_QUERY_BYTES:
                if len(self._kept) >= _MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[raw_query] = wish
        return wish
