"""Kill processes of an archive at random times: no message is lost, few are duplicated."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from tests.support.spark.kills import MOST_IN_FLIGHT, MOST_ROWS, Outcome, Plan, Victim, run
from tests.support.spark.program import SparkProgram

pytestmark = [pytest.mark.java, pytest.mark.nsqd]

KILLS = int(os.environ.get("NSQ_GATEWAY_SPARK_KILLS", "1"))
SEED = int(os.environ.get("NSQ_GATEWAY_SPARK_SEED", "0")) or Random().randrange(1_000_000)


@pytest.fixture(params=["commit", "spool"])
def ack_mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


def most_duplicates(plan: Plan) -> int:
    """
    Return how many messages may be archived twice.

    With commit: a batch that is in the archive, but not in Spark's commit log. With spool: messages
    that were durable and not finished yet. A task that is retried reads the same rows, so the kill
    of a worker adds none.
    """
    if plan.victim == "worker":
        return 0
    return plan.kills * {"commit": MOST_ROWS, "spool": MOST_IN_FLIGHT}[plan.ack_mode]


def assert_guarantee(outcome: Outcome) -> None:
    """Assert that no message is lost, ids are kept, and duplicates are within the limit."""
    sys.stdout.write(f"{outcome}\n")
    assert ([], []) == (outcome.lost, outcome.renamed), outcome
    assert outcome.duplicates <= most_duplicates(outcome.plan), outcome


@pytest.mark.parametrize("victim", get_args(Victim))
async def test_published_messages_are_archived(
    victim: Victim, ack_mode: str, spark: SparkProgram, tmp_path: Path
) -> None:
    """All messages arrive with their ids; duplicates only as the guarantee allows."""
    outcome = await run(Plan(victim, ack_mode, KILLS, SEED), spark, tmp_path)

    assert_guarantee(outcome)


async def test_the_embedded_broker_loses_nothing_either(
    spark: SparkProgram, tmp_path: Path
) -> None:
    """The broker redelivers the messages in flight to the killed source."""
    plan = Plan("source", "commit", KILLS, SEED, broker="embedded")
    outcome = await run(plan, spark, tmp_path)

    assert_guarantee(outcome)
