"""How much nonsense a client may send."""

from __future__ import annotations

from gateway.session.patience import MAX_MISUSES, Patience


def test_patience_is_lost_by_one_too_many() -> None:
    """A hundred at one moment are borne, the next is not."""
    patience = Patience(now=0.0)
    lost = []

    for _ in range(MAX_MISUSES + 1):
        patience.count(0.0)
        lost.append(patience.is_lost)

    assert [False] * MAX_MISUSES + [True] == lost


def test_one_misuse_a_second_is_borne_for_ever() -> None:
    """Each second forgives one."""
    patience = Patience(now=0.0)

    for second in range(1_000):
        patience.count(float(second))

    assert not patience.is_lost


def test_a_quiet_time_earns_no_credit() -> None:
    """After an hour without a misuse there are a hundred again, not more."""
    patience = Patience(now=0.0)
    patience.count(0.0)

    for _ in range(MAX_MISUSES + 1):
        patience.count(3_600.0)

    assert patience.is_lost
