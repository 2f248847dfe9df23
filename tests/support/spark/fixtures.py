"""Fixtures of the pipeline's tests: a broker for each test, and one Spark shared by all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.spark.kills import channel_of
from tests.support.spark.program import SparkProgram
from tests.support.spark.shared_spark import SharedSpark

__all__ = [
    "broker",
    "http",
    "shared_spark",
    "spark",
]
"""What a conftest.py gets; others import by name."""


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """Return the holder of the Spark program that all tests of this process share."""
    with SharedSpark(tmp_path_factory.mktemp("spark")) as house:
        yield house


@pytest.fixture
def spark(shared_spark: SharedSpark) -> Iterator[SparkProgram]:
    """Return the shared program on Spark; no query runs in it before or after the test."""
    program = shared_spark.program()
    yield program
    shared_spark.tidy()


@pytest.fixture(params=["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[KillableBroker]:
    """Return a broker in its own process; the test runs with both kinds unless it names one."""
    async with killable_broker(request.param) as running:
        yield running


@pytest.fixture
async def http(broker: KillableBroker) -> AsyncIterator[httpx.AsyncClient]:
    async with channel_of(broker) as client:
        yield client
