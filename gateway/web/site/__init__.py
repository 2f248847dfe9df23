"""Console, documents and static files."""
