"""HTTP and WebSockets: the public port and the management port of the gateway."""
