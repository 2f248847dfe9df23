"""How many sockets may be open, in all and from one address."""

from __future__ import annotations

from gateway.errors import Full
from gateway.web.quota import caller_at


class Seats:
    """
    Sockets from their request to their end, those that are being opened included.

    Args:
        limit: How many there may be.
        limit_per_address: How many from one address, for IPv6 from one /64; 0 is any number.
    """

    def __init__(self, limit: int, *, limit_per_address: int = 0) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._taken = 0
        self._taken_at: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many are taken."""
        return self._taken

    def take(self, host: str) -> None:
        """Count a socket from the address *host*; raises Full where it is one too many."""
        if self._taken >= self._limit:
            raise Full(f"{self._taken} sockets are open, the limit is {self._limit}")
        address = caller_at(host)
        taken = self._taken_at.get(address, 0)
        if 0 < self._limit_per_address <= taken:
            raise Full(
                f"{taken} sockets are open from {address}, the limit for one address is "
                f"{self._limit_per_address}; close one of them"
            )
        self._taken += 1
        self._taken_at[address] = taken + 1

    def give_back(self, host: str) -> None:
        """Count one socket from *host* no more."""
        self._taken -= 1
        address = caller_at(host)
        left = self._taken_at[address] - 1
        if left:
            self._taken_at[address] = left
        else:
            del self._taken_at[address]
