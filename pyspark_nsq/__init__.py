"""Register the format `nsq`: Spark imports modules named pyspark_* and uses their DefaultSource."""

from gateway.pipeline.datasource import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
