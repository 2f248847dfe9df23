"""Tests of `least_loaded`: the connection for a topic without publishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from gateway.client.producer_pool import ProducerConnection, least_loaded


@dataclass(frozen=True)
class Node:
    """The attributes of an NsqdNode that `least_loaded` reads."""

    is_suspect: bool = False
    room_bytes: int = 10

    def has_room(self, size_bytes: int) -> bool:
        """Return whether *size_bytes* are within the room."""
        return size_bytes <= self.room_bytes


@dataclass
class Connection:
    """The attributes of a ProducerConnection that `least_loaded` reads."""

    name: str
    load_bytes: int = 0
    can_publish: bool = True
    node: Node = field(default_factory=Node)


def choose(connections: Sequence[Connection], size_bytes: int, *, turn: int) -> Connection | None:
    """Return the choice of `least_loaded`."""
    candidates = cast("Sequence[ProducerConnection]", connections)
    return cast("Connection | None", least_loaded(candidates, size_bytes, turn=turn))


SHUT = Connection("shut", can_publish=False)
SUSPECT = Node(is_suspect=True)
FULL = Node(room_bytes=9)


@pytest.mark.parametrize(
    "connections, turn, expected",
    [
        ([Connection("a"), Connection("b")], 0, "a"),
        ([Connection("a"), Connection("b")], 1, "b"),
        ([Connection("a"), Connection("b")], 2, "a"),
        ([Connection("a", 2), Connection("b", 1)], 0, "b"),
        ([Connection("a", 1), Connection("b", 1)], 1, "b"),
        ([SHUT, Connection("b", 9)], 0, "b"),
        ([Connection("a", node=FULL), Connection("b", 9)], 0, "b"),
        ([Connection("a", node=SUSPECT), Connection("b", 9)], 0, "b"),
        ([Connection("a", 2, node=SUSPECT), Connection("b", 1, node=SUSPECT)], 0, "b"),
        ([Connection("a", node=SUSPECT), Connection("b", node=FULL), SHUT], 1, "a"),
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
def test_a_publish_goes(connections: list[Connection], turn: int, expected: str) -> None:
    """The least loaded connection with room and without suspicion, in turns among equals."""
    chosen = choose(connections, 10, turn=turn)

    assert chosen is not None
    assert expected == chosen.name


@pytest.mark.parametrize(
    "connections", [[], [SHUT], [SHUT, SHUT], [SHUT, Connection("a", node=FULL)]]
)
def test_without_an_open_connection_with_room_there_is_no_choice(
    connections: list[Connection],
) -> None:
    """None means that no connection can take the publish."""
    assert None is choose(connections, 10, turn=3)
