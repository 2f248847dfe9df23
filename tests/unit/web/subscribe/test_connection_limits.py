"""How many sockets may be open, in all and from one address."""

from __future__ import annotations

import pytest

from gateway.credentials import Secret
from gateway.errors import LimitReached
from gateway.web.subscribe.connection_limits import ConnectionLimits


def test_one_too_many_is_refused() -> None:
    seats = ConnectionLimits(2)
    seats.acquire("192.0.2.1")
    seats.acquire("192.0.2.2")

    with pytest.raises(LimitReached, match="has reached its limit of 2 sockets"):
        seats.acquire("192.0.2.3")
    assert 2 == len(seats)


def test_who_goes_makes_room() -> None:
    seats = ConnectionLimits(1, limit_per_address=1)
    seats.acquire("192.0.2.1")
    seats.release("192.0.2.1")

    seats.acquire("192.0.2.1")

    assert 1 == len(seats)


def test_to_ask_for_room_takes_none() -> None:
    """The answer is that of who would sit down."""
    seats = ConnectionLimits(1)
    seats.check("192.0.2.1")
    seats.acquire("192.0.2.1")

    with pytest.raises(LimitReached, match="has reached its limit of 1 socket;"):
        seats.check("192.0.2.2")
    assert 1 == len(seats)


def test_one_too_many_from_an_address_is_refused() -> None:
    """The text names the address and the limit; another address has its own."""
    seats = ConnectionLimits(10, limit_per_address=2)
    seats.acquire("192.0.2.1")
    seats.acquire("192.0.2.1")
    seats.acquire("192.0.2.2")

    with pytest.raises(LimitReached, match=r"192\.0\.2\.1 has 2 open sockets"):
        seats.acquire("192.0.2.1")
    assert 3 == len(seats)


def test_a_network_of_ipv6_is_one_address() -> None:
    """Its /64 has one owner, who has as many addresses as he likes."""
    seats = ConnectionLimits(10, limit_per_address=1)
    seats.acquire("2001:db8::1")
    seats.acquire("2001:db8:0:1::1")

    with pytest.raises(LimitReached, match="2001:db8::/64 has 1 open socket, which"):
        seats.acquire("2001:db8::2")


def test_without_a_limit_an_address_may_have_all() -> None:
    """Behind a proxy all come from one."""
    seats = ConnectionLimits(100)
    for _ in range(100):
        seats.acquire("192.0.2.1")

    assert 100 == len(seats)


ALICE, BOB = Secret(b"alice"), Secret(b"bob")


def test_a_limit_of_one_is_in_the_singular() -> None:
    seats = ConnectionLimits(10, limit_per_secret=1)
    seats.acquire("192.0.2.1", ALICE)

    with pytest.raises(LimitReached, match="this caller has 1 open socket, which is the limit"):
        seats.acquire("192.0.2.1", ALICE)


def test_one_too_many_with_a_secret_is_refused() -> None:
    """From whatever address; the text does not show the secret, and another one has its own."""
    seats = ConnectionLimits(10, limit_per_secret=2)
    seats.acquire("192.0.2.1", ALICE)
    seats.acquire("192.0.2.2", ALICE)
    seats.acquire("192.0.2.1", BOB)
    seats.acquire("192.0.2.1")

    with pytest.raises(LimitReached, match="this caller has 2 open sockets") as refused:
        seats.acquire("192.0.2.3", ALICE)
    assert (4, "secret_full", False) == (
        len(seats),
        refused.value.reason,
        "alice" in str(refused.value),
    )


def test_secrets_that_look_alike_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a log shows of one is not enough to share its sockets."""
    monkeypatch.setattr(Secret, "fingerprint", "01234567")
    seats = ConnectionLimits(10, limit_per_secret=1)

    seats.acquire("192.0.2.1", ALICE)
    seats.acquire("192.0.2.1", BOB)

    assert 2 == len(seats)


def test_a_secret_that_comes_late_is_counted_as_well() -> None:
    """A browser says it in a frame, when its socket has been counted already."""
    seats = ConnectionLimits(10, limit_per_secret=1)
    seats.acquire("192.0.2.1")
    seats.acquire_caller(ALICE)
    seats.acquire("192.0.2.1")

    with pytest.raises(LimitReached):
        seats.acquire_caller(ALICE)
    seats.release("192.0.2.1", ALICE)
    seats.acquire_caller(ALICE)

    assert 1 == len(seats)
