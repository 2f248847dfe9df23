"""PURE. How a window of messages is split into RDY over the connections of a subscription."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from gateway.client.backoff import BackoffLevels, Strategy
from gateway.errors import SettingsError

_RETRY_S = 1.0
"""How long a backoff goes on where no connection is there to end it."""

_RANGES: dict[str, tuple[float, float]] = {
    "low_rdy_idle_timeout_s": (1.0, 300.0),
    "low_rdy_timeout_s": (1.0, 300.0),
    "rdy_redistribute_interval_s": (0.001, 5.0),
    "max_backoff_duration_s": (0.0, 3_600.0),
    "backoff_multiplier_s": (0.0, 3_600.0),
}
"""go-nsq's, config.go."""


def shares(window: int, ceilings: Sequence[int]) -> list[int]:
    """
    Split *window* evenly; return one RDY count for each connection.

    Args:
        window: Messages that may be in flight in all; 0 gives zeros.
        ceilings: The max_rdy_count of each connection's broker.

    The counts never sum up to more than *window*; the first connections get what is left over of
    an even split. Source: the client-library guide, section RDY State.
    """
    if not ceilings:
        return []
    share, remainder = divmod(window, len(ceilings))
    return [
        min(share + (1 if index < remainder else 0), ceiling)
        for index, ceiling in enumerate(ceilings)
    ]


def changes(current: Mapping[int, int], wanted: Mapping[int, int]) -> list[tuple[int, int]]:
    """
    Return the (connection, RDY) pairs that lead from *current* to *wanted*; a new one is at 0.

    What sinks comes before what rises, so that the sum never exceeds the window on the way.
    """
    changed = [(key, count) for key, count in wanted.items() if current.get(key, 0) != count]
    changed.sort(key=lambda pair: pair[1] > current.get(pair[0], 0))
    return changed


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyOptions:
    """When RDY moves to another connection, and how far a consumer backs off (go-nsq's names)."""

    low_rdy_idle_timeout_s: float = 10.0
    """A connection without a message for so long gives its RDY up, where there is not enough."""
    low_rdy_timeout_s: float = 30.0
    """A connection that has held its RDY for so long gives it up, where there is not enough."""
    rdy_redistribute_interval_s: float = 5.0
    """Time between two looks at who gives up and who gets."""
    max_backoff_duration_s: float = 120.0
    """No period of backoff is longer; 0: no backoff."""
    backoff_multiplier_s: float = 1.0
    """Level n of backoff lasts 2^n times this."""
    backoff_strategy: Strategy = "exponential"
    """full_jitter: each period is drawn evenly from below its duration."""

    def __post_init__(self) -> None:
        """Raise SettingsError for what is out of go-nsq's ranges."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _RANGES:
                low, high = _RANGES[field.name]
                if not low <= value <= high:
                    raise SettingsError(field.name, value, allowed=f"{low:g} to {high:g} s")
            elif value not in {"exponential", "full_jitter"}:
                raise SettingsError(field.name, value, allowed="exponential or full_jitter")


class ReadyRow:
    """One connection: the RDY that was written there last, and since when."""

    __slots__ = ("ceiling", "last_message_at", "ready", "ready_since")

    def __init__(self, *, ceiling: int, now: float) -> None:
        self.ceiling = ceiling
        self.ready = 0
        self.ready_since = now
        self.last_message_at = now
        """Whoever reads the connection sets it, once for all that one read brought."""


class ReadyPlan:
    """
    The RDY of every connection of one subscription, over its whole life.

    Each method returns (source, RDY count) pairs, to be written in this order: what sinks comes
    before what rises, so that the sum on the wire is never above the window. A pair is there only
    where the count changes. The owner calls `wake` at `next_wake`, which any other call may move.

    - Normally the window is split evenly, each connection gets at least 1.
    - With more connections than window, some have RDY 1. Every rdy_redistribute_interval_s those
      that have had no message, or have held it for long, give it up to others, drawn at random.
    - `failed` starts a backoff: RDY 0 everywhere for the duration of the level. Then one
      connection, drawn at random, gets RDY 1; its message decides: a failure leads one level up,
      a success one down, both to RDY 0 and the duration of that level, at 0 to the full window.
      During a period the outcomes of earlier messages change nothing.

    Who never calls `failed` is never in backoff. Source: go-nsq, consumer.go.
    """

    __slots__ = (
        "_levels",
        "_options",
        "_random",
        "_redistribute_at",
        "_resume_at",
        "_rows",
        "_window",
    )

    def __init__(self, window: int, options: ReadyOptions, *, random: Callable[[], float]) -> None:
        self._window = window
        self._options = options
        self._random = random
        self._rows: dict[int, ReadyRow] = {}
        """By source, in the order in which they were opened."""
        self._levels = BackoffLevels(
            random,
            multiplier_s=options.backoff_multiplier_s,
            max_duration_s=options.max_backoff_duration_s,
            strategy=options.backoff_strategy,
        )
        self._resume_at: float | None = None
        """When a period of backoff ends; None: there is none."""
        self._redistribute_at: float | None = None

    # What is true now

    @property
    def window(self) -> int:
        """How many messages may be in flight over all connections."""
        return self._window

    @property
    def total(self) -> int:
        """The sum of what was written last."""
        return sum(row.ready for row in self._rows.values())

    @property
    def level(self) -> int:
        """The level of backoff; 0: none."""
        return self._levels.level

    @property
    def in_backoff(self) -> bool:
        """Whether failures hold the flow back: nothing comes, or one message at a time."""
        return self._levels.level > 0

    def ready(self, source: int) -> int:
        """Return the RDY that was written to *source* last, 0 for one that is not open."""
        row = self._rows.get(source)
        return row.ready if row is not None else 0

    def next_wake(self) -> float | None:
        """Return when to call `wake` (monotonic seconds), None while there is nothing to do."""
        return self._resume_at if self._resume_at is not None else self._redistribute_at

    # What happens

    def source_opened(
        self, source: int, *, max_rdy_count: int, now: float
    ) -> list[tuple[int, int]]:
        """Count on *source*, whose broker takes no RDY above *max_rdy_count*."""
        self._rows[source] = ReadyRow(ceiling=max_rdy_count, now=now)
        return self._share(now)

    def source_lost(self, source: int, now: float) -> list[tuple[int, int]]:
        """Count on *source* no more, and share out what it had."""
        self._rows.pop(source, None)
        return self._share(now)

    def set_window(self, count: int, now: float) -> list[tuple[int, int]]:
        """Let *count* messages be in flight over all connections; 0 is a pause."""
        self._window = count
        if not self.in_backoff:
            return self._share(now)
        if count == 0:
            return self._move(dict.fromkeys(self._rows, 0), now)
        if self._resume_at is None and self.total == 0:
            return self._test_the_waters(now)
        return self._move({}, now)

    def row(self, source: int) -> ReadyRow:
        """Return what is known of *source*, which is open."""
        return self._rows[source]

    def succeeded(self, now: float) -> list[tuple[int, int]]:
        """Take note of a FIN; the changes go out before it. Messages answered together: once."""
        if self._levels.level == 0 or self._resume_at is not None:
            return []
        self._levels.sink()
        return self._hold_back(now) if self._levels.level else self._share(now)

    def failed(self, now: float) -> list[tuple[int, int]]:
        """Take note of a REQ with backoff; the changes go out before it."""
        if self._resume_at is not None:
            return []
        self._levels.rise()
        return self._hold_back(now) if self._levels.level else []

    def continued(self, now: float) -> list[tuple[int, int]]:
        """Take note of a REQ without backoff: the level stays, its duration starts anew."""
        if self._levels.level == 0 or self._resume_at is not None:
            return []
        return self._hold_back(now)

    def wake(self, now: float) -> list[tuple[int, int]]:
        """Do what is due; nothing when it is called too early."""
        due = self.next_wake()
        if due is None or now < due:
            return []
        if self._resume_at is not None:
            return self._test_the_waters(now)
        self._redistribute_at = None
        return self._redistribute(now)

    # The even split

    def _share(self, now: float) -> list[tuple[int, int]]:
        """Split the window over all connections, or over some where it is not enough."""
        if self.in_backoff:
            return self._move({}, now)
        if len(self._rows) <= self._window or self._window == 0:
            ceilings = [row.ceiling for row in self._rows.values()]
            counts = shares(self._window, ceilings)
            return self._move(dict(zip(self._rows, counts, strict=True)), now)
        holders = [source for source, row in self._rows.items() if row.ready]
        while len(holders) > self._window:
            self._draw(holders)
        wanted = dict.fromkeys(self._rows, 0) | dict.fromkeys(holders, 1)
        self._give(wanted, self._window - len(holders), last=())
        return self._move(wanted, now)

    # Not enough for all

    def _redistribute(self, now: float) -> list[tuple[int, int]]:
        """Let those that are idle, or have held RDY for long, give it up to others."""
        options = self._options
        wanted = {source: min(row.ready, 1) for source, row in self._rows.items()}
        giving_up = [
            source
            for source, row in self._rows.items()
            if row.ready
            and (
                now - row.last_message_at >= options.low_rdy_idle_timeout_s
                or now - row.ready_since >= options.low_rdy_timeout_s
            )
        ]
        for source in giving_up:
            wanted[source] = 0
        budget = min(self._window, 1) if self.in_backoff else self._window
        self._give(wanted, budget - sum(wanted.values()), last=giving_up)
        for source in giving_up:
            # Where nobody else was left it has its RDY anew, which is not written again.
            self._rows[source].ready_since = now
        return self._move(wanted, now)

    def _give(self, wanted: dict[int, int], count: int, *, last: Sequence[int]) -> None:
        """Give RDY 1 to *count* of those that have none, drawn at random, to *last* at last."""
        at_last = [source for source in last if self._rows[source].ceiling > 0]
        is_last = set(last)
        without = [
            source
            for source, ready in wanted.items()
            if ready == 0 and source not in is_last and self._rows[source].ceiling > 0
        ]
        for _ in range(min(count, len(without) + len(at_last))):
            wanted[self._draw(without or at_last)] = 1

    def _draw(self, sources: list[int]) -> int:
        """Take one out of *sources* at random."""
        return sources.pop(int(self._random() * len(sources)))

    # Backoff

    def _hold_back(self, now: float) -> list[tuple[int, int]]:
        """Start a period of the level that holds: RDY 0 everywhere."""
        self._resume_at = now + self._levels.next_duration_s()
        return self._move(dict.fromkeys(self._rows, 0), now)

    def _test_the_waters(self, now: float) -> list[tuple[int, int]]:
        """End a period: one connection may bring one message, whose outcome decides."""
        self._resume_at = None
        possible = [source for source, row in self._rows.items() if row.ceiling > 0]
        if self._window == 0:
            return self._move({}, now)
        if not possible:
            self._resume_at = now + _RETRY_S
            return self._move({}, now)
        return self._move({self._draw(possible): 1}, now)

    # Writing

    def _move(self, wanted: Mapping[int, int], now: float) -> list[tuple[int, int]]:
        """Take *wanted* as written at *now*, and plan the next look."""
        current = {source: self._rows[source].ready for source in wanted}
        changed = changes(current, wanted)
        for source, count in changed:
            row = self._rows[source]
            row.ready = count
            row.ready_since = now
        if not self._is_scarce:
            self._redistribute_at = None
        elif self._redistribute_at is None:
            self._redistribute_at = now + self._options.rdy_redistribute_interval_s
        return changed

    @property
    def _is_scarce(self) -> bool:
        """Whether RDY has to move from one connection to another."""
        if self._resume_at is not None or self._window == 0:
            return False
        if self.in_backoff:
            # Nobody has it where the one that had it is gone.
            return len(self._rows) > 1 or (len(self._rows) == 1 and self.total == 0)
        return len(self._rows) > self._window
