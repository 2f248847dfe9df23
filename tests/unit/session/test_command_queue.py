"""What waits of what a client has said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.session.command_errors import InvalidCommand
from gateway.session.command_runner import COMMANDS_PER_TURN, CommandQueue
from gateway.session.json_frames import NopCommand, ParsedCommand, decode_frame


def filled(*frames: str) -> CommandQueue:
    inbox = CommandQueue()
    for text in frames:
        commands = decode_frame(text)
        count = len(commands) if isinstance(commands, list) else text.count("\n") + 1
        inbox.add(commands, count)
    return inbox


def nops(*refs: int) -> str:
    """Return a frame of as many commands."""
    return "\n".join(f'{{"cmd":"NOP","ref":{ref}}}' for ref in refs)


def refs(commands: list[ParsedCommand]) -> list[object]:
    """Return the refs of *commands*, and "?" for what could not be read."""
    return ["?" if isinstance(each, InvalidCommand) else each.ref for each in commands]


def test_commands_come_out_in_their_order() -> None:
    """Over frames, however many are taken at a time."""
    inbox = filled(nops(1, 2, 3), nops(4), nops(5, 6))

    taken = [refs(inbox.take(at_most=count)) for count in (2, 3, 9)]

    assert [[1, 2], [3, 4, 5], [6]] == taken
    assert (0, []) == (len(inbox), inbox.take())


def test_a_turn_takes_so_many() -> None:
    """The rest waits, and is counted."""
    inbox = filled(nops(*range(COMMANDS_PER_TURN)), nops(*range(100)))

    taken = inbox.take()

    assert (COMMANDS_PER_TURN, 100) == (len(taken), len(inbox))


def test_a_line_that_cannot_be_read_has_its_place() -> None:
    assert [1, "?", 2] == refs(filled(f"{nops(1)}\nx\n{nops(2)}").take())


def test_blank_lines_are_no_commands() -> None:
    """They may be counted while they wait, and stand for nothing in the end."""
    inbox = filled("x\n\n\n \n\n")

    assert (["?"], 0) == (refs(inbox.take(at_most=1)), len(inbox))


def test_what_is_put_back_comes_first() -> None:
    inbox = filled(nops(2))

    inbox.put_back([NopCommand(0), NopCommand(1)])

    assert (3, [0, 1, 2]) == (len(inbox), refs(inbox.take()))


@given(
    st.lists(st.lists(st.sampled_from(["x", "", '{"cmd":"NOP"}']), max_size=9), max_size=9),
    st.integers(1, 9),
)
def test_every_command_comes_out_once(frames: list[list[str]], at_most: int) -> None:
    """Whatever the frames hold, nothing is left behind, and the count never says too little."""
    inbox = filled(*("\n".join(lines) for lines in frames))
    left = sum(len([line for line in lines if line]) for lines in frames)

    while taken := inbox.take(at_most=at_most):
        left -= len(taken)
        assert len(inbox) >= left

    assert (0, 0) == (left, len(inbox))
