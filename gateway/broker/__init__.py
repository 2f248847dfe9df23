"""The embedded broker: nsqd's behaviour on the wire, in memory; `broker.Broker` is its door."""
