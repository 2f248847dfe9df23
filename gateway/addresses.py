"""Addresses of the form ``host:port``."""

from __future__ import annotations

import ipaddress

_MAX_PORT = 65_535


def split_address(address: str) -> tuple[str, int]:
    """
    Split ``host:port``; an IPv6 host stands in brackets. Port 0 lets the system choose.

    Raises:
        ValueError: *address* is not of this form; the text says what is expected.
    """
    host, _, port = address.rpartition(":")
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    # isascii: "²".isdigit() is true as well.
    is_port = port.isascii() and port.isdigit() and int(port[:6]) <= _MAX_PORT
    if not host or is_bare_ipv6 or not is_port:
        raise ValueError(f"{address!r} is not host:port with a port of 0 to {_MAX_PORT}")
    return host.strip("[]"), int(port)


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
