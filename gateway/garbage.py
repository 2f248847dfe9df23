"""
How often the process looks for garbage: seldom, for it stands still meanwhile.

What is no part of a cycle goes at once, by its count of references; a look is for cycles alone. One
over everything takes some 200 ms with ten thousand sockets, in which nobody is served
(docs/decisions/0009-seldom-garbage.md).
"""

from __future__ import annotations

import gc

_THRESHOLDS = 10_000, 5, 100
"""After so many new objects a look at these; each fifth time at all young ones; and at all there
are after five million."""


def look_seldom_for_garbage() -> None:
    """Leave what is there now out of every look, and look seldom; for the begin of a program."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
