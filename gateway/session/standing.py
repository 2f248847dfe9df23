"""What a client is told of its subscription: that it has one, and each change from then on."""

from __future__ import annotations

from collections.abc import Collection

from gateway.session.messages import state_changed, subscribed
from gateway.session.outbox import Outbox


class Standing:
    """How far a client knows where it stands; *sources* are those that are open."""

    __slots__ = ("_is_paused", "_outbox", "_sources", "is_told")

    def __init__(self, outbox: Outbox, sources: Collection[int]) -> None:
        self._outbox = outbox
        self._sources = sources
        self._is_paused = False
        self.is_told = False
        """Whether the client knows that it is subscribed."""

    def tell_subscribed(self, max_in_flight: int, msg_timeout_ms: int) -> None:
        """Tell it that it is subscribed, for the first time."""
        self.is_told = True
        names = (self._outbox.topic, self._outbox.channel)
        self._outbox.add_answer(subscribed(names, max_in_flight, msg_timeout_ms))
        if self._is_paused:
            self.tell_state([])

    def tell_state(self, lost_ids: list[str]) -> None:
        """Tell it how it stands now, and which of its deliveries went with a source."""
        nsqds = len(self._sources)
        self._outbox.add_answer(state_changed(nsqds, lost_ids, is_paused=self._is_paused))

    def pause(self, is_paused: bool) -> bool:  # noqa: FBT001 - a state, as it is told
        """Stand so from now on; return whether that is news to a client that is subscribed."""
        is_news = self.is_told and is_paused is not self._is_paused
        self._is_paused = is_paused
        return is_news
