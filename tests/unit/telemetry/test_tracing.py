"""Traces: sampling, limits, and suppressed errors."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from gateway.telemetry.tracing import (
    _MAX_SAMPLED_PER_S,
    _MAX_TRACES_PER_S,
    SuppressErrors,
    TraceParent,
)
from tests.support.gateways.recorded_spans import RecordedSpans, broken_tracing


def test_a_failure_goes_no_further_and_is_told_once() -> None:
    """The first error is logged with its traceback, later ones are not."""
    harmless = SuppressErrors()
    with capture_logs() as lines:
        for _ in range(2):
            with harmless:
                raise RuntimeError("a mistake")

    [line] = lines
    assert ("error", "a mistake") == (line["log_level"], str(line["exc_info"]))


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_what_is_no_failure_goes_on(error: type[BaseException]) -> None:
    """Cancellation and exit are not suppressed."""
    with pytest.raises(error), SuppressErrors():
        raise error


@pytest.mark.parametrize(
    "parent,limit",
    [(TraceParent(1, 1, is_sampled=True), _MAX_TRACES_PER_S), (None, _MAX_SAMPLED_PER_S)],
    ids=["asked for", "drawn"],
)
def test_how_many_begin_in_a_second_is_bounded(
    parent: TraceParent | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers decide about traceparents; each second has its own limit."""
    now = 10.0
    monkeypatch.setattr("gateway.telemetry.tracing.time.monotonic", lambda: now)
    tracing = RecordedSpans(ratio=1.0).tracing
    first = sum(tracing.should_trace(parent) for _ in range(2 * limit))
    now = 11.0

    assert (limit, True) == (first, tracing.should_trace(parent))


@pytest.mark.parametrize(
    "ratio,drawn",
    [(0.0, (0, 0)), (1.0, (_MAX_SAMPLED_PER_S, _MAX_SAMPLED_PER_S)), (1 / 64, (15, 45))],
)
def test_a_share_is_drawn(
    ratio: float, drawn: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """About the given ratio of 2 000 requests is sampled, at random positions."""
    monkeypatch.setattr("gateway.telemetry.tracing.time.monotonic", lambda: 10.0)
    random.seed(ratio)
    tracing = RecordedSpans(ratio=ratio).tracing
    count = sum(tracing.sample() for _ in range(2_000))

    assert drawn[0] <= count <= drawn[1]


def test_a_span_that_cannot_begin_is_none() -> None:
    with capture_logs():
        assert broken_tracing().begin("a", "server", None, {}) is None


def test_a_span_ends_though_what_it_is_told_cannot_be_kept() -> None:
    """An invalid attribute does not prevent the end of the span."""
    recorded = RecordedSpans()
    span = recorded.tracing.begin("a", "server", None, {})
    assert span is not None
    with capture_logs() as lines:
        span.end(7)  # type: ignore[arg-type]

    assert (["a"], 1) == ([each.name for each in recorded.ended], len(lines))
