"""The embedded broker: nsqd in Python, with messages in memory or on disk; see `broker.Broker`."""
