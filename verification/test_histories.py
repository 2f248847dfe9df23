"""
One fault with clients at work before, during and after it: the history has no violation.

What was acknowledged is delivered and finished, nothing is finished that no client finished, and
what came twice has a reason. `verification/test_history.py` holds the same for all faults in
turn; here a row of the fault table has a run of its own, and one that fails names its fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.brokers.nsqd import LOSES_MESSAGES_WHEN_KILLED, is_older_nsqd
from tests.support.history import run as history_run
from tests.support.history.check import violations
from tests.support.history.events import MessageSent, PublishAcknowledged, Record
from tests.support.history.run import Fault, record_history
from tests.support.history.stories import write_history
from tests.support.history.system import MSG_TIMEOUT_S

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.toxiproxy]

FAULTS: tuple[Fault, ...] = (
    history_run.the_broker_is_killed,
    history_run.the_broker_is_away,
    history_run.the_broker_falls_silent,
    history_run.the_broker_is_slow,
    history_run.clients_fall_silent,
    history_run.clients_are_cut,
    history_run.the_gateway_is_killed,
    history_run.the_gateway_is_stopped,
)


def account(records: Sequence[Record]) -> str:
    """Return how many messages were acknowledged, and how many the broker sent how often."""
    acknowledged = sum(
        len(record.event.bodies)
        for record in records
        if isinstance(record.event, PublishAcknowledged)
    )
    sent = Counter(record.event.body for record in records if isinstance(record.event, MessageSent))
    times = Counter(sent.values())
    return f"{acknowledged} acknowledged; sent so often: {dict(sorted(times.items()))}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_nothing_is_lost_and_duplicates_have_a_cause_when(
    kind: str, fault: Fault, tmp_path: Path
) -> None:
    """Every 200 is delivered and finished, and no FIN is the gateway's own."""
    if kind == "nsqd" and is_older_nsqd and fault is history_run.the_broker_is_killed:
        pytest.skip(LOSES_MESSAGES_WHEN_KILLED)
    records = await record_history(kind, fault.__name__, faults=[fault])
    written = write_history(records, tmp_path)

    print(f"{fault.__name__}: {account(records)}; all of it: {written}")  # noqa: T201 - counted
    assert [] == [str(each) for each in violations(records, msg_timeout_s=MSG_TIMEOUT_S)]
