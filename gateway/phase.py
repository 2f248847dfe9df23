"""Where a process stands in its life: a `Phase`, kept by a `Stand`."""

from __future__ import annotations

import enum

from gateway.telemetry import gauge

_STATE = gauge("state", "1 for the phase of this process's life, 0 for the others.", ["state"])


class Phase(enum.Enum):
    """Where a process stands in its life, in this order."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


_ORDER = list(Phase)


class Stand:
    """The phase of one process; the gauge ``state`` shows it."""

    def __init__(self) -> None:
        self._show(Phase.STARTING)

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Stand at *phase* from now on; one that is past does not come back."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._show(phase)

    def _show(self, phase: Phase) -> None:
        self._phase = phase
        for each in Phase:
            _STATE.labels(each.value).set(each is phase)
