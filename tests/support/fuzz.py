"""Random histories: a few fixed seeds in ordinary runs, new seeds in `make fuzz`."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FUZZ_S = float(os.environ.get("NSQ_GATEWAY_FUZZ_S", "0"))
"""For how long new histories are tried; 0: only those of an ordinary run."""
_SEED = os.environ.get("NSQ_GATEWAY_FUZZ_SEED")


def fuzz_rounds() -> Iterator[int]:
    """Yield 0, which is all of an ordinary run, then 1, 2 and so on for NSQ_GATEWAY_FUZZ_S."""
    ends_at = time.monotonic() + _FUZZ_S
    yield 0
    for number in itertools.count(1):
        if time.monotonic() >= ends_at:
            return
        yield number


def fuzz_seeds(count: int) -> Iterator[int]:
    """
    Yield the seeds 0 to *count* - 1, then random ones for NSQ_GATEWAY_FUZZ_S.

    With NSQ_GATEWAY_FUZZ_SEED, yield only that seed; `print_seed` prints the seed of a failure.
    """
    if _SEED is not None:
        yield int(_SEED)
        return
    for number in fuzz_rounds():
        yield from range(count) if number == 0 else (random.getrandbits(48),)


@contextmanager
def print_seed(seed: int) -> Iterator[None]:
    """Print how to repeat the history of *seed* if it fails."""
    try:
        yield
    except BaseException:
        print(f"NSQ_GATEWAY_FUZZ_SEED={seed}")  # noqa: T201
        raise
