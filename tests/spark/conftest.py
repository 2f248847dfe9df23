"""Fixtures of the pipeline: a broker for each test, and one Spark shared by all."""

from __future__ import annotations

from tests.support.spark.fixtures import broker, http, shared_spark, spark

__all__ = ["broker", "http", "shared_spark", "spark"]
