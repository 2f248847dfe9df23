"""
The state of a process, for the management port, the metrics and the log.

    STARTING ──> READY ──> DRAINING ──> STOPPED

A process never returns to an earlier state. It may skip one: if its start fails, it goes from
STARTING to DRAINING.
"""

from __future__ import annotations

import enum

from gateway.telemetry import gauge, get_logger

logger = get_logger()

_STATE = gauge("state", "1 for the current state of the process, 0 for the others.", ["state"])


class LifecycleState(enum.Enum):
    """The states of a process, in order."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


_ORDER = list(LifecycleState)


class ProcessLifecycle:
    """The current state of this process; the gauge ``state`` shows it."""

    def __init__(self) -> None:
        self._was_ready = False
        self._set(LifecycleState.STARTING)

    @property
    def state(self) -> LifecycleState:
        """The current state."""
        return self._state

    def advance(self, state: LifecycleState) -> None:
        """
        Enter *state* and log it; do nothing if *state* is the current state or an earlier one.

        Before the process has been ready, nothing is logged: who starts it reports a failed start.
        """
        if _ORDER.index(state) <= _ORDER.index(self._state):
            return
        self._set(state)
        self._was_ready = self._was_ready or state is LifecycleState.READY
        if not self._was_ready:
            return
        if state is LifecycleState.READY:
            logger.info("ready")
        elif state is LifecycleState.DRAINING:
            logger.info("draining")
        else:
            logger.info("stopped")

    def _set(self, state: LifecycleState) -> None:
        self._state = state
        # Every state has a series, so that a query never finds one missing.
        for each in LifecycleState:
            _STATE.labels(each.value).set(each is state)
