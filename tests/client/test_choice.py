"""Which connection takes the next publish of a topic that has no work anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gateway.client.choice import choose


@dataclass(frozen=True)
class Node:
    """An nsqd as the choice sees it."""

    is_doubted: bool = False
    room_bytes: int = 10

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether *size_bytes* are within the room."""
        return size_bytes <= self.room_bytes


@dataclass
class Lane:
    """A connection as the choice sees it."""

    name: str
    load_bytes: int = 0
    is_open: bool = True
    node: Node = field(default_factory=Node)


SHUT = Lane("shut", is_open=False)
DOUBTED = Node(is_doubted=True)
FULL = Node(room_bytes=9)


@pytest.mark.parametrize(
    "lanes, turn, expected",
    [
        ([Lane("a"), Lane("b")], 0, "a"),
        ([Lane("a"), Lane("b")], 1, "b"),
        ([Lane("a"), Lane("b")], 2, "a"),
        ([Lane("a", 2), Lane("b", 1)], 0, "b"),
        ([Lane("a", 1), Lane("b", 1)], 1, "b"),
        ([SHUT, Lane("b", 9)], 0, "b"),
        ([Lane("a", node=FULL), Lane("b", 9)], 0, "b"),
        ([Lane("a", node=DOUBTED), Lane("b", 9)], 0, "b"),
        ([Lane("a", 2, node=DOUBTED), Lane("b", 1, node=DOUBTED)], 0, "b"),
        ([Lane("a", node=DOUBTED), Lane("b", node=FULL), SHUT], 1, "a"),
    ],
    ids=[
        "the first turn",
        "the next turn",
        "turns go round",
        "the least loaded",
        "whose turn it is among equals",
        "only an open one",
        "not where enough waits",
        "not where an answer is owed for long",
        "the least loaded of those that owe one",
        "one that owes an answer before none",
    ],
)
def test_a_publish_goes(lanes: list[Lane], turn: int, expected: str) -> None:
    """To the least loaded, in turns among equals, of those whose nsqd takes it and answers."""
    chosen = choose(lanes, 10, turn=turn)

    assert chosen is not None
    assert expected == chosen.name


@pytest.mark.parametrize("lanes", [[], [SHUT], [SHUT, SHUT], [SHUT, Lane("a", node=FULL)]])
def test_without_an_open_lane_with_room_there_is_no_choice(lanes: list[Lane]) -> None:
    """None says that nothing can take it now."""
    assert None is choose(lanes, 10, turn=3)
