"""Metrics as text, in turns: who scrapes does not hold up who is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_TURN_S = 0.002
"""After so long others have their turn; one family of metrics more at most."""
_END = b"# EOF\n"
"""The last line of OpenMetrics."""


class _One(Collector):
    """A registry of a single family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield self._metric


async def exposition(collector: Collector, accept: str) -> tuple[bytes, str]:
    """
    Return what *collector* has, and the type of that, as the request header *accept* wants it.

    OpenMetrics where it is asked for, which alone has exemplars; else the text format 0.0.4.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = choose_encoder("")
    parts = []
    has_end = False
    began_at = time.perf_counter()
    for metric in collector.collect():
        part = encode(_One(metric))
        has_end = part.endswith(_END)
        parts.append(part.removesuffix(_END))
        if time.perf_counter() - began_at > _TURN_S:
            await asyncio.sleep(0)
            began_at = time.perf_counter()
    if has_end:
        parts.append(_END)
    return b"".join(parts), content_type
