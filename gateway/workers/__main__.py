"""``python -m gateway.workers N``: be a worker; descriptor N is the channel to the supervisor."""

from __future__ import annotations

import socket
import sys

import uvloop

from gateway.garbage import look_seldom_for_garbage
from gateway.workers.worker import work

if __name__ == "__main__":
    look_seldom_for_garbage()
    sys.exit(uvloop.run(work(socket.socket(fileno=int(sys.argv[1])))))
