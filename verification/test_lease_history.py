"""
Pulls behind a balancer, with replicas, the broker and clients killed: the history has no violation.

More messages: ``NSQ_GATEWAY_LEASE_MESSAGES=100000``; other seeds: ``NSQ_GATEWAY_LEASE_SEEDS=a,b``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.brokers.nsqd import LOSES_MESSAGES_WHEN_KILLED, is_older_nsqd
from tests.support.history.check import Kind, lease_violations, missed_acks
from tests.support.history.events import (
    AckAttempted,
    AckForwarded,
    AckRefused,
    AckResponse,
    ConnectionClosed,
    FinalCounts,
    MessageDelivered,
    MessageSent,
    OwnerMissed,
    PublishAcknowledged,
    PublishStored,
    Record,
)
from tests.support.history.index import HistoryIndex
from tests.support.history.pull_run import record_pulls, record_starts_and_stops
from tests.support.history.stories import Story, told, write_history
from tests.support.history.system import MSG_TIMEOUT_S

SEEDS = os.environ.get("NSQ_GATEWAY_LEASE_SEEDS", "alder").split(",")
MESSAGES = int(os.environ.get("NSQ_GATEWAY_LEASE_MESSAGES", "20000"))
MAX_RISEN = 0.03
"""
Largest share of messages whose attempts may rise without a delivery to a client.

It is about 0.004 on an idle machine. On a busy one, nsqd sends more until it reads that RDY is 0.
"""


def summary(records: Sequence[Record]) -> str:
    """Return how hard it was, and how many acks missed an owner that was there."""
    counts = Counter(type(record.event).__name__ for record in records)
    lost = [each.event for each in records if isinstance(each.event, OwnerMissed)]
    longest_s = max((each.took_s for each in lost), default=0.0)
    missed = missed_acks(HistoryIndex(records, MSG_TIMEOUT_S))
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{told}; told within {longest_s:.2f} s; {len(missed)} missed an owner that was there"


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_and_duplicates_have_a_cause(
    kind: str, seed: str, tmp_path: Path
) -> None:
    """No FIN without an ack, no lease ends early, and acks reach every owner that is there."""
    if kind == "nsqd" and is_older_nsqd:
        pytest.skip(LOSES_MESSAGES_WHEN_KILLED)
    records = await record_pulls(kind, seed, messages=MESSAGES)
    written = write_history(records, tmp_path)

    print(f"seed {seed}: {summary(records)}; all of it: {written}")  # noqa: T201 - how hard it was
    assert [] == [str(each) for each in lease_violations(records, msg_timeout_s=MSG_TIMEOUT_S)]


@pytest.mark.asyncio(loop_scope="session")
async def test_attempts_rise_for_few_messages_when_pulls_start_and_stop(kind: str) -> None:
    """What nsqd has sent when the last pull is answered waits for the next one, not in vain."""
    records = await record_starts_and_stops(kind, "alder", messages=20_000, each=10_000)
    reading = HistoryIndex(records, MSG_TIMEOUT_S)
    sent = len(reading.by_body)
    risen = [sending for sending in reading.sendings if not sending.delivered]

    print(f"{len(risen)} of {sent} messages were sent in vain")  # noqa: T201 - what it measured
    assert 20_000 <= sent
    assert len(risen) <= MAX_RISEN * sent
    assert [] == [str(each) for each in lease_violations(records, msg_timeout_s=MSG_TIMEOUT_S)]


# The checker: what is planted is found, and nothing else is

M = "0123456789abcdef"
A, B = f"{M}-1", f"{M}-2"
LEASE_S = 5.0
PUBLISHED: Story = [PublishStored(("m",)), PublishAcknowledged(("m",))]
FIRST: Story = [MessageSent(1, M, 1, "m"), MessageDelivered(7, A, 1, "m", LEASE_S)]
SECOND: Story = [MessageSent(2, M, 2, "m"), MessageDelivered(8, B, 2, "m", LEASE_S)]
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
TOUCH: Story = [1.0, AckForwarded(1, "TOUCH", M)]
"""By the gateway, in time."""
LOST: Story = [
    AckAttempted(7, "FIN", (A,), "r"),
    OwnerMissed(7, A, "LEASE_LOST", 0.005),
    AckResponse(7, "FIN", "r", (A,)),
]


SOUND: dict[str, Story] = {
    "pulled and finished": [*PUBLISHED, *FIRST, *FIN_A, FinalCounts(0, 0, 0)],
    "touched by the gateway": [*PUBLISHED, *FIRST, *TOUCH, *TOUCH, *TOUCH, *FIN_A],
    "its lease ended": [
        *PUBLISHED,
        *FIRST,
        *TOUCH,
        *TOUCH,
        *TOUCH,
        *TOUCH,
        1.0,
        AckForwarded(1, "REQ", M),
        *SECOND,
        *FIN_B,
    ],
    "not pulled": [
        *PUBLISHED,
        FIRST[0],
        AckForwarded(1, "REQ", M),
        *SECOND,
        *FIN_B,
    ],
    "handed back at the end of a gateway": [
        *PUBLISHED,
        *FIRST,
        AckForwarded(1, "REQ", M),
        ConnectionClosed(1),
        *SECOND,
        *LOST,
        *FIN_B,
    ],
    "its owner was killed": [*PUBLISHED, *FIRST, ConnectionClosed(1), *LOST, 2.0, *SECOND, *FIN_B],
    "timed out": [*PUBLISHED, *FIRST, 2.0, *SECOND, *LOST, *FIN_B],
}

PLANTED: dict[str, tuple[Kind, Story]] = {
    "lost": (Kind.NEVER_DELIVERED, PUBLISHED),
    "not finished": (Kind.NEVER_FINISHED, [*PUBLISHED, *FIRST]),
    "a FIN of the gateway's": (Kind.UNASKED, [*FIRST, AckForwarded(1, "FIN", M)]),
    "a REQ before the lease ended": (Kind.UNASKED, [*FIRST, 1.0, AckForwarded(1, "REQ", M)]),
    "a REQ before a touched lease ended": (
        Kind.UNASKED,
        [
            *FIRST,
            4.0,
            AckAttempted(7, "TOUCH", (A,), "t"),
            AckForwarded(1, "TOUCH", M),
            AckResponse(7, "TOUCH", "t"),
            2.0,
            AckForwarded(1, "REQ", M),
        ],
    ),
    "sent again within the lease": (Kind.UNEXPLAINED, [*FIRST, *TOUCH, 0.1, *SECOND]),
    "sent again behind its FIN": (Kind.RISEN, [*FIRST, *FIN_A, 2.0, *SECOND]),
    "leased twice": (Kind.DELIVERED_TWICE, [*FIRST, MessageDelivered(8, A, 1, "m", LEASE_S)]),
    "out of nothing": (Kind.INVENTED, [FIRST[1]]),
    "done, and nothing said": (Kind.BROKEN_WORD, [*FIRST, FIN_A[0], FIN_A[2]]),
    "refused, and said": (
        Kind.REFUSED_AND_PASSED,
        [*FIRST, *FIN_A[:2], AckResponse(7, "FIN", "r", (A,))],
    ),
    "refused by nsqd, and not finished": (
        Kind.NEVER_FINISHED,
        [*PUBLISHED, *FIRST, *FIN_A, AckRefused(1, "FIN", M)],
    ),
    "an owner that was there": (Kind.MISSED, [*FIRST, *LOST]),
    "left over": (Kind.STUCK, [FinalCounts(1, 0, 0)]),
}


@pytest.mark.parametrize("story", SOUND.values(), ids=SOUND.keys())
def test_a_sound_history_is_found_to_be_sound(story: Story) -> None:
    """Allowed events are no violation."""
    assert [] == lease_violations(told(story), msg_timeout_s=MSG_TIMEOUT_S)


@pytest.mark.parametrize("planted,story", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(planted: Kind, story: Story) -> None:
    """As what it is, whatever else it may be."""
    found = lease_violations(told(story), msg_timeout_s=MSG_TIMEOUT_S)
    assert planted in {each.kind for each in found}
