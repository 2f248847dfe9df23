"""
The history of a run with all faults has no violation, and planted violations are found.

Clients, the ways between, the gateway and the broker are hurt in an order that a seed tells. Other
seeds, or many: ``NSQ_GATEWAY_HISTORY_SEEDS=one,two``, ``NSQ_GATEWAY_HISTORY_ROUNDS=10``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.brokers.disk_queue import bodies_on_disk
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.v2_peer import OK, multi_publish, publish, v2_peer
from tests.support.history.check import OUTLIVE_S, Kind, violations
from tests.support.history.events import (
    AckAttempted,
    AckForwarded,
    AckRefused,
    AckResponse,
    BrokerEnded,
    CloseWaitReceived,
    ConnectionClosed,
    FinalCounts,
    GatewayEnded,
    LinkBroken,
    LinkRestored,
    MessageDelivered,
    MessageSent,
    PublishAcknowledged,
    PublishStored,
    Record,
    SocketClosed,
)
from tests.support.history.run import record_history
from tests.support.history.stories import Story, told, write_history
from tests.support.history.system import MSG_TIMEOUT_S

SEEDS = os.environ.get("NSQ_GATEWAY_HISTORY_SEEDS", "alder,birch").split(",")
ROUNDS = int(os.environ.get("NSQ_GATEWAY_HISTORY_ROUNDS", "1"))


def summary(records: Sequence[Record]) -> str:
    """Return how hard it was."""
    counts = Counter(type(record.event).__name__ for record in records)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


@pytest.mark.toxiproxy
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_history_holds_no_violation(kind: str, seed: str, tmp_path: Path) -> None:
    """Acknowledged messages are finished by clients, and each duplicate has a cause."""
    records = await record_history(kind, seed, rounds=ROUNDS)
    written = write_history(records, tmp_path)

    print(f"seed {seed}: {summary(records)}; all of it: {written}")  # noqa: T201 - how hard it was
    assert [] == [str(each) for each in violations(records, msg_timeout_s=MSG_TIMEOUT_S)]


# The checker: what is planted is found, and nothing else is

M = "0123456789abcdef"
A, B = f"{M}-1", f"{M}-2"
"""Two deliveries of one message."""

OTHER = "f" * 16

PUBLISHED: Story = [PublishStored(("m",)), PublishAcknowledged(("m",))]
FIRST: Story = [MessageSent(1, M, 1, "m"), MessageDelivered(7, A, 1, "m")]
SECOND: Story = [MessageSent(2, M, 2, "m"), MessageDelivered(8, B, 2, "m")]
FIN_A: Story = [
    AckAttempted(7, "FIN", (A,), "r"),
    AckForwarded(1, "FIN", M),
    AckResponse(7, "FIN", "r"),
]
FIN_B: Story = [
    AckAttempted(8, "FIN", (B,), "s"),
    AckForwarded(2, "FIN", M),
    AckResponse(8, "FIN", "s"),
]
REQ_A: Story = [AckAttempted(7, "REQ", (A,)), AckForwarded(1, "REQ", M)]
LATE: Story = [MSG_TIMEOUT_S]
DEAD, GONE = BrokerEnded(frozenset({"m"})), BrokerEnded(frozenset())


SOUND: dict[str, Story] = {
    "one message": [
        *PUBLISHED,
        *FIRST,
        *FIN_A,
        SocketClosed(7, 1000),
        ConnectionClosed(1),
        FinalCounts(0, 0, 0),
    ],
    "requeued": [*PUBLISHED, *FIRST, *REQ_A, *SECOND, *FIN_B],
    "handed back": [
        *PUBLISHED,
        *FIRST,
        AckForwarded(1, "REQ", M),
        SocketClosed(7, 1012),
        *SECOND,
        *FIN_B,
    ],
    "handed back while its REQ was on its way": [
        *PUBLISHED,
        *FIRST,
        AckAttempted(7, "REQ", (A,), "r"),
        AckForwarded(1, "REQ", M),
        AckResponse(7, "REQ", "r", (A,)),
        SocketClosed(7, 1012),
        *SECOND,
        *FIN_B,
    ],
    "timed out": [*PUBLISHED, *FIRST, *LATE, *SECOND, *FIN_B],
    "too late": [
        *PUBLISHED,
        *FIRST,
        *LATE,
        *SECOND,
        AckAttempted(7, "FIN", (A,), "r"),
        AckResponse(7, "FIN", "r", (A,)),
        *FIN_B,
    ],
    "too late for nsqd": [
        *PUBLISHED,
        *FIRST,
        *LATE,
        *SECOND,
        AckAttempted(7, "FIN", (A,)),
        AckForwarded(1, "FIN", M),
        AckRefused(1, "FIN", M),
        AckResponse(7, "FIN", None, (A,)),
        *FIN_B,
    ],
    "cut": [*PUBLISHED, *FIRST, ConnectionClosed(1), *LATE, *SECOND, *FIN_B],
    "cut behind its FIN": [*PUBLISHED, *FIRST, *FIN_A, ConnectionClosed(1), *LATE, *SECOND, *FIN_B],
    "lost on the way to the client": [
        *PUBLISHED,
        FIRST[0],
        ConnectionClosed(1),
        *LATE,
        *SECOND,
        *FIN_B,
    ],
    "broker killed, kept": [
        *PUBLISHED,
        *FIRST,
        ConnectionClosed(1),
        DEAD,
        MessageSent(2, M, 1, "m"),
        MessageDelivered(8, A, 1, "m"),
        AckAttempted(8, "FIN", (A,)),
        AckForwarded(2, "FIN", M),
    ],
    "broker killed, lost": [*PUBLISHED, *FIRST, ConnectionClosed(1), GONE],
    "broker killed, doubled": [
        *PUBLISHED,
        DEAD,
        *FIRST,
        *FIN_A,
        MessageSent(2, M, 1, "m"),
    ],
    "broker killed, doubled in one breath": [
        *PUBLISHED,
        DEAD,
        MessageSent(1, M, 1, "m"),
        MessageSent(1, M, 1, "m"),
        MessageDelivered(7, A, 1, "m"),
        MessageDelivered(7, B, 1, "m"),
        AckAttempted(7, "FIN", (A, B)),
        AckForwarded(1, "FIN", M),
        AckForwarded(1, "FIN", M),
        AckRefused(1, "FIN", M),
        AckResponse(7, "FIN", None, (B,)),
    ],
    "a FIN that never arrived": [
        *PUBLISHED,
        *FIRST,
        LinkBroken(),
        FIN_A[0],
        FIN_A[2],
        ConnectionClosed(1),
        LinkRestored(),
        *LATE,
        *SECOND,
        *FIN_B,
    ],
    "a FIN that died with the gateway": [
        *[
            *PUBLISHED,
            *FIRST,
            FIN_A[0],
            FIN_A[2],
            ConnectionClosed(1),
            GatewayEnded(),
            *LATE,
            *SECOND,
            *FIN_B,
        ],
    ],
    "refused at once": [
        MessageSent(1, M, 1, "m"),
        AckAttempted(7, "FIN", (B,), "r"),
        AckResponse(7, "FIN", "r", (B,)),
    ],
    "closed before the answer": [*FIRST, *FIN_A[:2], SocketClosed(7, 1006)],
    "nobody knows": [PublishStored(("m",)), *FIRST, *FIN_A],
}

PLANTED: dict[str, tuple[Kind, Story]] = {
    "acknowledged, and not stored": (Kind.NOT_STORED, [*PUBLISHED[::-1], *FIRST, *FIN_A]),
    "lost": (Kind.NEVER_DELIVERED, PUBLISHED),
    "lost on the way": (Kind.NEVER_DELIVERED, [*PUBLISHED, FIRST[0]]),
    "lost, though on a disk": (Kind.NEVER_DELIVERED, [*PUBLISHED, DEAD]),
    "lost, published behind a death": (Kind.NEVER_DELIVERED, [GONE, *PUBLISHED]),
    "not finished": (Kind.NEVER_FINISHED, [*PUBLISHED, *FIRST]),
    "not finished, for it was refused": (
        Kind.NEVER_FINISHED,
        [*PUBLISHED, *FIRST, *FIN_A, AckRefused(1, "FIN", M)],
    ),
    "a FIN of the gateway's": (Kind.UNASKED, [*FIRST, AckForwarded(1, "FIN", M)]),
    "a FIN of what was never delivered": (Kind.UNASKED, [FIRST[0], AckForwarded(1, "FIN", M)]),
    "a FIN before the client's": (Kind.UNASKED, [*FIRST, FIN_A[1], FIN_A[0]]),
    "a FIN on another connection": (Kind.UNASKED, [*FIRST, FIN_A[0], AckForwarded(2, "FIN", M)]),
    "a FIN for a REQ": (
        Kind.UNASKED,
        [*FIRST, AckAttempted(7, "REQ", (A,)), AckForwarded(1, "FIN", M)],
    ),
    "a FIN of another delivery": (
        Kind.UNASKED,
        [*FIRST, *LATE, *SECOND, AckAttempted(8, "FIN", (B,)), AckForwarded(1, "FIN", M)],
    ),
    "a TOUCH of the gateway's": (Kind.UNASKED, [*FIRST, AckForwarded(1, "TOUCH", M)]),
    "a REQ in the middle": (
        Kind.UNASKED,
        [
            *FIRST,
            AckForwarded(1, "REQ", M),
            MessageSent(1, M, 2, "m"),
            MessageDelivered(7, B, 2, "m"),
        ],
    ),
    "sent again at once": (Kind.UNEXPLAINED, [*FIRST, *SECOND]),
    "sent again for a cut alone": (Kind.UNEXPLAINED, [*FIRST, ConnectionClosed(1), *SECOND]),
    "sent again before its time": (
        Kind.UNEXPLAINED,
        [*FIRST, MSG_TIMEOUT_S / 2, *SECOND],
    ),
    "sent again though touched": (
        Kind.UNEXPLAINED,
        [*FIRST, 1.0, AckAttempted(7, "TOUCH", (A,)), AckForwarded(1, "TOUCH", M), 1.0, *SECOND],
    ),
    "sent again behind a refused REQ": (
        Kind.UNEXPLAINED,
        [*FIRST, *REQ_A, AckRefused(1, "REQ", M), *SECOND],
    ),
    "sent again behind its FIN": (Kind.RISEN, [*FIRST, *FIN_A, *LATE, *SECOND]),
    "the same attempts": (Kind.FEWER_ATTEMPTS, [*FIRST, *REQ_A, MessageSent(2, M, 1, "m")]),
    "fewer attempts": (
        Kind.FEWER_ATTEMPTS,
        [MessageSent(1, M, 3, "m"), ConnectionClosed(1), MessageSent(2, M, 2, "m")],
    ),
    "out of nothing": (Kind.INVENTED, [FIRST[1]]),
    "with another body": (Kind.INVENTED, [FIRST[0], MessageDelivered(7, A, 1, "n")]),
    "with other attempts": (Kind.INVENTED, [FIRST[0], MessageDelivered(7, A, 2, "m")]),
    "to two sockets": (Kind.DELIVERED_TWICE, [*FIRST, MessageDelivered(8, A, 1, "m")]),
    "to a closed socket": (Kind.AFTER_THE_END, [FIRST[0], SocketClosed(7, 1000), FIRST[1]]),
    "behind CLOSE_WAIT": (Kind.AFTER_THE_END, [FIRST[0], CloseWaitReceived(7), FIRST[1]]),
    "for a socket long closed": (
        Kind.OUTLIVED,
        [*FIRST, SocketClosed(7, 1006), OUTLIVE_S, MessageSent(1, OTHER, 1, "n")],
    ),
    "the old behind the new": (
        Kind.OUT_OF_ORDER,
        [FIRST[0], *LATE, MessageSent(1, M, 2, "m"), MessageDelivered(7, B, 2, "m"), FIRST[1]],
    ),
    "OK, and nothing said": (Kind.BROKEN_WORD, [*FIRST, FIN_A[0], FIN_A[2]]),
    "OK, for something unknown": (
        Kind.BROKEN_WORD,
        [*FIRST, AckAttempted(7, "FIN", (B,), "r"), AckResponse(7, "FIN", "r")],
    ),
    "OK, long before the fault": (
        Kind.BROKEN_WORD,
        [*FIRST, FIN_A[0], FIN_A[2], 2.0, LinkBroken()],
    ),
    "refused, and said": (
        Kind.REFUSED_AND_PASSED,
        [*FIRST, *FIN_A[:2], AckResponse(7, "FIN", "r", (A,))],
    ),
    "refused, and requeued in the middle": (
        Kind.REFUSED_AND_PASSED,
        [
            *FIRST,
            AckAttempted(7, "REQ", (A,), "r"),
            AckForwarded(1, "REQ", M),
            AckResponse(7, "REQ", "r", (A,)),
            MessageSent(1, OTHER, 1, "n"),
            MessageDelivered(7, f"{OTHER}-1", 1, "n"),
        ],
    ),
    "passed by": (
        Kind.UNANSWERED,
        [*FIRST, AckAttempted(7, "TOUCH", (A,), "q"), AckForwarded(1, "TOUCH", M), *FIN_A],
    ),
    "answered twice": (Kind.ANSWERED_TWICE, [*FIRST, *FIN_A, FIN_A[2]]),
    "an answer to nobody": (Kind.UNHEARD_OF, [AckResponse(7, "FIN", "nobody's")]),
    "in flight for ever": (Kind.STUCK, [FinalCounts(0, 1, 0)]),
    "left over": (Kind.STUCK, [FinalCounts(1, 0, 0)]),
    "deferred for ever": (Kind.STUCK, [FinalCounts(0, 0, 1)]),
}


@pytest.mark.parametrize("story", SOUND.values(), ids=SOUND.keys())
def test_a_sound_history_is_found_to_be_sound(story: Story) -> None:
    """Allowed events are no violation."""
    assert [] == violations(told(story), msg_timeout_s=MSG_TIMEOUT_S)


@pytest.mark.parametrize("planted,story", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(planted: Kind, story: Story) -> None:
    """As what it is, whatever else it may be."""
    assert planted in {each.kind for each in violations(told(story), msg_timeout_s=MSG_TIMEOUT_S)}


def test_everything_that_can_be_wrong_is_planted() -> None:
    """A kind that nothing is planted for would be found by nobody."""
    # MISSED is for leases: test_lease_history.py.
    assert set(Kind) - {Kind.MISSED} == {planted for planted, _ in PLANTED.values()}


@pytest.mark.nsqd
@pytest.mark.asyncio(loop_scope="session")
async def test_disk_queues_contain_undelivered_and_in_flight_messages(tmp_path: Path) -> None:
    """The files say which messages an nsqd has that has ended, those in flight among them."""
    flags = ("--mem-queue-size=0", "--sync-every=1", f"--data-path={tmp_path}")
    async with real_nsqd(*flags) as nsqd:
        async with v2_peer(nsqd.tcp_address) as peer:
            await peer.send(publish(b"t", b"held") + multi_publish(b"t", b"one", b"two"))
            assert [OK, OK] == await peer.frames(2)
        async with v2_peer(nsqd.tcp_address) as consumer:
            await consumer.send(b"SUB t c\nRDY 1\n")
            await consumer.frames(2)
            nsqd.process.terminate()
            await nsqd.process.wait()

    assert {"held", "one", "two"} == bodies_on_disk(tmp_path)
