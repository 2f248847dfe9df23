"""One socket's place in NSQ, also when its secret comes late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import SubscriptionOptions
from gateway.errors import AuthRequired, BrokerRefused, NoBroker
from gateway.protocol.authorization import Authorization
from gateway.protocol.commands import Auth, Identify, Ready, StartClose, Subscribe
from gateway.protocol.identify import Answer, Offer
from gateway.secret import Secret
from gateway.session.actions import Cause, PauseReading, Requeue, ResumeReading
from gateway.session.actions import Ready as Window
from gateway.web.membership import Common, OwnMembership
from gateway.web.recheck import Rechecks
from gateway.web.socket_account import REQUEUED
from tests.support.guarded_broker import GuardedBroker
from tests.support.scripted_broker import refuse
from tests.support.subscription import SubscriptionListener

ALICE = Secret(b"alice")


class Socket(SubscriptionListener):
    """Who is told; it counts its sources as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.membership: OwnMembership | None = None
        self.authorizations: list[Authorization | None] = []

    def source_opened(self, source: int, answer: Answer) -> None:
        """Count it, and keep what was said to AUTH."""
        super().source_opened(source, answer)
        assert self.membership is not None
        self.authorizations.append(self.membership.source_opened(source, answer))

    def auth_addresses(self) -> Sequence[str]:
        """Return where AUTH was said."""
        return self.membership.auth_addresses() if self.membership else ()

    def secret_refused(self, error: BrokerRefused) -> None:
        """Keep nothing: nobody asks again here."""

    def channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - as it is told
        """Keep it."""
        self.told.put_nowait(("paused", 0, is_paused))


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[GuardedBroker]:
    """A broker that wants AUTH and knows Alice."""
    broker = GuardedBroker()
    broker.grants[ALICE.reveal()] = {"t"}
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def common(broker: GuardedBroker) -> Common:
    """What the memberships of one process share."""
    rechecks = Rechecks(60.0, random=lambda: 1.0)
    return Common(discovery=Discovery([broker.address]), refusals=Refusals(), rechecks=rechecks)


@asynccontextmanager
async def member(
    common: Common,
    *,
    channel: str = "c",
    refusal_channel: str | None = None,
    msg_timeout: int = 0,
) -> AsyncIterator[OwnMembership]:
    """Return a membership of "t" that has not joined, and leave it."""
    socket = Socket()
    offer = Offer(feature_negotiation=True, msg_timeout=msg_timeout)
    options = SubscriptionOptions(
        topic="t", channel=channel, connection=ConnectionOptions(offer=offer)
    )
    membership = OwnMembership(common, options, socket, refusal_channel=refusal_channel)
    socket.membership = membership
    try:
        yield membership
    finally:
        await membership.leave()


async def test_a_secret_that_comes_late_joins(broker: GuardedBroker, common: Common) -> None:
    """Without one NSQ says that it wants one; with it there is a source, and where it is."""
    async with member(common) as membership:
        with pytest.raises(AuthRequired):
            await membership.join(None)
        await membership.join(ALICE)

        assert [1] == membership.sources
        assert [broker.address] == membership.auth_addresses()
        assert ALICE == membership.secret


async def test_what_was_said_to_auth_is_told(common: Common) -> None:
    """With the source."""
    async with member(common) as membership:
        await membership.join(ALICE)
        socket = membership._listener

        assert isinstance(socket, Socket)
        assert [Authorization(identity="somebody", permission_count=1)] == socket.authorizations


async def test_joining_again_leaves_what_was_joined(broker: GuardedBroker, common: Common) -> None:
    """The first subscription ends in good order; the second has the same window."""
    broker.wants_auth(wants=False)
    async with member(common) as membership:
        await membership.join(None)
        membership.carry_out(Window(7))
        await broker.peers[0].next(Ready)
        broker.wants_auth(wants=True)
        await membership.join(ALICE)
        await broker.peers[0].gone()
        ready = await broker.peers[1].next(Ready)

        assert (7, [1]) == (ready.count, membership.sources)
        assert 1 == len(broker.peers[0].all(StartClose))


async def test_reading_stays_paused_over_a_new_subscription(common: Common) -> None:
    """What a slow client may have waiting is bounded all the while."""
    async with member(common) as membership:
        membership.carry_out(PauseReading())
        await membership.join(ALICE)
        subscription = membership._subscription
        assert subscription is not None
        paused = subscription._is_reading
        membership.carry_out(ResumeReading())

        assert (False, True) == (paused, subscription._is_reading)


@pytest.mark.parametrize("cause", Cause)
async def test_what_goes_back_is_counted_by_its_cause(common: Common, cause: Cause) -> None:
    """Where there is a subscription that it goes back on."""
    before = dict(REQUEUED.counts)
    back = Requeue(1, [b"0123456789abcdef"], 0, cause)
    async with member(common) as membership:
        membership.carry_out(back)
        in_vain = dict(REQUEUED.counts)
        await membership.join(ALICE)
        membership.carry_out(back)

    key = (cause.value,)
    assert (before, before | {key: before[key] + 1}) == (in_vain, dict(REQUEUED.counts))


async def test_a_refusal_is_remembered_for_all_sockets(
    broker: GuardedBroker, common: Common
) -> None:
    """The second one is told the same without a connection, with the names nsqd leaves out."""
    refusals = []
    for _ in range(2):
        async with member(common) as membership:
            with pytest.raises(BrokerRefused) as caught:
                await membership.join(Secret(b"wrong"))
            refusals.append(str(caught.value))

    assert ['E_AUTH_FAILED AUTH failed; topic "t", channel "c"'] * 2 == refusals
    assert 1 == len(broker.all(Auth))


async def test_that_a_secret_is_wanted_is_remembered_too(
    broker: GuardedBroker, common: Common
) -> None:
    """Sockets that come without one do not make a connection each."""
    for _ in range(2):
        async with member(common) as membership:
            with pytest.raises(AuthRequired):
                await membership.join(None)

    assert 1 == len(broker.all(Identify))


@pytest.mark.parametrize("refusal_channel,asked", [("", 1), (None, 2)])
async def test_channels_with_random_names_are_one_to_a_refusal(
    broker: GuardedBroker, common: Common, refusal_channel: str | None, asked: int
) -> None:
    """Another channel that was chosen is another question."""
    for channel in ("gw.a#ephemeral", "gw.b#ephemeral"):
        async with member(common, channel=channel, refusal_channel=refusal_channel) as membership:
            with pytest.raises(BrokerRefused):
                await membership.join(Secret(b"wrong"))

    assert asked == len(broker.all(Auth))


async def test_what_is_no_matter_of_access_is_not_remembered(
    broker: GuardedBroker, common: Common
) -> None:
    """A channel may have room in a moment."""
    broker.on(Subscribe, refuse("E_SUB_FAILED", "SUB failed consumers for t:c exceeds limit of 1"))
    for _ in range(2):
        async with member(common) as membership:
            with pytest.raises(BrokerRefused, match=r"E_SUB_FAILED [^;]*$"):
                await membership.join(ALICE)

    assert 2 == len(broker.all(Subscribe))


async def test_a_broker_that_is_away_is_no_refusal(broker: GuardedBroker, common: Common) -> None:
    """It may be back at the next try."""
    await broker.stop()
    async with member(common) as membership:
        with pytest.raises(NoBroker):
            await membership.join(ALICE)
        await broker.start()
        await membership.join(ALICE)

        assert [1] == membership.sources


async def test_who_has_a_secret_is_looked_after_until_it_leaves(common: Common) -> None:
    """Whether the secret holds is asked again while the socket is there."""
    async with member(common) as membership:
        await membership.join(ALICE)
        watched = len(common.rechecks)

    assert (1, 0) == (watched, len(common.rechecks))


@pytest.mark.parametrize("asked_ms,expected_ms", [(0, 60_000), (5_000, 5_000)])
async def test_the_timeout_is_known_before_any_broker_is(
    common: Common, asked_ms: int, expected_ms: int
) -> None:
    """What the client asked for, or what nsqd has when nobody says otherwise."""
    async with member(common, msg_timeout=asked_ms) as membership:
        assert expected_ms == membership.msg_timeout_ms
