"""
The gateway, recording the longest pause of its event loop.

A timer runs every millisecond. SIGUSR2 and the end of the program write its longest delay, in
seconds, to the file that the environment variable `FILE` names, and reset it.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from pathlib import Path

import uvloop

from gateway.cli.main import main

FILE = "BENCHMARK_PAUSE_FILE"
EVERY_S = 0.001


class _WatchedLoop(uvloop.Loop):
    """An event loop that records its longest pause."""

    longest_s = 0.0
    _due_s = 0.0

    def run_forever(self) -> None:
        """Run and record."""
        self._again()
        super().run_forever()

    def _again(self) -> None:
        self._due_s = time.monotonic() + EVERY_S
        self.call_later(EVERY_S, self._watch)

    def _watch(self) -> None:
        cls = type(self)
        cls.longest_s = max(cls.longest_s, time.monotonic() - self._due_s)
        self._again()


def _write(*_signal: object) -> None:
    path = Path(os.environ[FILE])
    # Renamed, so that a reader never sees an incomplete file.
    path.with_suffix(".new").write_text(str(_WatchedLoop.longest_s))
    path.with_suffix(".new").rename(path)
    _WatchedLoop.longest_s = 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _write)
    atexit.register(_write)
    vars(uvloop)["Loop"] = _WatchedLoop
    main()
