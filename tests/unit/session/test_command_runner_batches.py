"""Answers that stand in a row become few actions."""

from __future__ import annotations

import pytest

from gateway.session.command_runner import AckBatch
from gateway.session.types import (
    Action,
    FinishDeliveries,
    RequeueCause,
    RequeueDeliveries,
    TouchDeliveries,
)


@pytest.mark.parametrize(
    "adds, expected",
    [
        ([], []),
        ([("FIN", {1: [b"a"]}, 0), ("FIN", {1: [b"b"]}, 0)], [FinishDeliveries(1, [b"a", b"b"])]),
        (
            [("FIN", {1: [b"a"]}, 0), ("FIN", {2: [b"b"]}, 0), ("FIN", {1: [b"c"]}, 0)],
            [FinishDeliveries(1, [b"a", b"c"]), FinishDeliveries(2, [b"b"])],
        ),
        (
            [("FIN", {1: [b"a"]}, 0), ("TOUCH", {1: [b"b"]}, 0), ("FIN", {1: [b"c"]}, 0)],
            [FinishDeliveries(1, [b"a"]), TouchDeliveries(1, [b"b"]), FinishDeliveries(1, [b"c"])],
        ),
        (
            [("REQ", {1: [b"a"]}, 0), ("REQ", {1: [b"b"]}, 0), ("REQ", {1: [b"c"]}, 5)],
            [
                RequeueDeliveries(1, [b"a", b"b"], 0, RequeueCause.CLIENT),
                RequeueDeliveries(1, [b"c"], 5, RequeueCause.CLIENT),
            ],
        ),
    ],
    ids=["none", "a row", "by source", "a change of verb", "a change of delay"],
)
def test_answers_in_a_row_become_one_action_for_each_source(
    adds: list[tuple[str, dict[int, list[bytes]], int]], expected: list[Action]
) -> None:
    """A row ends where verb or delay changes; in it each source gets one write."""
    actions: list[Action] = []
    acks = AckBatch(actions)

    for verb, ids, delay_ms in adds:
        acks.add(verb, ids, delay_ms)
    acks.flush()

    assert expected == actions


def test_a_flush_leaves_nothing_behind() -> None:
    """What has become an action does not become one again."""
    actions: list[Action] = []
    acks = AckBatch(actions)
    acks.add("FIN", {1: [b"a"]})
    acks.flush()

    acks.flush()

    assert [FinishDeliveries(1, [b"a"])] == actions
