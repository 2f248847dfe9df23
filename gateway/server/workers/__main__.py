"""Run a worker: `python -m gateway.server.workers FD`, the descriptor of its channel."""

from __future__ import annotations

import socket
import sys

import uvloop

from gateway.server.runner import tune_gc
from gateway.server.workers.worker import work

if __name__ == "__main__":
    tune_gc()
    sys.exit(uvloop.run(work(socket.socket(fileno=int(sys.argv[1])))))
