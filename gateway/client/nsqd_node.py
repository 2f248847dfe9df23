"""State of one nsqd that all producer pools share: bytes held for it, suspicion, log lines."""

from __future__ import annotations

REFUSAL_S = 5.0
"""Minimum seconds for which publishes avoid an nsqd that refused to store a message."""
_MAX_LOGGED_REASONS = 8
"""Maximum number of different connect failures logged for one nsqd during one outage."""
_REFUSAL_LOG_S = 60.0
"""Minimum seconds between log lines of one nsqd about refusals with the same code."""
_MAX_LOGGED_CODES = 16
"""Maximum number of different codes of refusals logged for one nsqd; nsqd has fewer."""


class NsqdNode:
    """State of one nsqd, shared by all pools."""

    __slots__ = (
        "_logged_reasons",
        "_refusals_logged_at",
        "address",
        "held_bytes",
        "is_draining",
        "limit_bytes",
        "requires_auth",
        "suspect_since",
    )

    def __init__(self, address: str, *, limit_bytes: int) -> None:
        self.address = address
        """TCP host:port."""
        self.limit_bytes = limit_bytes
        """Maximum of `held_bytes`; beyond this, publishes go to other nsqds."""
        self.held_bytes = 0
        """Bytes of publishes that are queued for it, or written and unanswered."""
        self.is_draining = False
        """True while it gets no publishes, so that it can be removed; see `node_drains`."""
        self.requires_auth = False
        """True if its last IDENTIFY response required AUTH."""
        self.suspect_since: float | None = None
        """Bytes received after this time (monotonic) end the suspicion; None: not suspect."""
        self._logged_reasons: set[str] = set()
        """Connect failures logged since the last successful connect."""
        self._refusals_logged_at: dict[str, float] = {}
        """By code, when a refusal with it was logged last (monotonic)."""

    @property
    def is_suspect(self) -> bool:
        """True if publishes should prefer another nsqd."""
        return self.suspect_since is not None

    @property
    def is_avoided(self) -> bool:
        """True if publishes should go to another nsqd: this one is suspect, or draining."""
        return self.is_draining or self.suspect_since is not None

    def has_room(self, size_bytes: int) -> bool:
        """Return whether *size_bytes* more stay within `limit_bytes`."""
        return self.held_bytes + size_bytes <= self.limit_bytes

    def mark_suspect(self, now: float) -> None:
        """Avoid this nsqd until bytes are received from it after *now*."""
        # Never set back: after a refusal it is in the future.
        if self.suspect_since is None or self.suspect_since < now:
            self.suspect_since = now

    def mark_refusing(self, now: float) -> None:
        """Avoid this nsqd for `REFUSAL_S`, and then until bytes are received from it."""
        self.mark_suspect(now + REFUSAL_S)

    def mark_alive(self, at: float) -> None:
        """Called when bytes were received *at* a time: end a suspicion that began before it."""
        if self.suspect_since is not None and at >= self.suspect_since:
            self.suspect_since = None

    def on_connected(self) -> None:
        """Called after a successful connect: from now on, `should_log` accepts any reason again."""
        self._logged_reasons.clear()

    def should_log(self, reason: str) -> bool:
        """Return whether a connect failure for *reason* is the first since the last success."""
        if reason in self._logged_reasons or len(self._logged_reasons) >= _MAX_LOGGED_REASONS:
            return False
        self._logged_reasons.add(reason)
        return True

    def should_log_refusal(self, code: str, now: float) -> bool:
        """Return whether no refusal with *code* was logged within `_REFUSAL_LOG_S` before *now*."""
        logged_at = self._refusals_logged_at.get(code)
        if logged_at is None:
            if len(self._refusals_logged_at) >= _MAX_LOGGED_CODES:
                return False
        elif now - logged_at < _REFUSAL_LOG_S:
            return False
        self._refusals_logged_at[code] = now
        return True
