"""Where a process stands in its life."""

from __future__ import annotations

from gateway.lifecycle import LifecycleState, ProcessLifecycle
from gateway.telemetry import REGISTRY


def states() -> list[LifecycleState]:
    """Return the phases that the gauge shows."""
    return [
        phase
        for phase in LifecycleState
        if REGISTRY.get_sample_value("nsq_gateway_state", {"state": phase.value}) == 1
    ]


def test_the_gauge_shows_the_phase_and_no_other() -> None:
    lifecycle = ProcessLifecycle()
    seen = [(lifecycle.state, states())]

    for phase in (LifecycleState.READY, LifecycleState.DRAINING, LifecycleState.STOPPED):
        lifecycle.advance(phase)
        seen.append((lifecycle.state, states()))

    assert [(phase, [phase]) for phase in LifecycleState] == seen


def test_a_phase_that_is_past_does_not_come_back() -> None:
    """A stop may be told twice, and a start may end while a drain has begun."""
    lifecycle = ProcessLifecycle()

    lifecycle.advance(LifecycleState.DRAINING)
    lifecycle.advance(LifecycleState.READY)

    assert (LifecycleState.DRAINING, [LifecycleState.DRAINING]) == (lifecycle.state, states())
