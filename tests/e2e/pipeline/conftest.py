"""Fixtures of the pipeline: a broker for each test."""

from __future__ import annotations

from tests.support.spark.fixtures import broker, http, shared_spark, spark

__all__ = ["broker", "http", "shared_spark", "spark"]
