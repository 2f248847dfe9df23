"""What can end a session by passing of time, and when each of it is due."""

from __future__ import annotations

from gateway.session.actions import EndReason


class Endings:
    """
    Three clocks: no broker for too long, a client too slow for too long, a close that was begun.

    Moments are monotonic seconds.
    """

    def __init__(self, *, now: float, slow_consumer_s: float, broker_outage_s: float) -> None:
        self._slow_consumer_s = slow_consumer_s
        self._broker_outage_s = broker_outage_s
        self._alone_since: float | None = now
        self._slow_since: float | None = None
        self._close_deadline: float | None = None
        self._close_reason: EndReason | None = None

    # No broker

    def broker_came(self) -> None:
        """Stop the clock of the outage."""
        self._alone_since = None

    def last_broker_went(self, now: float) -> None:
        """Start it."""
        self._alone_since = now

    # A slow client

    @property
    def is_slow(self) -> bool:
        """Whether more waits for the client than may."""
        return self._slow_since is not None

    def client_is_slow(self, now: float) -> None:
        """Start the clock of the slow client."""
        self._slow_since = now

    def client_has_caught_up(self) -> None:
        """Stop it."""
        self._slow_since = None

    # A close

    @property
    def is_closing(self) -> bool:
        """Whether no more messages are wanted, and answers only are taken."""
        return self._close_deadline is not None

    @property
    def is_asked_by_client(self) -> bool:
        """Whether the client has said CLS."""
        return self._close_reason is EndReason.DONE

    def close_by(self, moment: float, reason: EndReason) -> None:
        """Begin to close: at *moment* at the latest, or when it was to be closed before."""
        if self._close_deadline is None or moment < self._close_deadline:
            self._close_deadline = moment
        # What the client asks for itself is done as soon as it can be, in a drain as well.
        if not self.is_asked_by_client:
            self._close_reason = reason

    def closed_reason(self, *, in_flight: int, now: float) -> EndReason | None:
        """Return why a close that was begun is complete; None while it is not."""
        if self._close_deadline is None:
            return None
        # A drain spreads its closes over time, so it waits for its moment in any case.
        waits = in_flight > 0 or self._close_reason is EndReason.DRAINED
        return None if waits and now < self._close_deadline else self._close_reason

    # Time

    def due_reason(self, now: float) -> EndReason | None:
        """Return what is over because it has lasted too long; None while nothing is."""
        if self._slow_since is not None and now >= self._slow_since + self._slow_consumer_s:
            return EndReason.SLOW
        if self._alone_since is not None and now >= self._alone_since + self._broker_outage_s:
            return EndReason.NO_BROKER
        return None

    def next_moment(self) -> float | None:
        """Return when one of the clocks runs out; None while none runs."""
        due = []
        if self._close_deadline is not None:
            due.append(self._close_deadline)
        if self._slow_since is not None:
            due.append(self._slow_since + self._slow_consumer_s)
        if self._alone_since is not None:
            due.append(self._alone_since + self._broker_outage_s)
        return min(due, default=None)
