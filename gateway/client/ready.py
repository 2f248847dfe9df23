"""PURE. How a window of messages is split into RDY over the connections of a subscriber."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def shares(window: int, ceilings: Sequence[int], *, turn: int) -> list[int]:
    """
    Split *window* evenly; return one RDY count for each connection.

    Args:
        window: Messages that may be in flight in all; 0 gives zeros.
        ceilings: The max_rdy_count of each connection's broker.
        turn: Which connection gets a remainder first. With more connections than window only
            some can have a message at a time; a turn that grows lets each have its time.

    The counts never sum up to more than *window*. Source: the client-library guide, section RDY
    State; go-nsq, maybeUpdateRDY.
    """
    count = len(ceilings)
    if count == 0:
        return []
    share, remainder = divmod(window, count)
    return [
        min(share + (1 if (index - turn) % count < remainder else 0), ceilings[index])
        for index in range(count)
    ]


def changes(current: Mapping[int, int], wanted: Mapping[int, int]) -> list[tuple[int, int]]:
    """
    Return the (connection, RDY) pairs that lead from *current* to *wanted*; a new one is at 0.

    What sinks comes before what rises, so that the sum never exceeds the window on the way.
    """
    changed = [(key, count) for key, count in wanted.items() if current.get(key, 0) != count]
    changed.sort(key=lambda pair: pair[1] > current.get(pair[0], 0))
    return changed
