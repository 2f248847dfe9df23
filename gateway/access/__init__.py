"""Access: who may do what, by the file of ``--access-file``. The same on every door."""
