"""HTTP and WebSockets: what a browser or a curl sees of the gateway."""
