"""A second AUTH with a fresher token, where the gateway has an access file."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.credentials import Secret
from gateway.errors import InvalidRequest
from gateway.protocol.identify import AuthResponse
from gateway.session.auth import MAX_SECRET_BYTES, AccessResponse, Authentication
from gateway.session.json_frames import AuthCommand, Ref
from gateway.session.session import Session
from gateway.session.types import (
    Action,
    CloseReason,
    CloseSocket,
    RenewSecret,
    ResubscribeWithSecret,
    SessionOptions,
)
from tests.support.websocket.session_messages import ANSWER, acknowledged, command, holding, read

FRESH = Secret(b"fresh")
RENEWAL = command("AUTH", secret="fresh", ref=8)
OURS = AccessResponse(identity="alice", identity_url="", permission_count=2, expires_in_ms=60_000)
SAID = {"identity": "alice", "identity_url": "", "permission_count": 2, "expires_in_ms": 60_000}
OF_NSQD = AuthResponse(identity="x", identity_url="http://nsqd", permission_count=1)


def opened(**options: Any) -> Session:  # noqa: ANN401 - any option
    """Return a session of a client that brought its token with the upgrade."""
    wanted = SessionOptions(topic="t", channel="c", renews_secret=True, has_secret=True, **options)
    session = Session(wanted, now=0.0)
    session.on_source_opened(1, ANSWER)
    read(session, 0.0)
    return session


def asked() -> Session:
    """Return a session whose client must send AUTH."""
    session = Session(SessionOptions(topic="t", channel="c", renews_secret=True), now=0.0)
    assert [] == session.on_secret_missing(0.0)
    return session


def told(session: Session) -> list[tuple[str, Any, Any]]:
    return [
        (each["cmd"], each["ref"], each.get("code", each.get("data")))
        for each in read(session, 0.0)
    ]


# Authentication


@pytest.mark.parametrize("size", [1, MAX_SECRET_BYTES])
def test_the_secret_of_a_renewal_is_returned(size: int) -> None:
    assert Secret(b"s" * size) == Authentication.take_renewal(AuthCommand(secret="s" * size))


@pytest.mark.parametrize("secret", ["", "s" * (MAX_SECRET_BYTES + 1), "é" * MAX_SECRET_BYTES])
def test_a_renewal_without_a_secret_of_a_valid_size_is_invalid(secret: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Authentication.take_renewal(AuthCommand(secret=secret))

    assert "E_INVALID" == caught.value.token


def test_a_renewal_changes_no_state() -> None:
    auth = Authentication(has_secret=True)

    Authentication.take_renewal(AuthCommand(secret="s"))

    assert (True, False, False, None) == (
        *(auth.is_set, auth.is_blocking, auth.is_missing),
        auth.unused_secret,
    )


@pytest.mark.parametrize("of_nsqd", [None, OF_NSQD])
def test_the_response_of_the_access_file_goes_before_that_of_nsqd(
    of_nsqd: AuthResponse | None,
) -> None:
    """Also where no nsqd requires AUTH, and the response would be OK."""
    auth = Authentication(has_secret=False)
    auth.require(0.0, is_subscribed=False)
    auth.take(AuthCommand(secret="s", ref=7))
    auth.own_response = OURS

    response = auth.take_response(of_nsqd)

    assert response is not None
    assert (7, OURS, True) == (response.ref, response.data, auth.is_set)
    assert auth.take_response(of_nsqd) is None


# Session


def test_a_second_auth_asks_for_a_renewal() -> None:
    """Nothing is answered before the gateway has looked at the token."""
    session = opened()

    actions = session.receive(RENEWAL, 1.0)

    assert ([RenewSecret(FRESH, 8)], []) == (actions, read(session, 1.0))


@pytest.mark.parametrize("ref", [None, 8, "eight", 8.5, True])
def test_a_renewal_is_answered_with_its_ref(ref: Ref) -> None:
    session = opened()
    session.receive(command("AUTH", secret="fresh", ref=ref), 1.0)

    assert [] == session.on_renewed(ref, OURS)
    assert [("AUTH", ref, SAID)] == told(session)


def test_a_refused_renewal_is_an_error_and_the_stream_goes_on() -> None:
    session = opened()
    (held,) = holding(session, 1)
    session.receive(RENEWAL, 1.0)

    actions = session.on_renewal_refused(8, "E_INVALID", "of another subject", 1.0)

    assert ([], [("AUTH", 8, "E_INVALID")]) == (actions, told(session))
    assert session.is_open
    assert 1 == len(acknowledged(session.receive(command("FIN", id=held), 1.0)))


def test_renewals_that_are_refused_end_the_stream_at_the_limit_of_errors() -> None:
    session = opened()
    actions: list[Action] = []
    while not actions:
        actions = session.on_renewal_refused(8, "E_AUTH_FAILED", "not valid", 1.0)

    assert CloseSocket(CloseReason.TOO_MANY_ERRORS) == actions[-1]


def test_a_renewal_waits_for_nothing_and_stops_nothing() -> None:
    """Commands before and behind it in one frame run in order."""
    session = opened()

    actions = session.receive(
        "\n".join([command("NOP", ref=1), RENEWAL, command("NOP", ref=2)]), 1.0
    )

    assert [RenewSecret(FRESH, 8)] == actions
    assert [("NOP", 1, "OK"), ("NOP", 2, "OK")] == told(session)


@pytest.mark.parametrize("secret", ["", "s" * (MAX_SECRET_BYTES + 1)])
def test_a_renewal_that_is_no_auth_gets_an_error(secret: str) -> None:
    session = opened()

    actions = session.receive(command("AUTH", secret=secret, ref=8), 1.0)

    assert ([], [("AUTH", 8, "E_INVALID")]) == (actions, told(session))


def test_the_first_auth_is_no_renewal() -> None:
    session = asked()

    assert [ResubscribeWithSecret(FRESH)] == session.receive(RENEWAL, 1.0)


def test_an_auth_while_the_first_is_verified_is_refused() -> None:
    """A client that cannot know yet whether its token is good has nothing to renew."""
    session = asked()
    session.receive(command("AUTH", secret="first", ref=7), 1.0)
    session.receive(RENEWAL, 1.0)
    session.set_auth_response(OURS)
    session.on_source_opened(1, ANSWER)
    session.run_waiting(1.0)

    answers = told(session)
    assert [("AUTH", 7, SAID), ("SUB", None)] == [answers[0], answers[1][:2]]


def test_without_an_access_file_there_is_no_renewal() -> None:
    session = Session(SessionOptions(topic="t", channel="c", has_secret=True), now=0.0)
    session.on_source_opened(1, ANSWER)
    read(session, 0.0)

    assert [] == session.receive(RENEWAL, 1.0)
    assert [("AUTH", 8, "E_INVALID")] == told(session)


def test_an_nsqd_that_requires_auth_later_gets_the_token_that_was_kept() -> None:
    """The fresher one, after a renewal; the client is asked for nothing, and told nothing."""
    session = opened()
    session.keep_unused(Secret(b"first"))
    session.receive(RENEWAL, 1.0)
    session.keep_unused(FRESH)
    session.on_renewed(8, OURS)
    told(session)

    actions = session.on_secret_missing(2.0)

    assert ([ResubscribeWithSecret(FRESH)], []) == (actions, told(session))
    assert session.unused_secret is None


def test_a_token_that_ended_closes_with_an_error_without_ref() -> None:
    session = opened()
    session.receive(RENEWAL, 1.0)

    actions = session.on_auth_failed(
        "E_AUTH_FAILED", "the token has expired", CloseReason.SECRET_REFUSED
    )

    assert CloseSocket(CloseReason.SECRET_REFUSED) in actions
    assert [("AUTH", None, "E_AUTH_FAILED")] == told(session)


def test_a_token_ends_once() -> None:
    """The file may change again before the client has answered the close."""
    session = opened()
    end = "E_AUTH_FAILED", "the token has expired", CloseReason.SECRET_REFUSED
    session.on_auth_failed(*end)

    assert [] == session.on_auth_failed(*end)
    assert 1 == len(told(session))
