"""
Identify clients behind trusted proxies, by ``X-Forwarded-For`` and ``X-Forwarded-Proto``.

Since anyone can send these headers, they are read only on connections from proxies that the
operator trusts. ``X-Forwarded-For`` is read from its right end, where each proxy appends the
address it saw; entries left of the first untrusted address may be forged.

``X-Forwarded-Host`` is ignored: the same-origin check must not depend on a header that a proxy may
pass through unchanged.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

_Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_MAX_HOPS = 32
"""Maximum number of entries that are read from the right end of a header."""
_MAX_ADDRESS_BYTES = 128
"""Maximum size of an entry; no address with zone, brackets and port is as long."""
_FOR, _PROTO = b"x-forwarded-for", b"x-forwarded-proto"
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}")


class Caller(NamedTuple):
    """The client that sent a request, perhaps through proxies."""

    address: str
    """The IP address; empty if there is none, as with a Unix domain socket."""
    is_secure: bool
    """True if the client is known to use TLS, with this gateway or with a trusted proxy."""


UNKNOWN_CALLER = Caller("", is_secure=False)


class TrustedProxies:
    """
    The proxies whose forwarding headers are trusted.

    Args:
        networks: Addresses and networks, such as ``10.0.0.0/8``, ``fd00::/8``, ``192.0.2.7``.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(map(ipaddress.ip_network, networks))
        # Cached, since every new connection asks, and clients connect from few addresses again and
        # again.
        self.trusts = lru_cache(maxsize=4_096)(self._trusts)
        """Returns whether an address belongs to a trusted proxy."""

    def caller(self, peer: Caller, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """
        Return the client of a request with *headers* that the trusted proxy *peer* has forwarded.

        The names of *headers* are lower case. Without a valid address in them, return the address
        of the proxy itself.
        """
        # Lists, since a proxy may append a header of its own instead of an item to the last one;
        # several headers mean the same as one with all items (RFC 9110 §5.3).
        values: dict[bytes, list[bytes]] = {_FOR: [], _PROTO: []}
        for name, value in headers:
            if name in values:
                values[name].append(value)
        hops, protocols = _last_items(values[_FOR]), _last_items(values[_PROTO])
        # Any proxy of the chain may have terminated TLS.
        is_secure = peer.is_secure or any(each.strip().lower() == b"https" for each in protocols)
        return Caller(self.first_untrusted_hop(peer.address, hops), is_secure)

    def first_untrusted_hop(self, peer: str, hops: Sequence[bytes]) -> str:
        """
        Return the first address of *hops* that is not a trusted proxy: that of the client.

        *hops* start with the one nearest to this gateway. If all are trusted proxies, return the
        last one, which is farthest; if one before the result is invalid, return *peer*.
        """
        found = peer
        for hop in hops:
            address = _address_in(hop.strip())
            if address is None:
                return peer
            found = address
            if not self.trusts(found):
                break
        return found

    def _trusts(self, host: str) -> bool:
        try:
            address = _plain(host)
        except ValueError:
            return False
        return any(
            address.version == network.version and address in network for network in self._networks
        )


def _last_items(values: Sequence[bytes]) -> list[bytes]:
    """Return the last `_MAX_HOPS` items of the list header *values*, in reverse order."""
    items: list[bytes] = []
    for value in reversed(values):
        left = _MAX_HOPS - len(items)
        if left <= 0:
            break
        # rsplit reads no more than `left` items, and leaves all others in the first part, which the
        # slice skips if there is one.
        items += value.rsplit(b",", left)[: -left - 1 : -1]
    return items


def _address_in(hop: bytes) -> str | None:
    """Return the address in *hop*, without a port; None if it is invalid."""
    if len(hop) > _MAX_ADDRESS_BYTES:
        return None
    text = hop.decode("latin-1")
    found = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    try:
        return str(_plain(found[1] if found else text))
    except ValueError:
        return None


def _plain(host: str) -> _Ip:
    """Parse the IP address *host*, without its zone; return IPv4-mapped IPv6 as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
