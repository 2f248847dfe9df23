"""A broker of a test's own, and one Spark for all that need it: its JVM starts with the first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.support.mortal_broker import MortalBroker, mortal_broker
from tests.support.spark_house import SparkHouse
from tests.support.spark_kills import channel_of
from tests.support.spark_program import SparkProgram


@pytest.fixture(scope="session")
def spark_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHouse]:
    """Return what keeps a program on Spark for all tests of this process."""
    with SparkHouse(tmp_path_factory.mktemp("spark")) as house:
        yield house


@pytest.fixture
def spark(spark_house: SparkHouse) -> Iterator[SparkProgram]:
    """Return a program on Spark that others have used; no query runs in it, now or afterwards."""
    program = spark_house.program()
    yield program
    spark_house.tidy()


@pytest.fixture(params=["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[MortalBroker]:
    """Return a broker in a process of its own, of both kinds unless a test names one."""
    async with mortal_broker(request.param) as running:
        yield running


@pytest.fixture
async def http(broker: MortalBroker) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of its HTTP; the channel is there."""
    async with channel_of(broker) as client:
        yield client
