"""Answers that stand in a row become few actions."""

from __future__ import annotations

import pytest

from gateway.session.actions import Acks, Action, Cause, Finish, Requeue, Touch


@pytest.mark.parametrize(
    "adds, expected",
    [
        ([], []),
        ([("FIN", {1: [b"a"]}, 0), ("FIN", {1: [b"b"]}, 0)], [Finish(1, [b"a", b"b"])]),
        (
            [("FIN", {1: [b"a"]}, 0), ("FIN", {2: [b"b"]}, 0), ("FIN", {1: [b"c"]}, 0)],
            [Finish(1, [b"a", b"c"]), Finish(2, [b"b"])],
        ),
        (
            [("FIN", {1: [b"a"]}, 0), ("TOUCH", {1: [b"b"]}, 0), ("FIN", {1: [b"c"]}, 0)],
            [Finish(1, [b"a"]), Touch(1, [b"b"]), Finish(1, [b"c"])],
        ),
        (
            [("REQ", {1: [b"a"]}, 0), ("REQ", {1: [b"b"]}, 0), ("REQ", {1: [b"c"]}, 5)],
            [Requeue(1, [b"a", b"b"], 0, Cause.CLIENT), Requeue(1, [b"c"], 5, Cause.CLIENT)],
        ),
    ],
    ids=["none", "a row", "by source", "a change of verb", "a change of delay"],
)
def test_answers_in_a_row_become_one_action_for_each_source(
    adds: list[tuple[str, dict[int, list[bytes]], int]], expected: list[Action]
) -> None:
    """A row ends where verb or delay changes; in it each source gets one write."""
    actions: list[Action] = []
    acks = Acks(actions)

    for verb, ids, delay_ms in adds:
        acks.add(verb, ids, delay_ms)
    acks.flush()

    assert expected == actions


def test_a_flush_leaves_nothing_behind() -> None:
    """What has become an action does not become one again."""
    actions: list[Action] = []
    acks = Acks(actions)
    acks.add("FIN", {1: [b"a"]})
    acks.flush()

    acks.flush()

    assert [Finish(1, [b"a"])] == actions
