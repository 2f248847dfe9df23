"""The answers that a late refusal can be matched to."""

from __future__ import annotations

from gateway.protocol.recent_acks import REMEMBERED_IDS, RecentAcks

A, B = "00000000000000aa", "00000000000000bb"


def test_a_refusal_finds_the_delivery() -> None:
    """The message's 16 digits lead to the whole id of its delivery."""
    answered = RecentAcks[str]()

    answered.add([f"{A}-1", f"{B}-1"])

    assert f"{A}-1" == answered.find(A)


def test_a_refusal_finds_the_latest_delivery() -> None:
    """Of two deliveries of one message the later answered one counts, also after a look."""
    answered = RecentAcks[str]()
    answered.add([f"{A}-1"])
    answered.find(A)

    answered.add([f"{A}-2"])

    assert f"{A}-2" == answered.find(A)


def test_a_delivery_id_may_be_the_messages_id() -> None:
    """A consumer remembers the 16 bytes themselves."""
    answered = RecentAcks[bytes]()

    answered.add([A.encode()])

    assert [A.encode(), None] == [answered.find(A.encode()), answered.find(B.encode())]


def test_an_unknown_message_is_not_found() -> None:
    """Unknown ids, and texts that are no id, are None."""
    answered = RecentAcks[str]()
    answered.add([f"{A}-1"])

    found = [answered.find(B), answered.find(""), answered.find(A[:8])]

    assert [None, None, None] == found


def test_the_oldest_are_forgotten() -> None:
    """Above the bound whole rows go, the oldest first."""
    answered = RecentAcks[str]()
    answered.add([f"{A}-1"])

    for number in range(REMEMBERED_IDS):
        answered.add([f"{number:016x}-2"])

    assert REMEMBERED_IDS == len(answered)
    assert None is answered.find("f" * 16)
    assert f"{'0' * 16}-2" == answered.find("0" * 16)


def test_the_last_row_stays_however_long_it_is() -> None:
    """A row above the bound pushes the others out, and is kept whole."""
    answered = RecentAcks[str]()
    answered.add([f"{A}-1"])

    answered.add([f"{number:016x}-2" for number in range(REMEMBERED_IDS + 1)])

    assert REMEMBERED_IDS + 1 == len(answered)
    assert f"{A}-2" == answered.find(A)
