"""Several processes on one address: `--workers`."""
