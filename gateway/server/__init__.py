"""One process: what it consists of, how it starts, drains and ends."""
