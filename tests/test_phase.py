"""Where a process stands in its life."""

from __future__ import annotations

from gateway.phase import Phase, Stand
from gateway.telemetry import REGISTRY


def states() -> list[Phase]:
    """Return the phases that the gauge shows."""
    return [
        phase
        for phase in Phase
        if REGISTRY.get_sample_value("nsq_gateway_state", {"state": phase.value}) == 1
    ]


def test_the_gauge_shows_the_phase_and_no_other() -> None:
    """From the start on, and at every step."""
    stand = Stand()
    seen = [(stand.phase, states())]

    for phase in (Phase.READY, Phase.DRAINING, Phase.STOPPED):
        stand.enter(phase)
        seen.append((stand.phase, states()))

    assert [(phase, [phase]) for phase in Phase] == seen


def test_a_phase_that_is_past_does_not_come_back() -> None:
    """A stop may be told twice, and a start may end while a drain has begun."""
    stand = Stand()

    stand.enter(Phase.DRAINING)
    stand.enter(Phase.READY)

    assert (Phase.DRAINING, [Phase.DRAINING]) == (stand.phase, states())
