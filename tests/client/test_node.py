"""What all connections to one nsqd share."""

from __future__ import annotations

import pytest

from gateway.client.node import Node


@pytest.mark.parametrize("size_bytes, expected", [(40, True), (41, False)])
def test_a_node_has_room_up_to_its_limit(size_bytes: int, expected: bool) -> None:  # noqa: FBT001
    """To the byte, beside what is held for it."""
    node = Node("127.0.0.1:4150", limit_bytes=100)
    node.held_bytes = 60

    assert expected is node.has_room(size_bytes)


@pytest.mark.parametrize("heard_at, expected", [(4.9, True), (5.0, False), (6.0, False)])
def test_a_doubt_ends_with_what_is_heard_after_it(heard_at: float, expected: bool) -> None:  # noqa: FBT001
    """What had been heard before says nothing."""
    node = Node("127.0.0.1:4150", limit_bytes=100)
    was_doubted = node.is_doubted
    node.doubt(5.0)

    node.heard(heard_at)

    assert (False, expected) == (was_doubted, node.is_doubted)


def test_what_is_heard_of_one_that_is_trusted_changes_nothing() -> None:
    """It was trusted before."""
    node = Node("127.0.0.1:4150", limit_bytes=100)

    node.heard(5.0)

    assert not node.is_doubted
