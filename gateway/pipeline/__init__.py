"""NSQ on Spark: the data source format `nsq`, and the jobs that use it."""

FORMAT = "nsq"
"""Name of the format, for `spark.readStream.format(…)`."""
