"""Tuning of the garbage collector."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from gateway.server.runner import tune_gc
before = gc.get_freeze_count()
tune_gc()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
kept = [[number] for number in range(300_000)]
cycle = []
cycle.append(cycle)
print(before, gc.get_freeze_count() > 1_000, 2 in looks, 1 in looks)
"""


def test_nobody_waits_for_a_look_at_everything() -> None:
    """300 000 new objects, as of ten thousand sockets, start no full collection."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True
    )

    assert "0 True False True" == run.stdout.strip()
