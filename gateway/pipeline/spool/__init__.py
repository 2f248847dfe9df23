"""The spool: files in which messages are durable between nsqd and Spark."""
