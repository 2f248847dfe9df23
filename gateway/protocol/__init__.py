"""NSQ V2 in both roles, without I/O: bytes in, events out; commands and frames in, bytes out."""
