"""Addresses of the form ``host:port``."""

from __future__ import annotations

import ipaddress
import re

_MAX_PORT = 65_535
_NAME_OR_IPV4 = re.compile(r"[A-Za-z0-9._-]+")


def split_address(address: str) -> tuple[str, int]:
    """
    Split ``host:port``; an IPv6 host stands in brackets. Port 0 lets the system choose.

    A name is in ASCII: what no resolver and no URL takes is refused here, where a person reads it.

    Raises:
        ValueError: *address* is not of this form; the text says what is expected.
    """
    host, _, port = address.rpartition(":")
    # isascii: "²".isdigit() is true as well.
    is_port = port.isascii() and port.isdigit() and int(port[:6]) <= _MAX_PORT
    if not (_is_host(host) and is_port):
        raise ValueError(f"{address!r} is not host:port with a port of 0 to {_MAX_PORT}")
    return host.strip("[]"), int(port)


def _is_host(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return _NAME_OR_IPV4.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches *address*; raises as `split_address` does."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
