"""AUTH of one socket, as dialogues: who is asked when, what is answered, what ends it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.credentials import Secret
from gateway.protocol.identify import AuthResponse
from gateway.session.auth import AUTH_TIMEOUT_S, MAX_SECRET_BYTES
from gateway.session.command_runner import MAX_ERRORS
from gateway.session.session import Session
from gateway.session.types import (
    CloseReason,
    CloseSocket,
    ResubscribeWithSecret,
    SessionOptions,
    SetReady,
)
from tests.support.websocket.session_messages import (
    ANSWER,
    Json,
    command,
    message,
    read,
    subscribed,
)

AUTH = command("AUTH", secret="alice", ref=7)
ALICE = ResubscribeWithSecret(Secret(b"alice"))
GRANTED = AuthResponse(identity="alice", identity_url="http://who", permission_count=2)
SUBSCRIBED = {"topic": "t", "channel": "c", "max_in_flight": 10, "msg_timeout_ms": 60_000}
TOO_LATE_S = AUTH_TIMEOUT_S


def new(**options: Any) -> Session:  # noqa: ANN401 - any option
    return Session(SessionOptions(topic="t", channel="c", **options), now=0.0)


def asked(now: float = 0.0) -> Session:
    """Return a session whose broker wants AUTH, before its client said anything."""
    session = new()
    assert [] == session.on_secret_missing(now)
    return session


def response(cmd: str, data: object, ref: object = None) -> Json:
    return {"type": "response", "cmd": cmd, "ref": ref, "data": data}


def codes(session: Session) -> list[tuple[str | None, object, str]]:
    """Return command, ref and code of each error that the client reads."""
    return [
        (each["cmd"], each["ref"], each["code"])
        for each in read(session, 0.0)
        if each["type"] == "error"
    ]


# Nobody wants it


@pytest.mark.parametrize("ref", [None, 7])
def test_auth_where_none_is_wanted_is_answered_ok(ref: int | None) -> None:
    """AUTH is answered in any case, with a ref or without, and the socket goes on."""
    session = subscribed()

    actions = session.receive(command("AUTH", secret="alice", ref=ref), 0.0)

    assert ([], [response("AUTH", "OK", ref)]) == (actions, read(session, 0.0))


def test_a_second_auth_is_invalid() -> None:
    """The socket stays, and what it is subscribed to too."""
    session = subscribed()
    session.receive(AUTH, 0.0)
    read(session, 0.0)

    actions = session.receive(command("AUTH", secret="bob", ref=8), 0.0)

    assert ([], [("AUTH", 8, "E_INVALID")]) == (actions, codes(session))


def test_auth_beside_a_secret_that_came_before_is_invalid() -> None:
    """A header and a subprotocol entry are AUTH already."""
    session = subscribed(has_secret=True)

    actions = session.receive(AUTH, 0.0)

    assert ([], [("AUTH", 7, "E_INVALID")]) == (actions, codes(session))


# A broker wants it


def test_the_clients_auth_is_tried() -> None:
    """Nothing is answered before the brokers have said something."""
    session = asked()

    actions = session.receive(AUTH, 1.0)

    assert ([ALICE], []) == (actions, read(session, 1.0))


def test_auth_is_answered_before_the_subscription() -> None:
    """What nsqd said to it, then what the socket is subscribed to."""
    session = asked()
    session.receive(AUTH, 1.0)

    actions = session.on_source_opened(1, ANSWER, GRANTED)

    assert [SetReady(10)] == actions
    said = {"identity": "alice", "identity_url": "http://who", "permission_count": 2}
    assert [response("AUTH", said, 7), response("SUB", SUBSCRIBED)] == read(session, 1.0)


def test_auth_that_the_gateway_alone_wanted_is_answered_ok() -> None:
    """A broker that wants none says nothing to it."""
    session = asked()
    session.receive(AUTH, 1.0)

    session.on_source_opened(1, ANSWER)

    assert [response("AUTH", "OK", 7), response("SUB", SUBSCRIBED)] == read(session, 1.0)


def test_the_second_broker_does_not_answer_auth_again() -> None:
    """Of several, the first tells; the others are a change of state."""
    session = asked()
    session.receive(AUTH, 1.0)
    session.on_source_opened(1, ANSWER, GRANTED)
    read(session, 1.0)

    session.on_source_opened(2, ANSWER, GRANTED)

    data = {"state": "connected", "nsqds": 2, "lost_ids": []}
    assert [response("NOP", data)] == read(session, 1.0)


@pytest.mark.parametrize(
    "text,cmd,ref",
    [
        (command("NOP", ref=1), "NOP", 1),
        (command("FIN", id="x", ref=2), "FIN", 2),
        (command("RDY", count=1), "RDY", None),
        (command("CLS"), "CLS", None),
        (command("HELLO", ref=3), "HELLO", 3),
        ('{"cmd":"RDY","count":"x","ref":4}', "RDY", 4),
        ("no JSON", None, None),
    ],
)
def test_another_command_first_is_refused_and_ends_it(
    text: str, cmd: str | None, ref: int | None
) -> None:
    """E_AUTH_FIRST names it, and what stands behind it is not looked at."""
    session = asked()

    actions = session.receive(f"{text}\n{AUTH}", 1.0)

    assert [CloseSocket(CloseReason.NO_AUTH)] == actions
    assert [(cmd, ref, "E_AUTH_FIRST")] == codes(session)


def test_no_auth_in_time_ends_it() -> None:
    """Ten seconds from when it was wanted, with a word on why."""
    session = asked(now=5.0)

    before = session.wake(5.0 + TOO_LATE_S - 0.001)
    due = session.next_wake()
    after = session.wake(5.0 + TOO_LATE_S)

    assert ([], 5.0 + TOO_LATE_S) == (before, due)
    assert [CloseSocket(CloseReason.NO_AUTH)] == after
    assert [(None, None, "E_AUTH_FIRST")] == codes(session)


def test_to_be_asked_again_gives_no_more_time() -> None:
    """Each broker that comes says that it wants AUTH; the first counts."""
    session = asked(now=0.0)

    session.on_secret_missing(9.0)

    assert TOO_LATE_S == session.next_wake()


def test_with_auth_the_clock_stops() -> None:
    """What the brokers take to answer is not the client's time."""
    session = asked()
    session.receive(AUTH, 1.0)

    assert ([], None) == (session.wake(TOO_LATE_S), session.next_wake())


def test_an_outage_does_not_begin_while_a_broker_waits_for_auth() -> None:
    session = Session(SessionOptions(topic="t", channel="c", broker_outage_s=1.0), now=0.0)
    session.on_secret_missing(0.0)

    assert [] == session.wake(2.0)


@pytest.mark.parametrize(
    "text",
    [
        command("AUTH", ref=1),
        command("AUTH", secret="", ref=1),
        command("AUTH", secret=None, ref=1),
        command("AUTH", secret=5, ref=1),
        command("AUTH", secret="s" * (MAX_SECRET_BYTES + 1), ref=1),
        command("AUTH", secret="é" * (MAX_SECRET_BYTES // 2 + 1), ref=1),
    ],
    ids=["none", "empty", "null", "a number", "too long", "too long in bytes"],
)
def test_auth_without_a_secret_that_can_be_used_is_invalid(text: str) -> None:
    """The socket waits on, and the next one may be right."""
    session = asked()

    refused = session.receive(text, 1.0)
    taken = session.receive(AUTH, 2.0)

    assert ([], [ALICE]) == (refused, taken)
    assert [("AUTH", 1, "E_INVALID")] == codes(session)


def test_the_longest_secret_is_taken() -> None:
    """As many bytes as are allowed."""
    session = asked()
    secret = "s" * MAX_SECRET_BYTES

    actions = session.receive(command("AUTH", secret=secret), 1.0)

    assert [ResubscribeWithSecret(Secret(secret.encode()))] == actions


def test_too_many_unusable_auths_end_it() -> None:
    session = asked()

    actions = session.receive("\n".join([command("AUTH")] * (MAX_ERRORS + 1)), 1.0)

    assert [CloseSocket(CloseReason.TOO_MANY_ERRORS)] == actions


def test_what_stands_behind_auth_waits_for_its_answer() -> None:
    """The answers come in the order of the commands."""
    session = asked()
    first = session.receive(f"{AUTH}\n{command('RDY', count=3, ref=8)}", 1.0)
    before = read(session, 1.0)
    session.on_source_opened(1, ANSWER, GRANTED)

    actions = session.run_waiting(2.0)

    assert ([ALICE], [], [SetReady(3)]) == (first, before, actions)
    assert [("AUTH", 7), ("SUB", None), ("RDY", 8)] == [
        (each["cmd"], each["ref"]) for each in read(session, 2.0)
    ]


def test_a_secret_that_is_refused_ends_it() -> None:
    """The one answer to AUTH is the error, with what nsqd said."""
    session = asked()
    session.receive(AUTH, 1.0)

    actions = session.on_auth_failed("E_AUTH_FAILED", "AUTH failed", CloseReason.FORBIDDEN)

    assert [CloseSocket(CloseReason.FORBIDDEN)] == actions
    assert [
        {
            "type": "error",
            "cmd": "AUTH",
            "ref": 7,
            "code": "E_AUTH_FAILED",
            "message": "AUTH failed",
            "retryable": False,
        }
    ] == read(session, 1.0)


def test_what_stands_behind_a_refused_auth_is_not_carried_out() -> None:
    """The socket has ended; nobody asks for messages any more."""
    session = asked()
    session.receive(f"{AUTH}\n{command('RDY', count=3, ref=8)}", 1.0)
    session.on_auth_failed("E_AUTH_FAILED", "AUTH failed", CloseReason.FORBIDDEN)

    actions = session.run_waiting(2.0)

    assert ([], [("AUTH", 7, "E_AUTH_FAILED")]) == (actions, codes(session))
    assert None is session.next_wake()


def test_a_drain_takes_a_socket_that_waits_too() -> None:
    """It is told, and closed at its moment."""
    session = asked()

    session.drain(CloseReason.DRAINED, close_at=3.0, reconnect_after_ms=5)

    assert [CloseSocket(CloseReason.DRAINED)] == session.wake(3.0)
    assert ["CLS"] == [each["cmd"] for each in read(session, 3.0)]


# Nobody is known who could want it


def test_without_a_broker_so_far_the_subscription_is_answered() -> None:
    """The topic's first message will bring its broker, which then is a change of state."""
    session = new()

    actions = session.on_no_source(30_000, 0.0)
    answer = read(session, 0.0)
    session.on_source_opened(1, ANSWER)

    assert [SetReady(10)] == actions
    assert [response("SUB", {**SUBSCRIBED, "msg_timeout_ms": 30_000})] == answer
    data = {"state": "connected", "nsqds": 1, "lost_ids": []}
    assert [response("NOP", data)] == read(session, 0.0)


def test_to_be_without_a_broker_again_is_no_second_subscription() -> None:
    """Once told, the client is told of changes only; the outage counts from now."""
    session = new(broker_outage_s=300.0)
    session.on_no_source(60_000, 0.0)
    read(session, 0.0)

    session.on_no_source(60_000, 50.0)

    assert ([], 350.0) == (read(session, 50.0), session.next_wake())


def test_auth_is_answered_although_no_broker_is_there_yet() -> None:
    """OK, for nobody has said anything else."""
    session = asked()
    session.receive(AUTH, 1.0)

    session.on_no_source(60_000, 1.0)

    assert [response("AUTH", "OK", 7), response("SUB", SUBSCRIBED)] == read(session, 1.0)


def test_a_broker_that_comes_later_gives_ten_seconds() -> None:
    """Until then the client may say what it likes: it could not know."""
    session = new()
    session.on_no_source(60_000, 0.0)
    session.on_secret_missing(100.0)
    read(session, 100.0)

    session.receive(command("NOP", ref=1), 101.0)
    taken = session.receive(AUTH, 102.0)
    session.on_source_opened(1, ANSWER, GRANTED)

    assert [ALICE] == taken
    assert ["NOP", "AUTH", "NOP"] == [each["cmd"] for each in read(session, 102.0)]


def test_a_broker_that_comes_later_ends_who_has_no_secret() -> None:
    """Ten seconds after it came."""
    session = new()
    session.on_no_source(60_000, 0.0)
    session.on_secret_missing(100.0)

    assert [] == session.wake(109.9)
    assert [CloseSocket(CloseReason.NO_AUTH)] == session.wake(110.0)


def test_a_secret_that_nobody_wanted_is_kept_for_a_broker_that_does() -> None:
    """It was answered OK; now it is tried, and not answered again."""
    session = new()
    session.on_no_source(60_000, 0.0)
    session.receive(AUTH, 1.0)
    read(session, 1.0)

    actions = session.on_secret_missing(100.0)
    session.on_source_opened(1, ANSWER, GRANTED)

    assert [ALICE] == actions
    assert ["NOP"] == [each["cmd"] for each in read(session, 100.0)]


def test_a_kept_secret_is_tried_once() -> None:
    """Every broker that comes asks, and the first one's question counts."""
    session = subscribed()
    session.receive(AUTH, 0.0)
    session.on_secret_missing(1.0)

    assert [] == session.on_secret_missing(2.0)


# The secret does not hold any more


def test_a_revoked_secret_ends_an_open_socket() -> None:
    """Unasked, and behind what waits."""
    session = subscribed(has_secret=True)
    session.on_messages(1, [message(0xA)], 0.0)

    actions = session.on_auth_failed("E_UNAUTHORIZED", "no more", CloseReason.SECRET_REFUSED)

    assert [CloseSocket(CloseReason.SECRET_REFUSED)] == actions
    assert [("AUTH", None, "E_UNAUTHORIZED")] == codes(session)


def test_what_has_ended_is_told_nothing_more() -> None:
    session = asked()
    session.wake(TOO_LATE_S)
    read(session, 0.0)

    actions = session.on_auth_failed("E_AUTH_FAILED", "AUTH failed", CloseReason.FORBIDDEN)

    assert ([], []) == (actions, read(session, 0.0))


def test_no_repr_tells_a_secret() -> None:
    """Not of an action either, which a traceback or a log could name."""
    assert "alice" not in repr(ALICE)


def test_after_the_end_nobody_subscribes_with_a_secret_that_was_kept() -> None:
    """A broker that wants one while the socket leaves is left too."""
    session = subscribed()
    session.receive(AUTH, 0.0)
    kept = session.unused_secret
    session.close(1.0)

    assert [] == session.on_secret_missing(2.0)
    assert Secret(b"alice") == kept
