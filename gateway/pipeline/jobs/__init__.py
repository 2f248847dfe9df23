"""The Spark jobs archive, compact, vacuum, metrics and replay, and what they share."""
