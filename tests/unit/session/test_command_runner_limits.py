"""One frame can ask for much work: what bounds it, before it is done."""

from __future__ import annotations

import tracemalloc

import pytest

from gateway.session.command_runner import MAX_ERRORS
from gateway.session.json_frames import CHUNK_CHARS
from gateway.session.publishing import BODIES_PER_COMMAND
from gateway.session.types import CloseReason, CloseSocket, PublishBodies
from tests.support.websocket.session_messages import (
    acknowledged,
    command,
    holding,
    message_id,
    read,
    subscribed,
)

RATE = 100
"""Commands a second, and at once."""
MANY = 690_000
"""As many as fit into a frame."""


# Many bodies


@pytest.mark.parametrize("of", ["bodies", "bodies_base64"])
def test_an_mpub_costs_a_command_for_so_many_bodies(of: str) -> None:
    """Those that are begun count as well: two seconds' worth is a debt of one."""
    session = subscribed(command_rate_limit=RATE)
    bodies = ["aaaa"] * (BODIES_PER_COMMAND * (2 * RATE - 1) + 1)

    (publish,) = session.receive(command("MPUB", topic="t", **{of: bodies}), 0.0)
    session.receive(command("NOP"), 0.0)

    assert isinstance(publish, PublishBodies)
    assert len(bodies) == len(publish.bodies)
    assert pytest.approx(1.0) == session.next_wake()


def test_a_few_bodies_cost_one_command() -> None:
    session = subscribed(command_rate_limit=RATE)
    text = command("MPUB", topic="t", bodies=["a"] * BODIES_PER_COMMAND)

    actions = session.receive("\n".join([text] * RATE), 0.0)

    assert (RATE, True) == (len(actions), session.wants_commands)


def test_an_mpub_that_is_refused_costs_as_much() -> None:
    session = subscribed(command_rate_limit=RATE)
    bodies = ["a"] * (BODIES_PER_COMMAND * 2 * RATE - 1) + [""]

    session.receive(command("MPUB", topic="t", bodies=bodies), 0.0)
    session.receive(command("NOP"), 0.0)

    assert pytest.approx(1.0) == session.next_wake()


def test_an_mpub_of_too_many_bodies_is_not_begun() -> None:
    """It ends the socket, as as many commands would, and nothing of it is published."""
    session = subscribed(command_rate_limit=RATE)
    bodies = ["a"] * (BODIES_PER_COMMAND * (6 * RATE + 1) + 1)

    actions = session.receive(command("MPUB", topic="t", bodies=bodies), 0.0)

    assert [CloseSocket(CloseReason.TOO_FAST)] == actions


# Many ids


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
@pytest.mark.parametrize("limit, allowed", [(50, 10_000), (2_500, 10_000), (5_000, 20_000)])
def test_more_ids_than_can_be_in_flight_are_refused(verb: str, limit: int, allowed: int) -> None:
    """Four times the largest window, 10 000 at least; nothing of the command is done."""
    session = subscribed(max_in_flight_limit=limit)
    (held,) = holding(session, 1)

    actions = session.receive(command(verb, ref=1, ids=[held] * (allowed + 1)), 0.0)

    (error,) = read(session, 0.0)
    assert ([], True) == (actions, session.wants_commands)
    assert (verb, 1, "E_INVALID") == (error["cmd"], error["ref"], error["code"])
    assert (
        f"{verb} has {allowed + 1} ids; allowed: 1 to {allowed} ids at a time" == error["message"]
    )
    assert [("FIN", 1, message_id(1))] == acknowledged(
        session.receive(command("FIN", id=held), 0.0)
    )


def test_as_many_ids_as_are_allowed_are_looked_at() -> None:
    """The one that is held is finished, the others are told."""
    session = subscribed(max_in_flight_limit=50)
    (held,) = holding(session, 1)
    strangers = ["x"] * 9_999

    actions = session.receive(command("FIN", ids=[held, *strangers]), 0.0)

    assert [("FIN", 1, message_id(1))] == acknowledged(actions)
    assert strangers == read(session, 0.0)[0]["ids"]


def test_too_many_ids_are_a_misuse() -> None:
    """It is counted like what is no command."""
    session = subscribed()
    text = command("TOUCH", ids=["x"] * 10_001)

    actions = [session.receive(text, 0.0) for _ in range(MAX_ERRORS + 1)]

    assert [[]] * MAX_ERRORS + [[CloseSocket(CloseReason.TOO_MANY_ERRORS)]] == actions


@pytest.mark.parametrize(
    "verb,member,code",
    [
        ("FIN", "ids", "E_INVALID"),
        ("TOUCH", "ids", "E_INVALID"),
        ("MPUB", "bodies", "E_BAD_BODY"),
        ("MPUB", "bodies_base64", "E_BAD_BODY"),
        ("NOP", "x", "E_INVALID"),
    ],
)
def test_a_frame_of_very_many_strings_is_refused_before_a_list_is_made(
    verb: str, member: str, code: str
) -> None:
    """Its ref gets the answer, and other sockets their turn."""
    session = subscribed()
    text = command(verb, ref=7, **{member: ["YQ=="] * 250_000})

    tracemalloc.start()
    try:
        actions = session.receive(text, 0.0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    (error,) = read(session, 0.0)
    assert ([], verb, 7, code) == (actions, error["cmd"], error["ref"], error["code"])
    text = "the command has over 32768 ids, bodies or members; allowed: up to 32768, send the"
    assert text in error["message"]
    assert peak_bytes < 65_536


def test_quotes_and_commas_within_a_body_are_no_items() -> None:
    """JSON in JSON, as a page publishes it."""
    session = subscribed()
    bodies = ['{"a":"b","c":["d","e"]}' * 4_000, "," * 100_000, "\\" * 100_000]

    (publish,) = session.receive(command("MPUB", topic="t", bodies=bodies), 0.0)

    assert isinstance(publish, PublishBodies)
    assert [body.encode() for body in bodies] == publish.bodies


@pytest.mark.parametrize("count", [32_769, 32_780, 40_000, 70_000])
def test_an_mpub_with_too_many_bodies_is_refused_with_one_code(count: int) -> None:
    """Whether they are counted before they are decoded, or after."""
    session = subscribed()

    assert [] == session.receive(command("MPUB", topic="t", bodies=["a"] * count), 0.0)
    assert ["E_BAD_BODY"] == [each["code"] for each in read(session, 0.0)]


def test_an_mpub_has_a_bounded_number_of_bodies() -> None:
    session = subscribed()

    assert [] == session.receive(command("MPUB", topic="t", bodies=["a"] * 32_769), 0.0)
    assert "MPUB has 32769 bodies; allowed: 1 to 32768" in read(session, 0.0)[0]["message"]


def test_a_long_line_costs_by_its_size() -> None:
    session = subscribed(command_rate_limit=RATE)
    text = command("NOP", x="x" * (4_096 * (2 * RATE - 50)))

    session.receive(text, 0.0)
    session.receive(text, 0.0)
    session.receive(command("NOP"), 0.0)

    assert pytest.approx(1.02, abs=0.05) == session.next_wake()


def test_one_large_message_is_published_at_any_rate() -> None:
    """It costs a second's worth at most."""
    session = subscribed(command_rate_limit=1)
    body = "x" * 1_000_000

    (publish,) = session.receive(command("PUB", topic="t", body=body), 0.0)

    assert isinstance(publish, PublishBodies)
    assert [body.encode()] == publish.bodies


# Many lines


@pytest.mark.parametrize("line", ["x", "", '{"cmd":"NOP"}'], ids=["bad", "blank", "command"])
def test_too_many_lines_end_the_socket_before_they_are_read(line: str) -> None:
    """Nothing is made of them: no line is cut out, none is answered."""
    session = subscribed()
    text = "\n".join([line] * MANY)

    tracemalloc.start()
    try:
        actions = session.receive(text, 0.0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    (error,) = read(session, 0.0)
    assert [CloseSocket(CloseReason.TOO_FAST)] == actions
    assert (None, "E_INVALID") == (error["cmd"], error["code"])
    assert "the waiting commands take 68.0 s at 10000 commands per second" in error["message"]
    assert peak_bytes < 65_536


def test_lines_that_answer_what_is_held_are_no_debt() -> None:
    """As many as the window holds come on top of what may wait."""
    session = subscribed(max_in_flight=2_500, command_rate_limit=RATE)
    holding(session, *range(2_500))

    borne = session.receive("\n" * (2_500 + 6 * RATE - 2), 0.0)
    ended = session.receive("\n" * (2_500 + 6 * RATE + 1), 0.0)

    assert ([], [CloseSocket(CloseReason.TOO_FAST)]) == (borne, ended)


@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
def test_several_objects_on_one_line_are_no_command(*, is_long: bool) -> None:
    """No bound on lines saw them: they were all carried out at once, or some never answered."""
    session = subscribed()
    objects = "".join(command("NOP", ref=ref) for ref in range(5_000 if is_long else 5))

    session.receive("\n".join([objects, command("NOP", ref="last")]), 0.0)
    session.wake(0.0)  # a line that is longer than a chunk takes a turn of its own

    refused, last = read(session, 0.0)
    assert ("error", "E_INVALID", "last") == (refused["type"], refused["code"], last["ref"])


def test_a_long_frame_of_bad_lines_is_read_in_turns() -> None:
    """
    No more than a chunk of it at once, whatever the lines are.

    To find out whose answer an error is takes 45 ns for each character of brackets: all 512 lines
    of one turn, 2 MiB, took 80 ms, in which nobody else was served.
    """
    session = subscribed()
    line = '{"cmd":"NOP","x":' + "[[]," * 1_000 + "NaN}"
    a_turn = CHUNK_CHARS // len(line)
    told = []

    session.receive("\n".join([line] * (2 * a_turn)), 0.0)
    while not session.wants_commands:
        told.append(len(read(session, 0.0)))
        session.wake(0.0)
    told.append(len(read(session, 0.0)))

    assert [a_turn, a_turn] == told
