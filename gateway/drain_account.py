"""What a drain came to: counted as it goes on, told in the log at its end."""

from __future__ import annotations

import time
from collections import Counter
from typing import Literal, TypeAlias, get_args

from gateway.telemetry import counter, gauge, get_logger

logger = get_logger()

Kind: TypeAlias = Literal["sockets", "messages", "requests"]
"""What an end may cut: sockets that the drain did not wait for, messages that were not handed back,
requests that got no answer."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_CUT = counter(
    "drain_cut_total",
    "What was cut short: sockets, messages that were not handed back, requests without an answer.",
    ["kind"],
)
_DURATION = gauge("drain_duration_seconds", "How long the drain took; 0 before it is over.")


class DrainAccount:
    """What became of those who were connected when a process was told to end; `tell` it last."""

    def __init__(self) -> None:
        self.drained = 0
        """Sockets that went in good order."""
        self.handed_back = 0
        """Messages that went back to NSQ with sockets, those that were cut included."""
        self._cut: Counter[Kind] = Counter()
        self._began_at_s: float | None = None
        self._took_s = 0.0
        self._is_told = False

    def begin(self) -> None:
        """Count the time from now on."""
        self._began_at_s = time.monotonic()
        for kind in KINDS:
            _CUT.labels(kind)

    def end(self) -> None:
        """Count it no more: what is left is cut."""
        if self._began_at_s is not None:
            self._took_s = time.monotonic() - self._began_at_s
            _DURATION.set(self._took_s)

    def cut(self, kind: Kind, count: int) -> None:
        """Count what was not waited for."""
        self._cut[kind] += count
        _CUT.labels(kind).inc(count)

    def tell(self) -> None:
        """Log it, once; nothing where no drain has begun."""
        if self._is_told or self._began_at_s is None:
            return
        self._is_told = True
        logger.info(
            "drained",
            sockets=self.drained,
            handed_back=self.handed_back,
            **{f"cut_{kind}": self._cut[kind] for kind in KINDS},
            took_s=round(self._took_s, 3),
        )
