"""How often a process looks for garbage."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from gateway.garbage import look_seldom_for_garbage
before = gc.get_freeze_count()
look_seldom_for_garbage()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
kept = [[number] for number in range(300_000)]
cycle = []
cycle.append(cycle)
print(before, gc.get_freeze_count() > 1_000, 2 in looks, 1 in looks)
"""


def test_nobody_waits_for_a_look_at_everything() -> None:
    """Three hundred thousand objects, as ten thousand sockets have, begin none."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True
    )

    assert "0 True False True" == run.stdout.strip()
