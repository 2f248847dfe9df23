"""When a socket's access ends, by its token or by a change of the file; what a renewal must be."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.access.control import AccessControl
from gateway.access.rights import Grant, Identity, Permission, Rights
from gateway.credentials import Secret
from gateway.errors import (
    BrokerRefused,
    CredentialRefused,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NoBroker,
    PermissionDenied,
)
from gateway.session.types import CloseReason, SessionOptions
from gateway.web.auth import ANONYMOUS, AccessPolicy, Principal
from gateway.web.subscribe.access import (
    _MAX_STALE_ENTRIES,
    _SOCKETS_PER_TURN,
    AccessExpiry,
    access_response,
    check_renewal,
    check_subscription,
    explain_subscribe_error,
)
from tests.support.gateways.access_file import access_file
from tests.support.manual_clock import ManualClock, turn

EPOCH = 1_800_000_000.0
SECRET = Secret(b"token")


class MovedControl(AccessControl):
    """A control whose clock and changes a test makes."""

    def __init__(self, path: str) -> None:
        self.now = EPOCH
        super().__init__(path, clock=lambda: self.now)

    def change(self) -> None:
        """Do what a change of the file does."""
        for callback in self._listeners:
            callback()


class WatchedSocket:
    """A socket that counts what happens to it."""

    def __init__(self, expires_at: float | None = EPOCH + 60) -> None:
        self.expires_at = expires_at
        self.after_recheck: float | None = expires_at
        """`expires_at` after the next check."""
        self.rechecks = 0
        self.ends: list[str] = []

    def recheck_access(self) -> None:
        """Count the check."""
        self.rechecks += 1
        self.expires_at = self.after_recheck

    def end_access(self, message: str) -> None:
        """Record the end."""
        self.ends.append(message)

    def renew(self, expires_at: float) -> None:
        """Have a fresher token."""
        self.expires_at = self.after_recheck = expires_at


@pytest.fixture
def control(tmp_path: Path) -> MovedControl:
    return MovedControl(access_file(tmp_path))


@pytest_asyncio.fixture
async def clock() -> AsyncIterator[ManualClock]:
    clock = ManualClock()
    yield clock
    clock.run_on()


@pytest.fixture
def expiry(control: MovedControl) -> AccessExpiry:
    return AccessExpiry(control)


async def pass_time(clock: ManualClock, control: MovedControl, seconds: float) -> None:
    """Let both clocks run, in steps of the timer."""
    while seconds > 0:
        step_s = min(1.0, seconds)
        control.now += step_s
        await clock.advance(step_s)
        seconds -= step_s


# The end of a token


async def test_a_socket_ends_within_two_seconds_of_its_token(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket(EPOCH + 10)
    expiry.watch(socket)

    await pass_time(clock, control, 9.5)
    before = list(socket.ends)
    await pass_time(clock, control, 2.5)

    assert ([], ["the token has expired"]) == (before, socket.ends)


async def test_a_token_that_ended_before_the_socket_was_open_ends_it(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket(EPOCH - 5)
    expiry.watch(socket)
    await pass_time(clock, control, 1)

    assert 1 == len(socket.ends)


async def test_a_renewal_moves_the_end(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket(EPOCH + 10)
    expiry.watch(socket)
    await pass_time(clock, control, 5)
    socket.renew(EPOCH + 100)

    await pass_time(clock, control, 94)
    before = list(socket.ends)
    await pass_time(clock, control, 3)

    assert ([], 1) == (before, len(socket.ends))


async def test_a_key_without_an_end_never_ends(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket(math.inf)
    expiry.watch(socket)
    control.now += 1e12
    await pass_time(clock, control, 3)

    assert [] == socket.ends


async def test_a_socket_without_an_identity_is_not_watched(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """Its client has not sent AUTH yet, and `watch` is called again when it has."""
    socket = WatchedSocket(None)
    expiry.watch(socket)
    control.change()
    await pass_time(clock, control, 3)
    before = socket.rechecks
    socket.renew(EPOCH + 6)
    expiry.watch(socket)
    expiry.watch(socket)
    await pass_time(clock, control, 5)

    assert (0, 1, 1) == (before, socket.rechecks, len(socket.ends))


async def test_a_closed_socket_is_left_alone(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket(EPOCH + 1)
    expiry.watch(socket)
    expiry.forget(socket)
    expiry.forget(socket)
    control.change()
    await pass_time(clock, control, 5)

    assert (0, []) == (socket.rechecks, socket.ends)


# Steps of the wall clock


async def test_a_step_forwards_ends_at_the_next_look(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """The event loop's clock knows nothing of the step."""
    socket = WatchedSocket(EPOCH + 3_600)
    expiry.watch(socket)
    await pass_time(clock, control, 2)
    control.now += 3_600
    await clock.advance(1.0)

    assert 1 == len(socket.ends)


async def test_a_step_backwards_gives_the_time_back(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket(EPOCH + 10)
    expiry.watch(socket)
    await pass_time(clock, control, 5)
    control.now -= 3_600
    await pass_time(clock, control, 3_600)
    before = list(socket.ends)
    await pass_time(clock, control, 6)

    assert ([], 1) == (before, len(socket.ends))


# A change of the file


async def test_a_change_checks_each_socket_at_once(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """Without waiting for the timer, and once for each change."""
    sockets = [WatchedSocket() for _ in range(3)]
    for socket in sockets:
        expiry.watch(socket)
    await pass_time(clock, control, 1)
    before = [socket.rechecks for socket in sockets]
    control.change()
    await clock.advance(0.0)

    assert ([1, 1, 1], [2, 2, 2]) == (before, [socket.rechecks for socket in sockets])


async def test_a_socket_is_checked_once_it_is_open(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """The file may have changed after the client was identified, while nsqd was asked."""
    socket = WatchedSocket()
    expiry.watch(socket)
    await pass_time(clock, control, 3)

    assert 1 == socket.rechecks


@pytest.mark.parametrize("before", [math.inf, EPOCH + 1_000])
async def test_a_change_may_bring_the_end_nearer(
    before: float, clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """A key gets an `expires_at`, or an earlier one."""
    socket = WatchedSocket(before)
    expiry.watch(socket)
    await pass_time(clock, control, 2)
    socket.after_recheck = EPOCH + 10
    control.change()
    await pass_time(clock, control, 7)
    early = list(socket.ends)
    await pass_time(clock, control, 3)

    assert ([], 1) == (early, len(socket.ends))


async def test_a_change_during_the_checks_begins_them_again(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    sockets = [WatchedSocket() for _ in range(2 * _SOCKETS_PER_TURN)]
    for socket in sockets:
        expiry.watch(socket)
    await pass_time(clock, control, 1)
    await clock.advance(0.0)
    control.change()
    await turn()  # the timer, which is due
    control.change()
    for _ in range(4):
        await clock.advance(0.0)

    assert {2, 3} >= {socket.rechecks for socket in sockets}
    assert min(socket.rechecks for socket in sockets) >= 2


# Many


async def test_three_thousand_sockets_end_in_turns_of_fifty(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """No turn of the event loop has more, and all are gone in the second of the end."""
    sockets = [WatchedSocket(EPOCH + 10) for _ in range(3_000)]
    for socket in sockets:
        expiry.watch(socket)
    await pass_time(clock, control, 1)
    for _ in range(3_000 // _SOCKETS_PER_TURN):
        await clock.advance(0.0)
    control.now += 10
    ended: list[int] = []
    loop = asyncio.get_running_loop()

    def count() -> None:
        """Count in each turn of the event loop, until all have ended."""
        ended.append(sum(map(len, (socket.ends for socket in sockets))))
        if ended[-1] < len(sockets):
            loop.call_soon(count)

    count()
    await clock.advance(1.0)
    while ended[-1] < len(sockets):
        await clock.advance(0.0)

    assert max(after - before for before, after in pairwise(ended)) <= _SOCKETS_PER_TURN
    assert [1] * 3_000 == [len(socket.ends) for socket in sockets]


async def test_closed_sockets_are_not_kept_until_their_tokens_end(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    """While one is open, a hundred thousand come and go with tokens of a year."""
    stays = WatchedSocket(EPOCH + 10)
    expiry.watch(stays)
    for _ in range(100_000):
        guest = WatchedSocket(EPOCH + 31_536_000)
        expiry.watch(guest)
        expiry.forget(guest)
        if len(expiry._unchecked) >= 500:
            expiry._unchecked.clear()  # the timer does it, which has no turn here

    kept = len(expiry._expiring)
    await pass_time(clock, control, 12)

    assert kept <= 2 + _MAX_STALE_ENTRIES
    assert 1 == len(stays.ends)


async def test_the_timer_rests_without_sockets(
    clock: ManualClock, control: MovedControl, expiry: AccessExpiry
) -> None:
    socket = WatchedSocket()
    expiry.watch(socket)
    expiry.forget(socket)
    await pass_time(clock, control, 2)
    control.change()

    assert expiry._timer is None


# A fresher token


def principal(
    name: str = "alice",
    *,
    issuer: str = "https://id",
    expires_at: float = EPOCH + 60,
    grants: tuple[Grant, ...] = (),
) -> Principal:
    return Principal(SECRET, Identity(issuer, name, Rights(grants), expires_at))


@pytest.mark.parametrize(
    "after",
    [
        principal(expires_at=EPOCH + 120),
        principal(),
        principal(expires_at=math.inf),
    ],
    ids=["later", "the same end", "no end"],
)
def test_a_token_of_the_same_subject_that_ends_no_earlier_is_a_renewal(after: Principal) -> None:
    check_renewal(principal(), after)


@pytest.mark.parametrize(
    "before,after,words",
    [
        (principal(), principal("bob"), "another subject"),
        (principal(), principal(issuer="https://other"), "another subject"),
        (principal(), Principal(SECRET), "another subject"),
        (ANONYMOUS, principal(), "another subject"),
        (principal(), principal(expires_at=EPOCH + 59), "expires before"),
        (principal(expires_at=math.inf), principal(expires_at=1e300), "expires before"),
    ],
    ids=["subject", "issuer", "no identity", "none before", "earlier", "an end"],
)
def test_what_is_no_renewal_is_invalid(before: Principal, after: Principal, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        check_renewal(before, after)

    assert "E_INVALID" == caught.value.token


# Who may subscribe


SUBSCRIBES = principal(grants=(Grant("^t$", (Permission.SUBSCRIBE,), ("^c$",)),))
WATCHES = principal(grants=(Grant("^t$", (Permission.WATCH,)),))


@pytest.mark.parametrize(
    "caller,topic,channel,allowed",
    [
        (SUBSCRIBES, "t", "c", True),
        (SUBSCRIBES, "t", "d", False),
        (SUBSCRIBES, "u", "c", False),
        (SUBSCRIBES, "t", "", False),
        (WATCHES, "t", "", True),
        (WATCHES, "u", "", False),
        (WATCHES, "t", "c", False),
        (WATCHES, "t", "c#ephemeral", False),
        (ANONYMOUS, "t", "c", True),
        (ANONYMOUS, "t", "", True),
    ],
)
def test_a_subscription_needs_the_right(
    caller: Principal, topic: str, channel: str, *, allowed: bool
) -> None:
    """Without a channel, that to watch; without an access file, none."""
    options = SessionOptions(topic=topic, channel=channel)
    if allowed:
        check_subscription(caller, options)
    else:
        with pytest.raises(PermissionDenied):
            check_subscription(caller, options)


# What the client is told


@pytest.mark.parametrize(
    "expires_at,left_ms",
    [(EPOCH + 60, 60_000), (EPOCH + 0.25, 250), (EPOCH - 9, 0), (math.inf, None)],
)
def test_the_answer_to_auth_says_how_long_it_holds(
    expires_at: float, left_ms: int | None, control: MovedControl
) -> None:
    grants = (Grant("^t$", (Permission.WATCH,)), Grant("^u$", (Permission.PUBLISH,)))
    caller = principal(expires_at=expires_at, grants=grants)

    answer = access_response(caller, AccessPolicy(control=control))

    assert answer is not None
    assert ("alice", "", 2) == (answer.identity, answer.identity_url, answer.permission_count)
    assert left_ms == answer.expires_in_ms


def test_without_an_access_file_nsqd_answers_auth(control: MovedControl) -> None:
    assert access_response(principal(), AccessPolicy()) is None
    assert access_response(Principal(SECRET), AccessPolicy(control=control)) is None


@pytest.mark.parametrize(
    "error,code,reason,retryable",
    [
        (CredentialRefused("expired"), "E_AUTH_FAILED", CloseReason.SECRET_REFUSED, False),
        (PermissionDenied("no"), "E_UNAUTHORIZED", CloseReason.FORBIDDEN, False),
        (BrokerRefused("E_UNAUTHORIZED", "no"), "E_UNAUTHORIZED", CloseReason.FORBIDDEN, False),
        (LimitReached("full"), "FULL", CloseReason.FULL, True),
        (NoBroker("none"), "NO_BROKER", CloseReason.NO_BROKER, True),
    ],
    ids=["credential", "permission", "nsqd", "limit", "no nsqd"],
)
def test_what_a_client_is_told_of_a_refusal(
    error: GatewayError, code: str, reason: CloseReason, *, retryable: bool
) -> None:
    why = explain_subscribe_error(error)

    assert (code, reason, retryable) == (why.code, why.reason, why.is_retryable)
    assert "expired" not in why.message


def test_a_defect_is_told_without_details() -> None:
    why = explain_subscribe_error(ValueError("details"))

    assert ("INTERNAL_ERROR", CloseReason.FAILED) == (why.code, why.reason)
    assert "details" not in why.message
