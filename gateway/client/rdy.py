"""PURE. Distribute a window of messages as RDY counts over the connections of a subscription."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from gateway.client.backoff import BackoffLevel, Strategy
from gateway.errors import SettingsError

_RETRY_S = 1.0
"""Seconds by which a backoff period is extended if no connection can get RDY 1 at its end."""

SETTLE_S = 0.25
"""
Seconds for which the previous RDY still counts after a lower one was written.

nsqd does not acknowledge RDY. Messages that it sent before it processed the new count may still be
on their way, plus one: its messagePump selects between a message and a changed RDY. The value
exceeds a round trip plus nsqd's output_buffer_timeout (25 ms).
"""

_RANGES: dict[str, tuple[float, float]] = {
    "low_rdy_idle_timeout_s": (1.0, 300.0),
    "low_rdy_timeout_s": (1.0, 300.0),
    "rdy_redistribute_interval_s": (0.001, 5.0),
    "max_backoff_duration_s": (0.0, 3_600.0),
    "backoff_multiplier_s": (0.0, 3_600.0),
}
"""Lowest and highest value of each option, as in go-nsq's config.go."""


def shares(window: int, ceilings: Sequence[int]) -> list[int]:
    """
    Split *window* evenly; return one RDY count for each connection.

    Args:
        window: Maximum messages in flight over all connections; 0 gives zeros.
        ceilings: The max_rdy_count of each connection's nsqd.

    The sum never exceeds *window*; the first connections get the remainder of an even split.
    Source: the client-library guide, section RDY State.
    """
    if not ceilings:
        return []
    share, remainder = divmod(window, len(ceilings))
    return [
        min(share + (1 if index < remainder else 0), ceiling)
        for index, ceiling in enumerate(ceilings)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class RdyOptions:
    """Options for redistributing RDY and for backoff, named as in go-nsq."""

    low_rdy_idle_timeout_s: float = 10.0
    """Idle time after which a connection gives up its RDY, if connections outnumber the window."""
    low_rdy_timeout_s: float = 30.0
    """Time after which a busy connection too gives up RDY, if connections outnumber the window."""
    rdy_redistribute_interval_s: float = 5.0
    """Interval at which RDY moves between connections, if these outnumber the window."""
    max_backoff_duration_s: float = 120.0
    """Maximum duration of one backoff period; 0: no backoff."""
    backoff_multiplier_s: float = 1.0
    """Level n of backoff lasts 2^n times this."""
    backoff_strategy: Strategy = "exponential"
    """full_jitter: each duration is drawn evenly from 0 to that of the level."""

    def __post_init__(self) -> None:
        """Raise SettingsError for a value outside go-nsq's ranges."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _RANGES:
                low, high = _RANGES[field.name]
                if not low <= value <= high:
                    raise SettingsError(field.name, value, allowed=f"{low:g} to {high:g} s")
            elif value not in {"exponential", "full_jitter"}:
                raise SettingsError(field.name, value, allowed="exponential or full_jitter")


class RdyShare:
    """The RDY of one connection: the target, the count written, and what nsqd may still obey."""

    __slots__ = (
        "ceiling",
        "granted",
        "last_message_at",
        "ready",
        "ready_since",
        "settles_at",
        "target",
    )

    def __init__(self, *, ceiling: int, now: float) -> None:
        self.ceiling = ceiling
        """The max_rdy_count of its nsqd."""
        self.target = 0
        """RDY to write as soon as the other connections leave room for it."""
        self.ready = 0
        """The RDY written last."""
        self.ready_since = now
        self.granted = 0
        """Highest RDY under which messages may still arrive; falls to `ready` at `settles_at`."""
        self.settles_at = math.inf
        """When `granted` falls to `ready`, monotonic seconds; infinite until RDY is lowered."""
        self.last_message_at = now
        """Time of the last read with messages; the owner of the connection sets it."""


class RdyDistributor:
    """
    Distribute a window as RDY counts over the connections of one subscription.

    Methods return the changes as (source, RDY count) pairs, to be written in this order: decreases
    precede increases. The owner calls `wake` at the time of `next_wake`, which changes with any
    other call, and `answered` while `is_short`.

    - The window is split evenly; each connection gets at least 1. *in_flight* returns how many
      messages of each source are in flight (neither answered nor timed out at nsqd).
    - The window limits all connections together. A RDY rises only as far as the window has room
      after a reserve for every other connection: the maximum of its messages in flight, its RDY
      and, for `SETTLE_S`, its previous RDY. Further increases follow as messages are answered.
    - After the window has shrunk, a RDY may fall below its share while other connections have more
      messages in flight than theirs. Otherwise it would add its share to their excess.
    - If connections outnumber the window, some have RDY 1 and the others 0. At each
      rdy_redistribute_interval_s, those that were idle or held it for long pass it to others,
      chosen at random.
    - `failed` starts a backoff period: RDY 0 everywhere for the duration of the level. Then one
      random connection gets RDY 1. The failure of its message raises the level, its success lowers
      it. Both start a period of the new level, except that level 0 restores the full window.
      Outcomes during a period are ignored: those messages were delivered before it.

    Without a call of `failed` there is no backoff. Source: go-nsq, consumer.go. It counts RDY but
    not messages in flight, so that two connections can deliver two messages into a window of 1.
    """

    __slots__ = (
        "_answers_due",
        "_backoff",
        "_expected",
        "_in_flight",
        "_is_reading",
        "_options",
        "_random",
        "_recheck_at",
        "_redistribute_at",
        "_resume_at",
        "_shares",
        "_window",
        "is_over",
        "is_short",
    )

    def __init__(
        self,
        window: int,
        options: RdyOptions,
        *,
        random: Callable[[], float],
        in_flight: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._window = window
        self._options = options
        self._random = random
        self._in_flight = in_flight
        self._shares: dict[int, RdyShare] = {}
        """By source, in the order in which they were opened."""
        self._expected = 0
        """Number of connections being opened, for which shares are reserved."""
        self._is_reading = True
        self.is_short = False
        """True while a RDY below its target waits for room in the window."""
        self.is_over = False
        """True while more messages may be in flight than the window, which was made smaller."""
        self._answers_due = 0
        """While `is_short`: minimum number of answers before any RDY can rise."""
        self._recheck_at: float | None = None
        """While `is_short`: when to recompute even without an answer."""
        self._backoff = BackoffLevel(
            random,
            multiplier_s=options.backoff_multiplier_s,
            max_duration_s=options.max_backoff_duration_s,
            strategy=options.backoff_strategy,
        )
        self._resume_at: float | None = None
        """End of the backoff period, monotonic seconds; None outside of one."""
        self._redistribute_at: float | None = None

    # State

    @property
    def window(self) -> int:
        """Maximum messages in flight over all connections."""
        return self._window

    @property
    def total(self) -> int:
        """Sum of the RDY counts written last."""
        return sum(share.ready for share in self._shares.values())

    @property
    def level(self) -> int:
        """Backoff level; 0: no backoff."""
        return self._backoff.value

    @property
    def in_backoff(self) -> bool:
        """True while a backoff is active: no messages, or a single one as a test."""
        return self._backoff.value > 0

    def ready(self, source: int) -> int:
        """Return the RDY written last to *source*; 0 if it is not open."""
        share = self._shares.get(source)
        return share.ready if share is not None else 0

    def next_wake(self) -> float | None:
        """Return when to call `wake` (monotonic seconds); None: not needed."""
        due = self._resume_at if self._resume_at is not None else self._redistribute_at
        if self._recheck_at is None:
            return due
        return self._recheck_at if due is None else min(due, self._recheck_at)

    def has_room_for_late(self, source: int, count: int, now: float) -> bool:
        """
        Return whether *count* messages that arrived from *source* with RDY 0 fit into the window.

        False only if they arrived later than `SETTLE_S` after RDY 0 was written, and the room has
        gone to other connections meanwhile.
        """
        share = self._shares.get(source)
        if share is None or len(self._shares) == 1 or now < share.settles_at:
            return True
        held = self._in_flight()
        others = sum(
            self._most(other, its_share, held)
            for other, its_share in self._shares.items()
            if other != source
        )
        return others + held.get(source, 0) + count <= self._window

    # Events

    def expect(self, count: int, now: float) -> list[tuple[int, int]]:
        """
        Reserve shares for *count* connections whose first attempt to connect is pending.

        Each then gets its share at once. Without the reserve, it would have to wait until the RDY
        of the others is lowered and has settled.
        """
        if count == self._expected:
            return []
        self._expected = count
        return self._split(now)

    def set_reading(self, *, is_reading: bool, now: float) -> list[tuple[int, int]]:
        """Record whether the caller reads from the connections; only then is RDY adjusted."""
        self._is_reading = is_reading
        if is_reading:
            # Messages sent under an earlier RDY may be in the socket buffers: settle from now on.
            for share in self._shares.values():
                if share.granted > share.ready:
                    share.settles_at = now + SETTLE_S
        return self._apply(now)

    def answered(self, count: int, now: float) -> list[tuple[int, int]]:
        """Called, at least while `is_short`, when *count* messages in flight were answered."""
        # A count is cheap; `_apply` iterates over all connections.
        self._answers_due -= count
        return self._apply(now) if self.is_short and self._answers_due <= 0 else []

    def rebalance(self, now: float) -> list[tuple[int, int]]:
        """
        Recompute RDY after the number of messages in flight has changed without an answer.

        Messages may have timed out or, while `is_over`, arrived under an earlier RDY.
        """
        return self._apply(now) if self.is_short or self.is_over else []

    def add_source(
        self, source: int, *, max_rdy_count: int, now: float, expected: int = 0
    ) -> list[tuple[int, int]]:
        """
        Add *source*, whose nsqd accepts no RDY above *max_rdy_count*.

        *expected* more connections are still being opened; see `expect`.
        """
        self._shares[source] = RdyShare(ceiling=max_rdy_count, now=now)
        self._expected = expected
        return self._split(now)

    def remove_source(self, source: int, now: float) -> list[tuple[int, int]]:
        """Remove *source*, and distribute its share to the others."""
        self._shares.pop(source, None)
        return self._split(now)

    def set_window(self, count: int, now: float) -> list[tuple[int, int]]:
        """Limit the messages in flight over all connections to *count*; 0 pauses."""
        # Even with little in flight: `_apply` resets it once the window is known to hold.
        self.is_over = self.is_over or count < self._window
        self._window = count
        if not self.in_backoff:
            return self._split(now)
        if count == 0:
            return self._move(dict.fromkeys(self._shares, 0), now)
        if self._resume_at is None and not any(share.target for share in self._shares.values()):
            # After a pause no connection has RDY, so no message could end the backoff.
            return self._probe(now)
        return self._move({}, now)

    def share_of(self, source: int) -> RdyShare:
        """Return the share of *source*, which is open."""
        return self._shares[source]

    def succeeded(self, now: float) -> list[tuple[int, int]]:
        """Record that messages were finished; the caller writes the changes before their FINs."""
        if self._backoff.value == 0 or self._resume_at is not None:
            return []
        self._backoff.decrease()
        return self._start_period(now) if self._backoff.value else self._split(now)

    def failed(self, now: float) -> list[tuple[int, int]]:
        """Record that messages failed; the caller writes the changes before their REQs."""
        if self._resume_at is not None:
            # One bad moment fails all messages in flight; it must not raise the level for each.
            return []
        self._backoff.increase()
        return self._start_period(now) if self._backoff.value else []

    def continued(self, now: float) -> list[tuple[int, int]]:
        """Record a REQ without backoff: in a backoff, start another period of the same level."""
        if self._backoff.value == 0 or self._resume_at is not None:
            return []
        return self._start_period(now)

    def wake(self, now: float) -> list[tuple[int, int]]:
        """Perform what is due, and return the changes; none if called before `next_wake`."""
        due = self.next_wake()
        if due is None or now < due:
            return []
        if self._resume_at is not None and now >= self._resume_at:
            return self._probe(now)
        if self._redistribute_at is not None and now >= self._redistribute_at:
            self._redistribute_at = None
            return self._redistribute(now)
        return self._apply(now)

    # The even split

    def _split(self, now: float) -> list[tuple[int, int]]:
        """Set targets: an even split, or RDY 1 for some if connections outnumber the window."""
        if self.in_backoff:
            return self._move({}, now)
        if len(self._shares) <= self._window or self._window == 0:
            ceilings = [share.ceiling for share in self._shares.values()]
            # The shares of expected connections are computed and not given to anybody yet.
            counts = shares(self._window, ceilings + [self._window] * self._expected)
            return self._move(dict(zip(self._shares, counts, strict=False)), now)
        # Connections with RDY keep it: moving it would cost each of them `SETTLE_S`.
        holders = [source for source, share in self._shares.items() if share.target]
        # After an even split, or with a smaller window, too many have RDY: random ones lose it.
        while len(holders) > self._window:
            self._draw(holders)
        wanted = dict.fromkeys(self._shares, 0) | dict.fromkeys(holders, 1)
        self._give(wanted, self._window - len(holders), last=())
        return self._move(wanted, now)

    # More connections than window

    def _redistribute(self, now: float) -> list[tuple[int, int]]:
        """
        Move RDY from connections that are idle, or held it for long, to others.

        A connection with a message in flight gives up its RDY too; the next one gets it once that
        message is answered. A connection that still waits for room keeps its turn.
        """
        options = self._options
        wanted = {source: min(share.target, 1) for source, share in self._shares.items()}
        giving_up = [
            source
            for source, share in self._shares.items()
            if share.ready
            and share.target
            and (
                now - share.last_message_at >= options.low_rdy_idle_timeout_s
                or now - share.ready_since >= options.low_rdy_timeout_s
            )
        ]
        for source in giving_up:
            wanted[source] = 0
        budget = min(self._window, 1) if self.in_backoff else self._window
        self._give(wanted, budget - sum(wanted.values()), last=giving_up)
        for source in giving_up:
            # If no other connection took its RDY, it keeps it for another turn, without a write.
            self._shares[source].ready_since = now
        return self._move(wanted, now)

    def _give(self, wanted: dict[int, int], count: int, *, last: Sequence[int]) -> None:
        """Set *wanted* to 1 for *count* random sources without RDY; prefer those not in *last*."""
        at_last = [source for source in last if self._shares[source].ceiling > 0]
        is_last = set(last)
        without = [
            source
            for source, ready in wanted.items()
            if ready == 0 and source not in is_last and self._shares[source].ceiling > 0
        ]
        for _ in range(min(count, len(without) + len(at_last))):
            wanted[self._draw(without or at_last)] = 1

    def _draw(self, sources: list[int]) -> int:
        """Remove and return a random one of *sources*."""
        return sources.pop(int(self._random() * len(sources)))

    # Backoff

    def _start_period(self, now: float) -> list[tuple[int, int]]:
        """Start a backoff period of the current level: RDY 0 everywhere."""
        self._resume_at = now + self._backoff.next_duration_s()
        return self._move(dict.fromkeys(self._shares, 0), now)

    def _probe(self, now: float) -> list[tuple[int, int]]:
        """End a backoff period: give RDY 1 to one random connection, as a test with one message."""
        self._resume_at = None
        possible = [source for source, share in self._shares.items() if share.ceiling > 0]
        if self._window == 0:
            return self._move({}, now)
        if not possible:
            # No message could end the backoff, so the period is extended.
            self._resume_at = now + _RETRY_S
            return self._move({}, now)
        return self._move({self._draw(possible): 1}, now)

    # Writing

    def _move(self, wanted: Mapping[int, int], now: float) -> list[tuple[int, int]]:
        """Set targets to *wanted*, apply them as far as possible, and schedule redistribution."""
        for source, count in wanted.items():
            self._shares[source].target = count
        changed = self._apply(now)
        if not self._is_scarce:
            self._redistribute_at = None
        elif self._redistribute_at is None:
            self._redistribute_at = now + self._options.rdy_redistribute_interval_s
        return changed

    def _apply(self, now: float) -> list[tuple[int, int]]:
        """Move each RDY to its target, as far as the window has room; return the changes."""
        changed: list[tuple[int, int]] = []
        for share in self._shares.values():
            if share.settles_at <= now and self._is_reading:
                share.granted = share.ready
        # With one connection nsqd enforces the window itself: it sends nothing while its messages
        # in flight are not below RDY (nsqd/client_v2.go, IsReadyForMessages).
        self.is_over = self.is_over and len(self._shares) > 1
        held = self._in_flight() if self.is_over else {}
        # Decreases first: they make the room that increases need.
        for source, count in self._lowered(held).items():
            share = self._shares[source]
            if count < share.ready:
                share.ready = count
                share.ready_since = now
                # `granted` stays: nsqd may have sent messages under the earlier RDY.
                share.settles_at = now + SETTLE_S
                changed.append((source, count))
        if self.is_over:
            self.is_over = self._room(held) < 0
        self.is_short = False
        self._recheck_at = None
        waiting = [each for each in self._shares.items() if each[1].target > each[1].ready]
        if waiting:
            if len(self._shares) > 1:
                held = held or self._in_flight()
            changed += self._raise(waiting, held, now)
        return changed

    def _lowered(self, held: Mapping[int, int]) -> dict[int, int]:
        """
        Return the RDY of each source, lowered to its target and, while `is_over`, to what fits.

        What fits: the window has room for this RDY and for all messages that the other sources may
        have in flight. *held* is the number of messages in flight by source.
        """
        ready = {source: min(share.ready, share.target) for source, share in self._shares.items()}
        if not self.is_over:
            return ready
        # Messages that a lower RDY cannot prevent; while reading is paused, all that were granted.
        there = {
            source: held.get(source, 0) if self._is_reading else self._most(source, share, held)
            for source, share in self._shares.items()
        }
        left = self._window - sum(there.values())
        if left < 0:
            # Below its messages in flight by the excess: each connection then gets its next
            # message only after so many answers that the window holds again.
            return {source: min(ready[source], max(0, there[source] + left)) for source in ready}
        # Smallest need first, so that what it leaves of its part is split among the others.
        more = sorted((ready[source] - there[source], source) for source in ready)
        for index, (count, source) in enumerate(more):
            if count > 0:
                fits = min(count, left // (len(more) - index))
                ready[source] = there[source] + fits
                left -= fits
        return ready

    def _room(self, held: Mapping[int, int]) -> int:
        """Return the unused part of the window, negative if it is exceeded."""
        return self._window - sum(
            self._most(source, share, held) for source, share in self._shares.items()
        )

    def _raise(
        self, waiting: list[tuple[int, RdyShare]], held: Mapping[int, int], now: float
    ) -> list[tuple[int, int]]:
        """Raise the RDY of *waiting* as far as the window has room, those without RDY first."""
        changed: list[tuple[int, int]] = []
        room = self._room(held) if len(self._shares) > 1 else self._window
        if room < sum(share.target - share.ready for _, share in waiting):
            # Those at RDY 0 first: they receive nothing at all.
            waiting.sort(key=lambda pair: pair[1].ready)
        answers_due: list[int] = []
        for source, share in waiting:
            most = self._most(source, share, held)
            # With negative room, not even the messages that it may already send fit.
            count = min(share.target, most + room)
            # In quarters: otherwise every answer on another connection would cause a RDY here.
            step = min(share.target - share.ready, max(1, share.target // 4)) if share.ready else 1
            if count - share.ready >= step:
                room -= max(0, count - most)
                share.ready = count
                share.ready_since = now
                share.granted = max(share.granted, count)
                changed.append((source, count))
            if share.ready < share.target:
                next_step = max(1, share.target // 4) if share.ready else 1
                next_ready = min(share.ready + next_step, share.target)
                answers_due.append(next_ready - max(most, share.ready))
        if answers_due:
            self.is_short = True
            self._answers_due = min(answers_due) - room
            unsettled = [share for share in self._shares.values() if share.granted > share.ready]
            settled = [share.settles_at for share in unsettled if self._is_reading]
            # At the latest after the redistribute interval: messages that time out at nsqd free
            # room, and nothing reports them here.
            self._recheck_at = min([now + self._options.rdy_redistribute_interval_s, *settled])
        return changed

    @staticmethod
    def _most(source: int, share: RdyShare, held: Mapping[int, int]) -> int:
        """Return the most messages that *source* may have in flight before it gets another RDY."""
        return max(share.granted, held.get(source, 0))

    @property
    def _is_scarce(self) -> bool:
        """True if RDY has to rotate between connections, because some have none."""
        if self._resume_at is not None or self._window == 0:
            return False
        if self.in_backoff:
            # No connection has RDY if the one that had it was lost.
            has_none = not any(share.target for share in self._shares.values())
            return len(self._shares) > 1 or (len(self._shares) == 1 and has_none)
        return len(self._shares) > self._window
