"""POST /pub through two worker processes, compared with one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.harness import KEPT_MESSAGES, gateway, real_nsqd
from benchmarks.publish import Load, ask_for, row
from benchmarks.table import Benchmark, Row, in_turn

_WORKERS = 2
_LOAD = Load("/pub", 64, 200)
_GOAL = 1.0
"""Not slower: the workers share the cores with nsqd and the load generator."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, rounds = (1, 1) if quick else (3, 5)
    about = (
        f"serve --workers {_WORKERS} beside one process, each in front of an nsqd of its own, "
        f"keep-alive, wrk with one thread, {rounds} × {seconds} s each; every answer is 200 and "
        "counted by nsqd; CPU of all processes of the gateway"
    )
    return Benchmark(about, _rows(seconds, rounds))


def _rows(seconds: int, rounds: int) -> Iterator[Row]:
    with (
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as behind,
        gateway(behind, f"--workers={_WORKERS}") as ours,
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as behind_one,
        gateway(behind_one) as one,
    ):
        sides = {
            "workers": partial(ask_for, _LOAD, ours, behind, seconds),
            "one": partial(ask_for, _LOAD, one, behind_one, seconds),
        }
        spent = in_turn(sides, rounds=rounds)
    name = f"{_WORKERS} workers ÷ one process: {_LOAD.name}"
    yield row(name, spent["workers"], spent["one"], goal=_GOAL)
