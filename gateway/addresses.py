"""Addresses of listeners and servers, and protection against DNS rebinding."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

_MAX_PORT = 65_535
_NAME_OR_IPV4 = re.compile(r"[A-Za-z0-9._-]+")


def split_address(address: str) -> tuple[str, int]:
    """
    Split ``host:port`` into host and port; port 0 lets the system choose when listening.

    An IPv6 host must be in brackets and is returned without them. Host names must be ASCII, as in
    URLs and DNS.

    Raises:
        ValueError: *address* has another form; the text says what is expected.
    """
    host, _, port = address.rpartition(":")
    # "²".isdigit() is true: require ASCII. Six digits suffice to exceed the maximum, and int()
    # rejects thousands of digits with a text of its own.
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
    """Return ``host:port``, with IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_path(address: str) -> bool:
    """Return whether *address* is the path of a Unix socket, and not host:port."""
    return "/" in address


def local_address(address: str) -> str:
    """Return *address*, where a process listens, as processes on the same machine reach it."""
    host, port = split_address(address)
    return join_address(_LOCAL.get(host, host), port)


_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with


def has_loopback_host(address: str) -> bool:
    """
    Return whether the host of *address* (host:port) is a loopback address.

    Only this machine reaches such an address. Raises ValueError as `split_address` does.
    """
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        # Any other name counts as public: then the settings require a decision about access.
        return False
    # ::ffff:127.0.0.1 counts as public; Python 3.13 calls it a loopback address, 3.11 does not.
    return ip.is_loopback and getattr(ip, "ipv4_mapped", None) is None


class TrustedHosts:
    """
    Reject requests by their Host header, against DNS rebinding.

    In an attack the attacker's own domain name resolves to this machine. Browsers then treat the
    port as the attacker's origin, so CORS does not help. An IP address, ``localhost`` and a name
    without a dot cannot belong to an attacker. On loopback, any other name is rejected. Elsewhere
    it is rejected for browsers only, because Prometheus and the kubelet may use any name. Browsers
    are recognized by Accept-Language, which they always send and pages cannot remove.
    """

    def __init__(self, listen: str, names: Sequence[str] = (), *, flag: str = "") -> None:
        """
        Accept *names* and this machine's host name in addition to the safe hosts.

        *listen* is the host:port of the listener, or the path of its Unix socket, where a proxy may
        have kept any name. Error texts suggest *flag*, the setting that adds names; "" if there is
        none.
        """
        self._is_strict = not is_path(listen) and has_loopback_host(listen)
        self._allowed = "use an IP address, localhost or a name without a dot"
        if flag:
            self._allowed += f", or add the name with {flag}"
        self._names = {name.lower().rstrip(".") for name in (*names, socket.gethostname())}

    def rejection_reason(self, host: str, *, is_browser: bool) -> str | None:
        """Return why a request with the Host header *host* is rejected, or None."""
        if not (self._is_strict or is_browser) or self._is_trusted(host):
            return None
        return f"Host {host[:80]!r} is not accepted; {self._allowed}"

    def _is_trusted(self, host: str) -> bool:
        # RFC 9110 §7.2: the port is optional, and may be empty after its colon.
        name = re.sub(r":[0-9]*$", "", host).lower().rstrip(".")
        # An attacker's domain has a dot: single labels only resolve in the local network.
        if "." not in name or name.endswith(".localhost") or name in self._names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True
