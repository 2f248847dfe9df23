"""One Spark for the tests here that need it: its JVM starts with the first of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.spark_house import SparkHouse
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
