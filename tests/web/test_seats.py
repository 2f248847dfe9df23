"""How many sockets may be open, in all and from one address."""

from __future__ import annotations

import pytest

from gateway.errors import Full
from gateway.web.seats import Seats


def test_one_too_many_is_refused() -> None:
    """The text says how many there are, and how many may be."""
    seats = Seats(2)
    seats.take("192.0.2.1")
    seats.take("192.0.2.2")

    with pytest.raises(Full, match="2 sockets are open, the limit is 2"):
        seats.take("192.0.2.3")
    assert 2 == len(seats)


def test_who_goes_makes_room() -> None:
    """In all, and for its address."""
    seats = Seats(1, limit_per_address=1)
    seats.take("192.0.2.1")
    seats.give_back("192.0.2.1")

    seats.take("192.0.2.1")

    assert 1 == len(seats)


def test_one_too_many_from_an_address_is_refused() -> None:
    """The text names the address, its count and the limit; another address has its own."""
    seats = Seats(10, limit_per_address=2)
    seats.take("192.0.2.1")
    seats.take("192.0.2.1")
    seats.take("192.0.2.2")

    with pytest.raises(Full, match=r"2 sockets are open from 192\.0\.2\.1, the limit .* is 2"):
        seats.take("192.0.2.1")
    assert 3 == len(seats)


def test_a_network_of_ipv6_is_one_address() -> None:
    """Its /64 has one owner, who has as many addresses as he likes."""
    seats = Seats(10, limit_per_address=1)
    seats.take("2001:db8::1")
    seats.take("2001:db8:0:1::1")

    with pytest.raises(Full, match="2001:db8::/64"):
        seats.take("2001:db8::2")


def test_without_a_limit_an_address_may_have_all() -> None:
    """Behind a proxy all come from one."""
    seats = Seats(100)
    for _ in range(100):
        seats.take("192.0.2.1")

    assert 100 == len(seats)
