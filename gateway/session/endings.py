"""What can end a session by passing of time, and when each of it is due."""

from __future__ import annotations

import math

from gateway.session.actions import Cause, EndReason


class Endings:
    """
    Three clocks: no broker for too long, a client too slow for too long, a close that was begun.

    Moments are monotonic seconds; `math.inf` is never.
    """

    __slots__ = (
        "_broker_outage_s",
        "_close_deadline",
        "_close_reason",
        "_is_wanted",
        "_outage_deadline",
        "_slow_consumer_s",
        "_slow_deadline",
        "due",
        "is_closing",
        "is_slow",
    )

    def __init__(self, *, now: float, slow_consumer_s: float, broker_outage_s: float) -> None:
        self._slow_consumer_s = slow_consumer_s
        self._broker_outage_s = broker_outage_s
        self._outage_deadline = now + broker_outage_s
        self._slow_deadline = math.inf
        self._close_deadline = math.inf
        self._close_reason: EndReason | None = None
        self._is_wanted = False
        """Whether the gateway, too, wants it closed."""
        self.is_slow = False
        """Whether more waits for the client than may."""
        self.is_closing = False
        """Whether no more messages are wanted, and answers only are taken."""
        self.due = self._outage_deadline
        """When the first of the clocks runs out."""

    def _set_due(self) -> None:
        self.due = min(self._outage_deadline, self._slow_deadline, self._close_deadline)

    # No broker

    def broker_came(self) -> None:
        """Stop the clock of the outage."""
        self._outage_deadline = math.inf
        self._set_due()

    def last_broker_went(self, now: float) -> None:
        """Start it."""
        self._outage_deadline = now + self._broker_outage_s
        self._set_due()

    # A slow client

    def client_is_slow(self, now: float) -> None:
        """Start the clock of the slow client."""
        self.is_slow = True
        self._slow_deadline = now + self._slow_consumer_s
        self._set_due()

    def client_has_caught_up(self) -> None:
        """Stop it."""
        self.is_slow = False
        self._slow_deadline = math.inf
        self._set_due()

    # A close

    @property
    def is_asked_by_client(self) -> bool:
        """Whether the client has said CLS."""
        return self._close_reason is EndReason.DONE

    @property
    def cause(self) -> Cause:
        """Why what goes back from now on does, once the socket is to end, or has ended."""
        return Cause.DRAIN if self._is_wanted else Cause.DISCONNECT

    def close_by(self, moment: float, reason: EndReason) -> bool:
        """
        Begin to close: at *moment* at the latest, or when it was to be closed before.

        Returns whether this is the first time that the gateway wants it.
        """
        self.is_closing = True
        self._close_deadline = min(self._close_deadline, moment)
        self._set_due()
        # What the client asks for itself is done as soon as it can be, in a drain as well.
        if self._close_reason is None or reason is EndReason.DONE:
            self._close_reason = reason
        is_news = not self._is_wanted and reason is not EndReason.DONE
        self._is_wanted = self._is_wanted or is_news
        return is_news

    def closed_reason(self, *, is_open: bool, now: float) -> EndReason | None:
        """
        Return why a close that was begun is complete; None while it is not.

        *is_open* tells whether something is to be waited for still.
        """
        # A drain spreads its closes over time, so it waits for its moment in any case.
        waits = is_open or self._close_reason is EndReason.DRAINED
        return None if waits and now < self._close_deadline else self._close_reason

    # Time

    def due_reason(self, now: float) -> EndReason | None:
        """Return what is over because it has lasted too long; None while nothing is."""
        if now >= self._slow_deadline:
            return EndReason.SLOW
        if now >= self._outage_deadline:
            return EndReason.NO_BROKER
        return None
