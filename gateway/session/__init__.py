"""The JSON contract with one WebSocket subscriber, without I/O."""
