"""NSQ on Spark: the format `nsq`, and the jobs on top of it."""

FORMAT = "nsq"
"""What stands in `format(…)`."""
