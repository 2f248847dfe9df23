"""FIN, REQ and TOUCH: what counts, what is refused, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.protocol.frames import ErrorFrame
from gateway.session.command_runner import REMEMBERED_IDS, REMEMBERED_WINDOWS, AckBatch, AckHandler
from gateway.session.json_frames import FinCommand, TouchCommand
from gateway.session.session import Session
from gateway.session.types import Action, FinishDeliveries, TouchDeliveries
from gateway.session.window import DeliveryBatch, Outbox, Window
from tests.support.websocket.session_messages import (
    command,
    holding,
    message_id,
    messages,
    read,
    subscribed,
)


def unknown(_session: Session, _delivery_id: str) -> str:
    """Name a delivery that never was."""
    return "0123456789abcdef-1"


def answered(session: Session, delivery_id: str) -> str:
    session.receive(command("FIN", id=delivery_id), 1.0)
    return delivery_id


def timed_out(session: Session, delivery_id: str) -> str:
    """Let its time pass."""
    session.wake(60.0)
    return delivery_id


def lost(session: Session, delivery_id: str) -> str:
    """Let its nsqd go."""
    session.on_source_lost(1, 1.0)
    return delivery_id


@pytest.mark.parametrize("ref", [None, 7])
@pytest.mark.parametrize("form", ["id", "ids"])
@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
@pytest.mark.parametrize("reason", [unknown, answered, timed_out, lost])
def test_an_answer_that_cannot_count_is_refused(
    reason: Callable[[Session, str], str], verb: str, form: str, ref: int | None
) -> None:
    """Nothing of it goes to NSQ; one error names it as the command did, and the socket stays."""
    session = subscribed(sources=2)
    (delivery_id,) = holding(session, 0xA)
    delivery_id = reason(session, delivery_id)
    read(session, 60.0)
    named: object = delivery_id if form == "id" else [delivery_id]

    actions = session.receive(command(verb, ref=ref, **{form: named}), 60.0)

    (error,) = read(session, 60.0)
    assert [] == [
        action for action in actions if isinstance(action, FinishDeliveries | TouchDeliveries)
    ]
    told = (error["cmd"], error["ref"], error["code"], error[form], error["retryable"])
    assert (verb, ref, f"E_{verb}_FAILED", named, False) == told
    assert session.wants_commands


def answering() -> tuple[AckHandler, Window, Outbox]:
    window, outbox = Window(10), Outbox("t", "c")
    return AckHandler(window, outbox), window, outbox


def test_a_row_is_let_go_together() -> None:
    """By source; each that is refused is an error of its own."""
    taken_by, window, outbox = answering()
    ids = window.add(DeliveryBatch(1, 60.0, 60.0, 900.0), messages(1, 2))
    ids += window.add(DeliveryBatch(2, 60.0, 60.0, 900.0), messages(3))

    taken, refused = taken_by.finish([*ids, "x", "y"], 1.0)

    assert ({1: [message_id(1), message_id(2)], 2: [message_id(3)]}, 2) == (taken, refused)
    lines, _ = outbox.take(window, 1.0)
    assert ["x", "y"] == [getattr(line, "id", None) for line in lines]


def test_what_is_refused_is_what_an_answer_costs() -> None:
    """A TOUCH costs all it names: it lets go of nothing."""
    taken_by, window, _ = answering()
    ids = window.add(DeliveryBatch(1, 60.0, 60.0, 900.0), messages(1, 2))
    actions: list[Action] = []
    acks = AckBatch(actions)

    costs = [
        taken_by.touch(TouchCommand(ids=ids), acks, 1.0),
        taken_by.finish_or_requeue(FinCommand(ids=[*ids, "x"]), acks, 1.0),
    ]

    assert [2, 1] == costs


def test_nothing_is_kept_of_ids_that_a_client_makes_up() -> None:
    """However many they are, in a row or in one command."""
    taken_by, _, _ = answering()
    acks = AckBatch([])

    for _ in range(100):
        taken_by.finish(["x"], 0.0)
        taken_by.finish_or_requeue(FinCommand(ids=["x", "y"]), acks, 0.0)

    assert None is taken_by._recent_acks


def test_what_is_remembered_of_answers_is_in_proportion_to_the_window() -> None:
    """Ten thousand whatever the window, given one by one, were 1.4 MiB of each socket."""
    taken_by, window, _ = answering()
    for number in range(1_000):
        taken_by.finish(window.add(DeliveryBatch(1, 60.0, 60.0, 900.0), messages(number)), 1.0)
    few = len(taken_by._recent_acks or ())
    window.size = 2_500
    for number in range(11_000):
        taken_by.finish(window.add(DeliveryBatch(1, 60.0, 60.0, 900.0), messages(number)), 1.0)
    window.size = 0  # what was answered before may still be refused
    taken_by.finish(window.add(DeliveryBatch(1, 60.0, 60.0, 900.0), messages(1)), 1.0)

    assert (296, 10_256) == (few, len(taken_by._recent_acks or ()))


@pytest.mark.parametrize("way", ["row", "ids", "written"])
def test_the_last_answers_find_their_id_when_nsqd_refuses_them(way: str) -> None:
    """As many as a window asks for, however given; those before are named as nsqd does."""
    taken_by, window, outbox = answering()
    numbers = range(REMEMBERED_IDS + REMEMBERED_WINDOWS * window.size + 100)
    for start in range(0, len(numbers), 100):
        ids = window.add(
            DeliveryBatch(1, 60.0, 60.0, 900.0), messages(*numbers[start : start + 100])
        )
        if way == "row":
            taken_by.finish(ids, 1.0)
        elif way == "ids":
            taken_by.finish_or_requeue(FinCommand(ids=ids), AckBatch([]), 1.0)
        else:
            taken_by.finish_written([ids], 1.0)

    for number in (0, 100):
        text = f"FIN {message_id(number).decode()} failed"
        taken_by.on_broker_refused(ErrorFrame("E_FIN_FAILED", text), [1])

    lines, _ = outbox.take(window, 1.0)
    expected = [message_id(0).decode(), f"{message_id(100).decode()}-2"]
    assert expected == [getattr(line, "id", None) for line in lines]
