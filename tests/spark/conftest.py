"""Fixtures of the pipeline: a broker for each test, and one Spark shared by all."""

from tests.support.spark.fixtures import *  # noqa: F403  # fixtures are found by their names
