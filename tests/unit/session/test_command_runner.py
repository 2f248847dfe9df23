"""Turns, what holds them up, and how fast a client may say commands."""

from __future__ import annotations

import pytest

from gateway.session.command_runner import COMMANDS_PER_TURN, MAX_ERRORS
from gateway.session.session import Session
from gateway.session.types import (
    Action,
    CloseReason,
    CloseSocket,
    FinishDeliveries,
    PublishBodies,
    Refusal,
    RequeueCause,
    RequeueDeliveries,
    ResubscribeWithSecret,
    SetReady,
    TouchDeliveries,
)
from tests.support.websocket.session_messages import (
    ANSWER,
    acknowledged,
    command,
    delivery_ids,
    holding,
    message_id,
    messages,
    read,
    subscribed,
)

RATE = 100
"""Commands a second, and at once."""


def frame(*commands: str) -> str:
    return "\n".join(commands)


def nops(count: int) -> str:
    """Return a frame of as many commands, whose refs count up from 0."""
    return frame(*(command("NOP", ref=number) for number in range(count)))


def refs(session: Session, now: float = 0.0) -> list[object]:
    return [each["ref"] for each in read(session, now)]


def let_pass(session: Session, now: float = 0.0) -> list[Action]:
    """Wake *session* as often as it asks for at *now*."""
    actions: list[Action] = []
    while (due := session.next_wake()) is not None and due <= now:
        actions += session.wake(now)
    return actions


# Turns


def test_one_turn_carries_out_so_many_commands() -> None:
    """The rest waits for the next turn, due at once; until all is done nobody listens."""
    session = subscribed()

    session.receive(nops(COMMANDS_PER_TURN + 2), 5.0)
    first, is_listening, due = refs(session, 5.0), session.wants_commands, session.next_wake()
    session.wake(5.0)

    assert (list(range(COMMANDS_PER_TURN)), False, 5.0) == (first, is_listening, due)
    assert ([COMMANDS_PER_TURN, COMMANDS_PER_TURN + 1], True, None) == (
        refs(session, 5.0),
        session.wants_commands,
        session.next_wake(),
    )


def test_a_turn_that_takes_all_leaves_nothing_to_do() -> None:
    """As many as a turn takes are no reason to stop listening."""
    session = subscribed()

    session.receive(nops(COMMANDS_PER_TURN), 0.0)

    assert (True, None) == (session.wants_commands, session.next_wake())


def test_what_is_said_meanwhile_waits_behind() -> None:
    """The order of the frames is that of the answers, and no frame buys a turn of its own."""
    session = subscribed()
    session.receive(nops(COMMANDS_PER_TURN + 1), 0.0)

    at_once = session.receive(command("RDY", count=3, ref="last"), 0.0)
    first = refs(session)
    later = let_pass(session)

    assert ([], list(range(COMMANDS_PER_TURN)), [SetReady(3)]) == (at_once, first, later)
    assert [COMMANDS_PER_TURN, "last"] == refs(session)


def test_finishing_in_turns_finishes_all() -> None:
    """A frame of one FIN each for more than a turn takes: every message, once, in order."""
    session = subscribed(max_in_flight=2_500)
    ids = holding(session, *range(1_200))

    text = frame(*(command("FIN", id=each) for each in ids))
    actions = session.receive(text, 0.0) + let_pass(session)

    assert [COMMANDS_PER_TURN, COMMANDS_PER_TURN, 1_200 - 2 * COMMANDS_PER_TURN] == [
        len(action.ids) for action in actions if isinstance(action, FinishDeliveries)
    ]
    assert [("FIN", 1, message_id(number)) for number in range(1_200)] == acknowledged(actions)


def test_a_bad_line_changes_nothing_about_turns() -> None:
    """It takes its place among the others."""
    session = subscribed()

    session.receive(frame("x", nops(COMMANDS_PER_TURN)), 0.0)
    first = refs(session)
    let_pass(session)

    assert [None, *range(COMMANDS_PER_TURN - 1)] == first
    assert [COMMANDS_PER_TURN - 1] == refs(session)


def test_what_waits_for_its_turn_is_not_carried_out_after_the_end() -> None:
    """The socket is closed, and what was not finished goes back."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)
    session.receive(frame(nops(COMMANDS_PER_TURN), command("FIN", id=delivery_id)), 0.0)
    session.on_channel_gone()

    late = session.wake(1.0) + session.run_waiting(1.0)

    assert ([], None) == (late, session.next_wake())
    assert [
        SetReady(0),
        RequeueDeliveries(1, [message_id(0xA)], 0, RequeueCause.DISCONNECT),
    ] == session.close(1.0)


def test_a_later_turn_may_end_the_socket() -> None:
    session = subscribed()
    session.receive(frame(nops(COMMANDS_PER_TURN), *["x"] * (MAX_ERRORS + 1)), 0.0)

    assert [CloseSocket(CloseReason.TOO_MANY_ERRORS)] == let_pass(session)


# A row of FINs


def test_fins_in_a_row_are_one_write_for_each_source() -> None:
    """Those before another command come before it, those behind it after."""
    session = subscribed(sources=2)
    first = holding(session, 1, 2) + holding(session, 3, source=2)
    last = holding(session, 4, 5)
    fins = [command("FIN", id=each) for each in first + last]

    actions = session.receive(frame(*fins[:3], command("TOUCH", id=last[0]), *fins[3:]), 0.0)

    one, two, three, four, five = (message_id(number) for number in (1, 2, 3, 4, 5))
    assert [
        FinishDeliveries(1, [one, two]),
        FinishDeliveries(2, [three]),
        TouchDeliveries(1, [four]),
        FinishDeliveries(1, [four, five]),
    ] == actions


def test_of_fins_in_a_row_each_that_is_refused_is_told() -> None:
    """One error for one command, in their order; the others hold."""
    session = subscribed()
    ids = holding(session, 1, 2)
    said = ["x", ids[0], "y", ids[1], ids[0]]

    actions = session.receive(frame(*(command("FIN", id=each) for each in said)), 0.0)

    assert [FinishDeliveries(1, [message_id(1), message_id(2)])] == actions
    assert ["x", "y", ids[0]] == [each["id"] for each in read(session, 0.0)]


def test_a_ref_in_a_row_of_fins_has_its_answer() -> None:
    """Its neighbours stay silent."""
    session = subscribed()
    ids = holding(session, 1, 2, 3)

    actions = session.receive(
        frame(
            command("FIN", id=ids[0]),
            command("FIN", id=ids[1], ref=7),
            command("FIN", id=ids[2]),
        ),
        0.0,
    )

    assert [FinishDeliveries(1, [message_id(1), message_id(2), message_id(3)])] == actions
    assert [(7, "OK")] == [(each["ref"], each["data"]) for each in read(session, 0.0)]


# The rate


def test_up_to_the_rate_everything_is_carried_out_at_once() -> None:
    """A second's worth in one frame."""
    session = subscribed(command_rate_limit=RATE)

    session.receive(nops(RATE), 10.0)

    assert (True, list(range(RATE))) == (session.wants_commands, refs(session, 10.0))


def test_what_is_said_in_debt_waits_until_it_is_paid() -> None:
    """The client is not listened to meanwhile, and loses nothing."""
    session = subscribed(command_rate_limit=RATE)
    session.receive(nops(2 * RATE), 10.0)
    read(session, 10.0)

    session.receive(command("RDY", count=3), 10.0)
    is_listening, due = session.wants_commands, session.next_wake()
    early = session.wake(10.9)
    paid = session.wake(11.0)

    assert pytest.approx(11.0) == due
    assert (False, [], [SetReady(3)], True) == (is_listening, early, paid, session.wants_commands)


@pytest.mark.parametrize("verb", ["FIN", "REQ"])
@pytest.mark.parametrize("members", [{}, {"ref": 1}])
def test_what_lets_go_of_a_delivery_is_free(verb: str, members: dict[str, int]) -> None:
    """A client that keeps up with its messages is never too fast, however many they are."""
    session = subscribed(max_in_flight=2_500, command_rate_limit=RATE)

    for _ in range(10):
        ids = holding(session, *range(500))
        session.receive(frame(*(command(verb, id=each, **members) for each in ids)), 0.0)

    assert session.wants_commands


@pytest.mark.parametrize(
    "said",
    [
        [command("FIN", ids=[f"{number}" for number in range(2 * RATE)])],
        [command("REQ", ids=[f"{number}" for number in range(2 * RATE)])],
        [command("TOUCH", ids=[f"{number}" for number in range(2 * RATE)])],
        [command("FIN", id=f"{number}") for number in range(2 * RATE)],
        [command("PUB", topic="t", body="b")] * 2 * RATE,
        [command("RDY", count=1)] * 2 * RATE,
        ["x"] * MAX_ERRORS + [command("NOP")] * RATE,
    ],
    ids=["FIN by ids", "REQ by ids", "TOUCH by ids", "FIN", "PUB", "RDY", "no command"],
)
def test_all_else_costs(said: list[str]) -> None:
    """Each id that is not held, each TOUCH, each other command, and what is none."""
    session = subscribed(command_rate_limit=RATE, buffer_bytes=10**9)

    session.receive(frame(*said), 0.0)
    session.receive(command("NOP"), 0.0)

    assert not session.wants_commands
    assert pytest.approx(1.0) == session.next_wake()


@pytest.mark.parametrize("blank", ["", "\n\n"])
def test_to_say_nothing_costs_as_much(blank: str) -> None:
    """A frame without a command is a command as well, or it would be free to send them for ever."""
    session = subscribed(command_rate_limit=RATE)

    for _ in range(2 * RATE):
        session.receive(blank, 10.0)
    session.receive(command("RDY", count=3), 10.0)

    assert not session.wants_commands
    assert pytest.approx(11.0) == session.next_wake()


def test_too_much_at_once_ends_the_socket() -> None:
    """More than six seconds' worth: one is free, five may wait."""
    enough, too_much = (subscribed(command_rate_limit=RATE) for _ in range(2))

    borne = enough.receive(nops(6 * RATE - 1), 0.0)
    ended = too_much.receive(nops(6 * RATE + 1), 0.0)

    assert ([], [CloseSocket(CloseReason.TOO_FAST)]) == (borne, ended)
    error = read(too_much, 0.0)[-1]
    assert (None, "E_INVALID") == (error["ref"], error["code"])
    assert (
        "at 100 commands per second; the limit is 5 s: send at most 500 commands"
        in error["message"]
    )


def test_one_command_can_be_too_much() -> None:
    session = subscribed(command_rate_limit=RATE)
    ids = [f"{number}" for number in range(6 * RATE + 1)]

    actions = session.receive(command("TOUCH", ids=ids), 0.0)

    assert [CloseSocket(CloseReason.TOO_FAST)] == actions


def test_too_much_over_several_frames_ends_the_socket() -> None:
    """What came in one read is not stopped by a pause."""
    session = subscribed(command_rate_limit=RATE)

    actions = [session.receive(nops(RATE - 1), 0.0) for _ in range(7)]

    assert [[]] * 6 + [[CloseSocket(CloseReason.TOO_FAST)]] == actions


def test_a_whole_window_may_be_finished_in_one_frame() -> None:
    """What waits for its turn and is held is no debt."""
    session = subscribed(max_in_flight=2_500, command_rate_limit=RATE)
    ids = holding(session, *range(2_500))

    text = frame(*(command("FIN", id=each) for each in ids))
    actions = session.receive(text, 0.0) + let_pass(session)

    assert (2_500, True) == (len(acknowledged(actions)), session.wants_commands)


# What holds commands up


def test_while_answers_wait_nobody_listens() -> None:
    """Who asks and does not read is heard again when it has read."""
    session = subscribed(buffer_bytes=1_000)
    session.receive(nops(20), 0.0)
    deaf = session.wants_commands

    waits = session.receive(command("RDY", count=3), 0.0)
    none_due = session.next_wake()
    read(session, 1.0)
    due = session.next_wake()
    heard = let_pass(session, 1.0)

    assert (False, [], 30.0) == (deaf, waits, none_due)
    assert (0.0, [SetReady(3)], True) == (due, heard, session.wants_commands)


def test_messages_that_wait_do_not_stop_the_listening() -> None:
    """A client that is slow to read may finish what it has."""
    session = subscribed(buffer_bytes=1_000)
    (delivery_id,) = holding(session, 0xA)
    session.on_messages(1, messages(*range(20)), 0.0)

    actions = session.receive(command("FIN", id=delivery_id), 0.0)

    assert (True, [FinishDeliveries(1, [message_id(0xA)])]) == (session.wants_commands, actions)


def test_while_much_is_published_nobody_listens() -> None:
    """The bound is in bytes; what is said meanwhile waits for the answer of NSQ."""
    session = subscribed(publish_bytes=1_000)
    said = [command("PUB", topic="t", body="b" * 600, ref=ref) for ref in (1, 2)]

    first = session.receive(said[0], 0.0)
    is_listening = session.wants_commands
    second = session.receive(said[1], 0.0)
    third = session.receive(command("NOP", ref=3), 0.0)
    deaf = session.wants_commands
    (publish,) = first
    assert isinstance(publish, PublishBodies)
    session.on_published(publish, None)
    let_pass(session)

    assert (True, False, 1, []) == (is_listening, deaf, len(second), third)
    assert [1, 3] == refs(session)
    assert session.wants_commands


def test_while_auth_is_tried_nobody_listens() -> None:
    """Frames that came with it wait behind what stood in its own, and all is heard after it."""
    session = Session(subscribed().options, now=0.0)
    session.on_secret_missing(0.0)
    before = session.wants_commands

    tried = session.receive(frame(command("AUTH", secret="s", ref=1), command("NOP", ref=2)), 0.0)
    waits = session.receive(command("NOP", ref=3), 0.0)
    deaf, due = session.wants_commands, session.next_wake()
    session.on_source_opened(1, ANSWER)
    session.run_waiting(1.0)

    assert (True, False, None) == (before, deaf, due)
    assert ([], True) == (waits, isinstance(tried[0], ResubscribeWithSecret))
    assert ([1, None, 2, 3], True) == (refs(session, 1.0), session.wants_commands)


def test_auth_that_a_later_broker_wants_holds_up_what_is_behind_it() -> None:
    session = Session(subscribed().options, now=0.0)
    session.on_no_source(60_000, 0.0)
    read(session, 0.0)
    session.on_secret_missing(1.0)

    session.receive(
        frame(command("NOP", ref=1), command("AUTH", secret="s", ref=2), command("NOP", ref=3)), 1.0
    )
    before = refs(session, 1.0)
    session.on_source_opened(1, ANSWER)
    session.run_waiting(2.0)

    assert ([1], [2, None, 3]) == (before, refs(session, 2.0))


# Publishing


@pytest.mark.parametrize("options", [{}, {"is_auto_ack": True}, {"is_viewer": True}])
def test_every_kind_of_socket_may_publish(options: dict[str, bool]) -> None:
    session = subscribed(**options)

    actions = session.receive(
        frame(
            command("PUB", topic="t", body="a", ref=1),
            command("DPUB", topic="t", body_base64="/w==", defer_ms=5, ref=2),
            command("MPUB", topic="t", bodies=["b", "c"], ref=3),
        ),
        0.0,
    )

    assert [
        PublishBodies("PUB", 1, "t", [b"a"]),
        PublishBodies("DPUB", 2, "t", [b"\xff"], 5),
        PublishBodies("MPUB", 3, "t", [b"b", b"c"]),
    ] == actions


@pytest.mark.parametrize("ref", [None, 7])
@pytest.mark.parametrize("verb", ["PUB", "DPUB", "MPUB"])
def test_a_publish_is_always_answered(verb: str, ref: int | None) -> None:
    """Once NSQ has said OK, and not before; the ref is null where none came."""
    session = subscribed()
    text = command(verb, topic="t", body="b", defer_ms=1, ref=ref)
    if verb == "MPUB":
        text = command(verb, topic="t", bodies=["b"], ref=ref)
    (publish,) = session.receive(text, 0.0)
    before = read(session, 0.0)

    assert isinstance(publish, PublishBodies)
    actions = session.on_published(publish, None)

    expected = {"type": "response", "cmd": verb, "ref": ref, "data": "OK"}
    assert ([], [], [expected]) == (before, actions, read(session, 0.0))


def test_a_publish_is_answered_to_who_asked() -> None:
    """What is told of it twice, or to a session that knows nothing of it, is not passed on."""
    session, other = subscribed(), subscribed()
    (publish,) = session.receive(command("PUB", topic="t", body="b", ref=7), 0.0)

    assert isinstance(publish, PublishBodies)
    actions = [each.on_published(publish, None) for each in (other, session, session)]

    assert [[]] * 3 == actions
    assert ([], [7]) == (refs(other), refs(session))


def test_a_publish_that_is_refused_is_told() -> None:
    """With NSQ's code or the gateway's, and whether it may be tried again."""
    session = subscribed()
    (publish,) = session.receive(command("PUB", topic="t", body="b", ref=7), 0.0)

    assert isinstance(publish, PublishBodies)
    session.on_published(publish, Refusal("NO_BROKER", "no nsqd", retryable=True))

    expected = {
        "type": "error",
        "cmd": "PUB",
        "ref": 7,
        "code": "NO_BROKER",
        "message": "no nsqd",
        "retryable": True,
    }
    assert [expected] == read(session, 0.0)


@pytest.mark.parametrize(
    "text, code",
    [
        (command("PUB", topic="a b", body="b", ref=7), "E_BAD_TOPIC"),
        (command("PUB", topic="t", ref=7), "E_BAD_MESSAGE"),
        (command("MPUB", topic="t", bodies=[], ref=7), "E_BAD_BODY"),
        (command("DPUB", topic="t", body="b", defer_ms=-1, ref=7), "E_INVALID"),
        (command("PUB", topic="t", body_base64="*", ref=7), "E_INVALID"),
        (command("MPUB", topic="t", bodies_base64=["/w==", "/w"], ref=7), "E_INVALID"),
    ],
)
def test_a_publish_that_is_wrong_is_a_misuse(text: str, code: str) -> None:
    """It is refused here, its neighbours hold, and too many of them end the socket."""
    session = subscribed()

    actions = session.receive(frame(text, command("NOP", ref=8)), 0.0)
    answers = read(session, 0.0)
    ended = session.receive(frame(*[text] * MAX_ERRORS), 0.0)

    assert ([], [CloseSocket(CloseReason.TOO_MANY_ERRORS)]) == (actions, ended)
    assert [(7, code), (8, None)] == [(each["ref"], each.get("code")) for each in answers]


def test_nothing_is_published_before_auth() -> None:
    """As the first command it ends the socket, like every other one."""
    session = Session(subscribed().options, now=0.0)
    session.on_secret_missing(0.0)

    actions = session.receive(command("PUB", topic="t", body="b", ref=7), 0.0)

    assert [CloseSocket(CloseReason.NO_AUTH)] == actions
    assert [(7, "E_AUTH_FIRST")] == [(each["ref"], each["code"]) for each in read(session, 0.0)]


def test_nothing_is_published_while_a_later_broker_waits_for_auth() -> None:
    """It is refused, and the socket stays: the client could not know."""
    session = Session(subscribed().options, now=0.0)
    session.on_no_source(60_000, 0.0)
    session.on_secret_missing(0.0)
    read(session, 0.0)

    actions = session.receive(command("PUB", topic="t", body="b", ref=7), 0.0)

    assert [] == actions
    assert [(7, "E_AUTH_FIRST")] == [(each["ref"], each["code"]) for each in read(session, 0.0)]


def test_after_cls_publishing_goes_on_and_is_waited_for() -> None:
    """The close is complete when the last publish is answered, even where nothing is in flight."""
    session = subscribed()

    begun = session.receive(
        frame(command("PUB", topic="t", body="b", ref=1), command("CLS", ref=2)), 0.0
    )
    more = session.receive(command("PUB", topic="t", body="c", ref=3), 1.0)
    publishes = [each for each in begun + more if isinstance(each, PublishBodies)]
    ended = [session.on_published(publish, None) for publish in publishes]

    assert ([SetReady(0), publishes[0]], [publishes[1]]) == (begun, more)
    assert [[], [CloseSocket(CloseReason.DONE)]] == ended
    assert [2, 1, 3] == refs(session, 1.0)


def test_cls_waits_for_a_publish_no_longer_than_the_message_timeout() -> None:
    """An answer that never comes does not hold the socket open."""
    session = subscribed()
    session.receive(frame(command("PUB", topic="t", body="b"), command("CLS")), 0.0)

    assert ([], [CloseSocket(CloseReason.DONE)]) == (session.wake(59.9), session.wake(60.0))


def test_cls_waits_for_what_stands_behind_it() -> None:
    """Each ref has its answer before the socket is closed."""
    session = subscribed()

    begun = session.receive(frame(command("CLS", ref="close"), nops(COMMANDS_PER_TURN)), 0.0)
    ended = let_pass(session)

    assert ([SetReady(0)], [CloseSocket(CloseReason.DONE)]) == (begun, ended)
    assert ["close", *range(COMMANDS_PER_TURN)] == refs(session)


def test_a_delivery_that_is_touched_is_not_let_go() -> None:
    """It is still the client's, which can finish it later."""
    session = subscribed()
    session.on_messages(1, messages(0xA), 0.0)
    ids = delivery_ids(read(session, 0.0))

    session.receive(command("TOUCH", ids=ids), 1.0)

    assert [FinishDeliveries(1, [message_id(0xA)])] == session.receive(command("FIN", ids=ids), 2.0)
