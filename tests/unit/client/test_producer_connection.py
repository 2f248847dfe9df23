"""Tests of `NsqdNode`: the state shared by all connections to one nsqd."""

from __future__ import annotations

import pytest

from gateway.client.nsqd_node import NsqdNode


@pytest.mark.parametrize("size_bytes, expected", [(40, True), (41, False)])
def test_a_node_has_room_up_to_its_limit(size_bytes: int, expected: bool) -> None:  # noqa: FBT001
    """The limit holds to the byte, including the bytes already held."""
    node = NsqdNode("127.0.0.1:4150", limit_bytes=100)
    node.held_bytes = 60

    assert expected is node.has_room(size_bytes)


@pytest.mark.parametrize("heard_at, expected", [(4.9, True), (5.0, False), (6.0, False)])
def test_a_doubt_ends_with_what_is_heard_after_it(heard_at: float, expected: bool) -> None:  # noqa: FBT001
    """Bytes received before the suspicion do not end it."""
    node = NsqdNode("127.0.0.1:4150", limit_bytes=100)
    was_doubted = node.is_suspect
    node.mark_suspect(5.0)

    node.mark_alive(heard_at)

    assert (False, expected) == (was_doubted, node.is_suspect)


def test_what_is_heard_of_one_that_is_trusted_changes_nothing() -> None:
    node = NsqdNode("127.0.0.1:4150", limit_bytes=100)

    node.mark_alive(5.0)

    assert not node.is_suspect
