"""nsq-gateway: HTTP and WebSockets in front of NSQ, with an embedded broker."""

__version__ = "0.1.0"
