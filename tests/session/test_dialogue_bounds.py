"""One frame can ask for much work: what bounds it, before it is done."""

from __future__ import annotations

import tracemalloc

import pytest

from gateway.session.actions import EndReason, EndSocket, Publish
from gateway.session.patience import MAX_MISUSES
from gateway.session.publishing import BODIES_A_COMMAND
from tests.support.deliveries import answered, command, holding, message_id, read, subscribed

RATE = 100
"""Commands a second, and at once."""
MANY = 690_000
"""As many as fit into a frame."""


# Many bodies


@pytest.mark.parametrize("of", ["bodies", "bodies_base64"])
def test_an_mpub_costs_a_command_for_so_many_bodies(of: str) -> None:
    """Those that are begun count as well: two seconds' worth is a debt of one."""
    session = subscribed(command_rate_limit=RATE)
    bodies = ["aaaa"] * (BODIES_A_COMMAND * (2 * RATE - 1) + 1)

    (publish,) = session.receive(command("MPUB", topic="t", **{of: bodies}), 0.0)
    session.receive(command("NOP"), 0.0)

    assert isinstance(publish, Publish)
    assert len(bodies) == len(publish.bodies)
    assert pytest.approx(1.0) == session.next_wake()


def test_a_few_bodies_cost_one_command() -> None:
    """As many as one command stands for."""
    session = subscribed(command_rate_limit=RATE)
    text = command("MPUB", topic="t", bodies=["a"] * BODIES_A_COMMAND)

    actions = session.receive("\n".join([text] * RATE), 0.0)

    assert (RATE, True) == (len(actions), session.is_listening)


def test_an_mpub_that_is_refused_costs_as_much() -> None:
    """Its bodies were looked at."""
    session = subscribed(command_rate_limit=RATE)
    bodies = ["a"] * (BODIES_A_COMMAND * 2 * RATE - 1) + [""]

    session.receive(command("MPUB", topic="t", bodies=bodies), 0.0)
    session.receive(command("NOP"), 0.0)

    assert pytest.approx(1.0) == session.next_wake()


def test_an_mpub_of_too_many_bodies_is_not_begun() -> None:
    """It ends the socket, as as many commands would, and nothing of it is published."""
    session = subscribed(command_rate_limit=RATE)
    bodies = ["a"] * (BODIES_A_COMMAND * (6 * RATE + 1) + 1)

    actions = session.receive(command("MPUB", topic="t", bodies=bodies), 0.0)

    assert [EndSocket(EndReason.TOO_FAST)] == actions


# Many ids


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
@pytest.mark.parametrize("limit, allowed", [(50, 10_000), (2_500, 10_000), (5_000, 20_000)])
def test_more_ids_than_can_be_in_flight_are_refused(verb: str, limit: int, allowed: int) -> None:
    """Four times the largest window, 10 000 at least; nothing of the command is done."""
    session = subscribed(max_in_flight_limit=limit)
    (held,) = holding(session, 1)

    actions = session.receive(command(verb, ref=1, ids=[held] * (allowed + 1)), 0.0)

    (error,) = read(session, 0.0)
    assert ([], True) == (actions, session.is_listening)
    assert (verb, 1, "E_INVALID") == (error["cmd"], error["ref"], error["code"])
    assert (
        f"{verb} has {allowed + 1} ids; allowed: 1 to {allowed} ids at a time" == error["message"]
    )
    assert [("FIN", 1, message_id(1))] == answered(session.receive(command("FIN", id=held), 0.0))


def test_as_many_ids_as_are_allowed_are_looked_at() -> None:
    """The one that is held is finished, the others are told."""
    session = subscribed(max_in_flight_limit=50)
    (held,) = holding(session, 1)
    strangers = ["x"] * 9_999

    actions = session.receive(command("FIN", ids=[held, *strangers]), 0.0)

    assert [("FIN", 1, message_id(1))] == answered(actions)
    assert strangers == read(session, 0.0)[0]["ids"]


def test_too_many_ids_are_a_misuse() -> None:
    """It is counted like what is no command."""
    session = subscribed()
    text = command("TOUCH", ids=["x"] * 10_001)

    actions = [session.receive(text, 0.0) for _ in range(MAX_MISUSES + 1)]

    assert [[]] * MAX_MISUSES + [[EndSocket(EndReason.TOO_MANY_ERRORS)]] == actions


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
    assert [EndSocket(EndReason.TOO_FAST)] == actions
    assert (None, "E_INVALID") == (error["cmd"], error["code"])
    assert "what was said takes 68.0 s at 10000 commands a second" in error["message"]
    assert peak_bytes < 65_536


def test_lines_that_answer_what_is_held_are_no_debt() -> None:
    """As many as the window holds come on top of what may wait."""
    session = subscribed(max_in_flight=2_500, command_rate_limit=RATE)
    holding(session, *range(2_500))

    borne = session.receive("\n" * (2_500 + 6 * RATE - 2), 0.0)
    ended = session.receive("\n" * (2_500 + 6 * RATE + 1), 0.0)

    assert ([], [EndSocket(EndReason.TOO_FAST)]) == (borne, ended)
