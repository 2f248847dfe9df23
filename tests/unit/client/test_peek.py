"""How a peek shares out the messages that it takes."""

from __future__ import annotations

import pytest

from gateway.client.peek import share_out


@pytest.mark.parametrize(
    "count,depths,expected",
    [
        (10, [3], [3]),
        (2, [3], [2]),
        (4, [3, 3], [2, 2]),
        (5, [3, 3], [3, 2]),
        (5, [1, 9], [1, 4]),
        (100, [1, 0, 2], [1, 0, 2]),
        (3, [5, 5, 5, 5], [1, 1, 1, 0]),
        (7, [], []),
        # nsqd reports a negative depth while the files of its disk queue are damaged.
        (10, [5, -10], [5, 0]),
        (10, [-10], [0]),
    ],
)
def test_no_more_is_taken_than_is_shown(count: int, depths: list[int], expected: list[int]) -> None:
    """Evenly over the nsqds, and at most what waits there."""
    assert expected == share_out(count, depths)
