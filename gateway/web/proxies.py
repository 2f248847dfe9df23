"""
Who calls from behind a proxy: what ``X-Forwarded-For`` and ``X-Forwarded-Proto`` say, if believed.

Anybody can send these headers. They are read only on a connection that comes from a proxy that the
operator named, and ``X-Forwarded-For`` from its right end, where that proxy wrote the address that
it saw; what stands left of the first stranger is that stranger's own tale.

``X-Forwarded-Host`` is not read: ``Host`` alone says where a page believes to be, and whether it
is our own page must not hang on a second header that a proxy may pass on unseen.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

_Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_MOST_HOPS = 32
"""What is walked past at most; no chain of proxies is so long."""
_FOR, _PROTO = b"x-forwarded-for", b"x-forwarded-proto"
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}")


class Caller(NamedTuple):
    """Who calls, as far as it is known."""

    address: str
    """The host; empty where there is none, as at a socket in the file system."""
    is_secure: bool
    """Whether it is known that the caller speaks TLS, with us or with a proxy of ours."""


NOBODY = Caller("", is_secure=False)


class TrustedProxies:
    """
    The proxies whose headers are believed.

    Args:
        networks: Addresses and networks as ``10.0.0.0/8``, ``fd00::/8``, ``192.0.2.7``.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(map(ipaddress.ip_network, networks))
        self.trusts = lru_cache(maxsize=4_096)(self._trusts)
        """Whether a host is one of them; told by its address."""

    def caller(self, peer: Caller, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """
        Return who calls over a connection from the trusted proxy *peer*.

        *headers* have names in small letters. Where the proxy names nobody, or something that is
        no address, it is the proxy itself.
        """
        hops: list[bytes] = []
        protocols: list[bytes] = []
        for name, value in headers:
            if name == _FOR:
                hops += value.split(b",")
            elif name == _PROTO:
                protocols += value.split(b",")
        # Of several proxies the nearest is the last one; it may speak for those before it.
        is_secure = peer.is_secure or any(each.strip().lower() == b"https" for each in protocols)
        return Caller(self._first_stranger(peer.address, hops), is_secure)

    def _first_stranger(self, peer: str, hops: Sequence[bytes]) -> str:
        """Return the first address from the right that is no proxy's; the last one if all are."""
        found = peer
        for hop in reversed(hops[-_MOST_HOPS:]):
            address = _address_in(hop.decode("latin-1").strip())
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


def _address_in(text: str) -> str | None:
    """Return the address that *text* is, without a port; None when it is none."""
    found = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    try:
        return str(_plain(found[1] if found else text))
    except ValueError:
        return None


def _plain(host: str) -> _Ip:
    """Return the address *host*, IPv4 where it is written as IPv6, without a zone."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
