"""Tests of the log lines about a producer's connections to one broker."""

from __future__ import annotations

import logging
import re

import pytest

from gateway.client.producer import ProducerOptions
from gateway.credentials import Secret
from gateway.errors import BrokerRefused
from gateway.protocol.commands import Publish
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.running_producer import refuse_bad_bodies, running_producer
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.manual_clock import ManualClock, turn, until

FOUR = ProducerOptions(connections_per_nsqd=4)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return event and count of each line about connections."""
    pattern = r"publisher (connected|disconnected).*connections=(\S+)"
    return [found.groups() for each in caplog.messages if (found := re.search(pattern, each))]  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_all_that_open_at_a_start_are_one_line(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the number of open connections and the total."""
    async with running_producer(broker, options=FOUR):
        await until(lambda: bool(told(caplog)))
        await turn(20)
        after_start = told(caplog)
        levels = [each.levelname for each in caplog.records if "publisher" in each.getMessage()]

    assert [("connected", "4/4")] == after_start
    assert ["INFO"] == levels, "no line for each of them"


async def test_a_broker_that_goes_and_comes_back_is_told_by_the_sum(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each: no connection left, one again, all again."""
    clock = ManualClock()
    async with running_producer(broker, options=FOUR):
        await until(lambda: bool(told(caplog)))
        await broker.stop()
        await until(lambda: told(caplog)[-1] == ("disconnected", "0/4"))
        lost = len(told(caplog))
        await broker.start()
        while told(caplog)[-1] != ("connected", "4/4"):
            await clock.advance(1.0)
        back = told(caplog)[lost:]

    assert {"connected"} == {event for event, _ in back}
    assert len(back) <= 2


async def test_why_nobody_can_connect_is_told_once(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per outage, however many connections and attempts."""

    def failures() -> list[str]:
        return [each for each in caplog.messages if "nsqd unreachable" in each]

    clock = ManualClock()
    counts = []
    async with running_producer(broker, options=FOUR):
        await until(lambda: told(caplog)[-1:] == [("connected", "4/4")])
        for _ in range(2):
            await broker.stop()
            await until(lambda: told(caplog)[-1] == ("disconnected", "0/4"))
            for _ in range(60):
                await clock.advance(2.0)
            counts.append(len(failures()))
            await broker.start()
            while told(caplog)[-1] != ("connected", "4/4"):
                await clock.advance(1.0)

    assert [1, 2] == counts
    assert all(broker.address in line and "refused" in line for line in failures())


async def test_a_connection_behind_a_refusal_is_no_line(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker closes the connection after each publish that it refuses."""
    broker.on(Publish, refuse_bad_bodies)
    async with running_producer(broker) as publisher:
        await until(lambda: bool(told(caplog)))
        for _ in range(3):
            with pytest.raises(BrokerRefused):
                await publisher.publish("t", b"bad")
        await publisher.publish("t", b"good")

    assert [("connected", "1/1")] == told(caplog)


async def test_connections_of_a_caller_have_the_fingerprint_of_its_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log never has the secret itself."""
    broker = AuthBroker()
    broker.grants = {b"alice-knows": {"t"}}
    await broker.start()
    secret = Secret(b"alice-knows")
    async with running_producer(broker) as publisher:
        await publisher.publish("t", b"1", secret=secret)
        await turn(3)
    await broker.stop()

    [line] = [each for each in caplog.messages if "publisher connected" in each]
    assert secret.fingerprint in line
    assert "alice-knows" not in "".join(caplog.messages)
