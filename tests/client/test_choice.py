"""Which connection takes the next publish."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.client.choice import choose


@dataclass(frozen=True)
class Lane:
    """A connection as the choice sees it."""

    name: str
    is_open: bool = True
    load_bytes: int = 0
    topics: tuple[str, ...] = ()

    def works_on(self, topic: str) -> bool:
        """Tell whether *topic* has work here."""
        return topic in self.topics


SHUT = Lane("shut", is_open=False, topics=("t",))


@pytest.mark.parametrize(
    "lanes, turn, expected",
    [
        ([Lane("a"), Lane("b")], 0, "a"),
        ([Lane("a"), Lane("b")], 1, "b"),
        ([Lane("a"), Lane("b")], 2, "a"),
        ([Lane("a", load_bytes=2), Lane("b", load_bytes=1)], 0, "b"),
        ([Lane("a", load_bytes=9, topics=("t",)), Lane("b")], 1, "a"),
        ([Lane("a", load_bytes=9, topics=("u",)), Lane("b")], 0, "b"),
        ([SHUT, Lane("b", load_bytes=9)], 0, "b"),
    ],
    ids=[
        "the first turn",
        "the next turn",
        "turns go round",
        "the least loaded",
        "where the topic works",
        "another topic does not bind",
        "only an open one",
    ],
)
def test_a_publish_goes(lanes: list[Lane], turn: int, expected: str) -> None:
    """It stays with its topic, else goes to the least loaded, else takes turns."""
    chosen = choose(lanes, "t", turn=turn)

    assert chosen is not None
    assert expected == chosen.name


@pytest.mark.parametrize("lanes", [[], [SHUT], [SHUT, SHUT]])
def test_without_an_open_lane_there_is_no_choice(lanes: list[Lane]) -> None:
    """None says that nothing can be written now."""
    assert None is choose(lanes, "t", turn=3)
