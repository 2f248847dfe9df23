"""Spark looks for modules named pyspark_* and registers what they call DefaultSource."""

from gateway.pipeline.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
