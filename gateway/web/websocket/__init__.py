"""RFC 6455: handshake, frames, keep-alive."""
