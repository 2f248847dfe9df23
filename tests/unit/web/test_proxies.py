"""Who calls from behind a proxy: what is believed, of whom, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.web.proxies import Caller, TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "192.0.2.7", "fd00::/8"])
PEER = Caller("10.0.0.1", is_secure=False)


def address(*values: bytes) -> str:
    """Return who calls where the proxy sends these values of X-Forwarded-For, a header each."""
    headers = [(b"host", b"gateway"), *((b"x-forwarded-for", value) for value in values)]
    return PROXIES.caller(PEER, headers).address


@pytest.mark.parametrize(
    "host,expected",
    [
        ("10.255.0.1", True),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("2001:db8::1", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:11.1.2.3", False),
        ("", False),
        ("/run/gateway.sock", False),
    ],
)
def test_a_proxy_is_told_by_its_address(host: str, expected: bool) -> None:  # noqa: FBT001
    """IPv4 in the dress of IPv6 is the same; a peer without an address is nobody's proxy."""
    assert expected == PROXIES.trusts(host)


@pytest.mark.parametrize(
    "values,expected",
    [
        ([b"203.0.113.5"], "203.0.113.5"),
        ([b"203.0.113.5, 10.0.0.2"], "203.0.113.5"),
        ([b"1.1.1.1, 203.0.113.5, 10.0.0.2, 192.0.2.7"], "203.0.113.5"),
        ([b"1.1.1.1, 203.0.113.5", b"10.0.0.2"], "203.0.113.5"),
        ([b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ([b"  203.0.113.5\t"], "203.0.113.5"),
        ([b"203.0.113.5:567"], "203.0.113.5"),
        ([b"[2001:db8::5]:567"], "2001:db8::5"),
        ([b"[2001:db8::5]"], "2001:db8::5"),
        ([b"2001:db8::5"], "2001:db8::5"),
        ([b"::ffff:203.0.113.5"], "203.0.113.5"),
        ([b"[::1]:5"], "::1"),
    ],
    ids=repr,
)
def test_the_caller_is_the_first_stranger_from_the_right(
    values: list[bytes], expected: str
) -> None:
    """What stands left of that is the stranger's own tale; several headers are one list."""
    assert expected == address(*values)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"unknown",
        b"203.0.113.5,",
        b"203.0.113.5, garbage",
        b"203.0.113.256",
        b"203.0.113.5:",
        b"203.0.113.5:123456",
        b"[::1",
        b"::1]:5",
        b"\xff\xfe",
        b"1.2.3.4\x00",
        b"\xb2.1.1.1",
    ],
    ids=repr,
)
def test_what_is_no_address_leaves_the_peer(value: bytes) -> None:
    """The proxy has not said who calls, so it answers for the caller itself."""
    assert PEER.address == address(value)


def test_without_the_header_it_is_the_peer() -> None:
    assert PEER == PROXIES.caller(PEER, [(b"host", b"gateway")])


def test_a_long_tale_is_not_walked() -> None:
    """The work for a header is bounded, whatever is in it."""
    assert "10.0.0.2" == address(b"203.0.113.5" + b", 10.0.0.2" * 1_000)


@pytest.mark.parametrize(
    "values,expected",
    [
        ([b"https"], True),
        ([b"HTTPS"], True),
        ([b"http"], False),
        ([b"https, http"], True),
        ([b"http", b"https"], True),
        ([b"httpsx"], False),
        ([], False),
    ],
)
def test_tls_in_front_is_told(values: list[bytes], expected: bool) -> None:  # noqa: FBT001
    """One proxy of several that saw TLS is enough: to believe it only makes things stricter."""
    headers = [(b"x-forwarded-proto", value) for value in values]

    assert expected == PROXIES.caller(PEER, headers).is_secure


def test_tls_up_to_here_stays_tls() -> None:
    """Whatever the proxy says of its own caller."""
    peer = Caller("10.0.0.1", is_secure=True)

    assert PROXIES.caller(peer, [(b"x-forwarded-proto", b"http")]).is_secure


class Counted(bytes):
    """A value that counts the parts which it is split into."""

    parts = 0

    def split(self, *args: Any, **kwargs: Any) -> list[bytes]:  # noqa: ANN401
        """Count them all."""
        parts = super().split(*args, **kwargs)
        self.parts += len(parts)
        return parts

    def rsplit(self, *args: Any, **kwargs: Any) -> list[bytes]:  # noqa: ANN401
        """Count those from the right, and the rest as one."""
        parts = super().rsplit(*args, **kwargs)
        self.parts += len(parts)
        return parts


@pytest.mark.parametrize("name", [b"x-forwarded-for", b"x-forwarded-proto"])
def test_a_long_list_is_not_taken_apart(name: bytes) -> None:
    """A head has room for tens of thousands; 32 from the right are looked at, over all headers."""
    values = [Counted(b"10.0.0.2," * 7_000), Counted(b"10.0.0.2," * 20)]

    PROXIES.caller(PEER, [(name, value) for value in values])

    assert sum(value.parts for value in values) <= 32 + len(values)


@pytest.mark.parametrize("count,expected", [(31, "203.0.113.5"), (32, "10.0.0.2")])
def test_the_thirty_second_from_the_right_is_the_last_that_counts(
    count: int, expected: str
) -> None:
    """Behind it stands nobody's chain of proxies; several headers are one list."""
    proxies = b",10.0.0.2" * (count - 10)

    assert expected == address(b"1.1.1.1, 203.0.113.5" + proxies, b"10.0.0.2" + b",10.0.0.2" * 9)


@pytest.mark.parametrize("count,is_secure", [(31, True), (32, False)])
def test_the_protocol_is_looked_for_as_far(count: int, is_secure: bool) -> None:  # noqa: FBT001
    value = b"https" + b", http" * count

    assert is_secure == PROXIES.caller(PEER, [(b"x-forwarded-proto", value)]).is_secure


def test_what_is_too_long_is_no_address() -> None:
    assert PEER.address == address(b"fe80::1%" + b"x" * 50_000)
