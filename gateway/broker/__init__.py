"""The embedded broker: nsqd's protocols in Python, with messages in memory; see `broker.Broker`."""
