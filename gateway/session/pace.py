"""How fast a client may say commands."""

from __future__ import annotations

import math

BURST_S = 1.0
"""What so many seconds allow may come at once."""
MAX_DEBT_S = 5.0
"""More than this beyond what is allowed, at once, and the socket is closed."""


class Pace:
    """
    Commands against a rate, in seconds: each takes its part of a second.

    Who has used up what it may is in debt, until the time has passed that its commands take.
    """

    __slots__ = ("_command_s", "paid_at")

    def __init__(self, limit_per_s: int) -> None:
        self._command_s = 1 / limit_per_s if limit_per_s else 0.0
        self.paid_at = -math.inf
        """Until when there is a debt, monotonic seconds."""

    def charge(self, commands: int, now: float) -> None:
        """Count *commands*."""
        self.paid_at = max(self.paid_at, now - BURST_S) + commands * self._command_s

    def debt_s(self, commands: int, now: float) -> float:
        """Return the debt if so many *commands* came on top; below 0: there is none."""
        return max(self.paid_at, now - BURST_S) + commands * self._command_s - now
