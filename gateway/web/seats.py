"""How many sockets may be open: in all, from one address, with one secret."""

from __future__ import annotations

from collections.abc import Hashable

from gateway.errors import Full
from gateway.secret import Secret
from gateway.web.quota import caller_at


class Seats:
    """
    Sockets from their request to their end, those that are being opened included.

    How many are taken is told to nobody: it is the operator's business, and /metrics has it.

    Args:
        limit: How many there may be.
        limit_per_address: How many from one address, for IPv6 from one /64; 0 is any number.
        limit_per_secret: How many with one secret; 0 is any number.
    """

    def __init__(
        self, limit: int, *, limit_per_address: int = 0, limit_per_secret: int = 0
    ) -> None:
        self._limit = limit
        self._taken = 0
        self._addresses = _Shares(limit_per_address)
        self._secrets = _Shares(limit_per_secret)

    def __len__(self) -> int:
        """Return how many are taken."""
        return self._taken

    def check(self, host: str, secret: Secret | None = None) -> None:
        """See that there is room for a socket from *host* with *secret*; raises Full."""
        if self._taken >= self._limit:
            raise Full(f"all {self._limit} sockets of this gateway are taken; try again later")
        address = caller_at(host)
        if self._addresses.is_taken(address):
            raise Full(
                f"{address} has its {self._addresses.limit} sockets open, which is the limit for "
                "one address; close one of them",
                "address_full",
            )
        if secret is not None:
            self._check_secret(secret)

    def take(self, host: str, secret: Secret | None = None) -> None:
        """Count a socket from *host* with *secret*; raises Full where it is one too many."""
        self.check(host, secret)
        self._taken += 1
        self._addresses.take(caller_at(host))
        if secret is not None:
            self._secrets.take(secret)

    def take_secret(self, secret: Secret) -> None:
        """Count a socket that has been counted for *secret* too; raises Full as `take` does."""
        self._check_secret(secret)
        self._secrets.take(secret)

    def give_back(self, host: str, secret: Secret | None = None) -> None:
        """Count one socket from *host*, with *secret*, no more."""
        self._taken -= 1
        self._addresses.give_back(caller_at(host))
        if secret is not None:
            self._secrets.give_back(secret)

    def _check_secret(self, secret: Secret) -> None:
        if self._secrets.is_taken(secret):
            raise Full(
                f"this secret has its {self._secrets.limit} sockets open, which is the limit for "
                "one secret; close one of them",
                "secret_full",
            )


class _Shares:
    """How many each caller has, of *limit* that one may have; 0 is any number."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: dict[Hashable, int] = {}

    def is_taken(self, caller: Hashable) -> bool:
        return 0 < self.limit <= self._taken.get(caller, 0)

    def take(self, caller: Hashable) -> None:
        self._taken[caller] = self._taken.get(caller, 0) + 1

    def give_back(self, caller: Hashable) -> None:
        left = self._taken[caller] - 1
        if left:
            self._taken[caller] = left
        else:
            del self._taken[caller]
