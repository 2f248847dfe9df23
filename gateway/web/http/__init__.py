"""HTTP/1.1: connections, and the publish routes."""
