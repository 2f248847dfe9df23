"""One socket's place in NSQ, also when its secret comes late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery
from gateway.client.error_cache import ErrorCache
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, NoBroker
from gateway.protocol.commands import Auth, Identify, Ready, StartClose, Subscribe
from gateway.protocol.identify import AuthResponse, IdentifyRequest, IdentifyResponse
from gateway.session.types import PauseReading, RequeueCause, RequeueDeliveries, ResumeReading
from gateway.session.types import SetReady as Window
from gateway.web.metrics import REQUEUED
from gateway.web.subscribe.reauth import Reauthenticator
from gateway.web.subscribe.upstream import DedicatedUpstream, UpstreamContext
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.scripted_broker import refuse
from tests.support.brokers.subscription_listener import SubscriptionListener

ALICE = Secret(b"alice")


class Socket(SubscriptionListener):
    """Who is told; it counts its sources as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.upstream: DedicatedUpstream | None = None
        self.authorizations: list[AuthResponse | None] = []

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Count it, and keep what was said to AUTH."""
        super().on_source_opened(source, answer)
        assert self.upstream is not None
        self.authorizations.append(self.upstream.add_source(source, answer))

    def auth_addresses(self) -> Sequence[str]:
        """Return where AUTH was said."""
        return self.upstream.auth_addresses() if self.upstream else ()

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Keep nothing: nobody asks again here."""

    def on_channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - as it is told
        """Keep it."""
        self.told.put_nowait(("paused", 0, is_paused))


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[AuthBroker]:
    """A broker that wants AUTH and knows Alice."""
    broker = AuthBroker()
    broker.grants[ALICE.reveal()] = {"t"}
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def common(broker: AuthBroker) -> UpstreamContext:
    """What the memberships of one process share."""
    reauthenticator = Reauthenticator(60.0, random=lambda: 1.0)
    return UpstreamContext(
        discovery=Discovery([broker.address]),
        error_cache=ErrorCache(),
        reauthenticator=reauthenticator,
    )


@asynccontextmanager
async def member(
    common: UpstreamContext,
    *,
    channel: str = "c",
    refusal_channel: str | None = None,
    msg_timeout: int = 0,
) -> AsyncIterator[DedicatedUpstream]:
    socket = Socket()
    offer = IdentifyRequest(feature_negotiation=True, msg_timeout=msg_timeout)
    options = SubscriptionOptions(
        topic="t", channel=channel, connection=ConnectionOptions(offer=offer)
    )
    upstream = DedicatedUpstream(common, options, socket, refusal_channel=refusal_channel)
    socket.upstream = upstream
    try:
        yield upstream
    finally:
        await upstream.unsubscribe()


async def test_a_secret_that_comes_late_joins(broker: AuthBroker, common: UpstreamContext) -> None:
    """Without one NSQ says that it wants one; with it there is a source, and where it is."""
    async with member(common) as upstream:
        with pytest.raises(AuthRequired):
            await upstream.subscribe(None)
        await upstream.subscribe(ALICE)

        assert [1] == upstream.sources
        assert [broker.address] == upstream.auth_addresses()
        assert ALICE == upstream.secret


async def test_what_was_said_to_auth_is_told(common: UpstreamContext) -> None:
    async with member(common) as upstream:
        await upstream.subscribe(ALICE)
        socket = upstream._listener

        assert isinstance(socket, Socket)
        assert [AuthResponse(identity="somebody", permission_count=1)] == socket.authorizations


async def test_joining_again_leaves_what_was_joined(
    broker: AuthBroker, common: UpstreamContext
) -> None:
    """The first subscription ends in good order; the second has the same window."""
    broker.wants_auth(wants=False)
    async with member(common) as upstream:
        await upstream.subscribe(None)
        upstream.execute(Window(7))
        await broker.peers[0].next(Ready)
        broker.wants_auth(wants=True)
        await upstream.subscribe(ALICE)
        await broker.peers[0].gone()
        ready = await broker.peers[1].next(Ready)

        assert (7, [1]) == (ready.count, upstream.sources)
        assert 1 == len(broker.peers[0].all(StartClose))


async def test_reading_stays_paused_over_a_new_subscription(common: UpstreamContext) -> None:
    """What a slow client may have waiting is bounded all the while."""
    async with member(common) as upstream:
        upstream.execute(PauseReading())
        await upstream.subscribe(ALICE)
        subscription = upstream._subscription
        assert subscription is not None
        paused = subscription._is_reading
        upstream.execute(ResumeReading())

        assert (False, True) == (paused, subscription._is_reading)


@pytest.mark.parametrize("cause", RequeueCause)
async def test_what_goes_back_is_counted_by_its_cause(
    common: UpstreamContext, cause: RequeueCause
) -> None:
    before = dict(REQUEUED.counts)
    back = RequeueDeliveries(1, [b"0123456789abcdef"], 0, cause)
    async with member(common) as upstream:
        upstream.execute(back)
        in_vain = dict(REQUEUED.counts)
        await upstream.subscribe(ALICE)
        upstream.execute(back)

    key = (cause.value,)
    assert (before, before | {key: before[key] + 1}) == (in_vain, dict(REQUEUED.counts))


async def test_a_refusal_is_remembered_for_all_sockets(
    broker: AuthBroker, common: UpstreamContext
) -> None:
    """The second one is told the same without a connection, with the names nsqd leaves out."""
    refusals = []
    for _ in range(2):
        async with member(common) as upstream:
            with pytest.raises(BrokerRefused) as caught:
                await upstream.subscribe(Secret(b"wrong"))
            refusals.append(str(caught.value))

    assert ['E_AUTH_FAILED AUTH failed; topic "t", channel "c"'] * 2 == refusals
    assert 1 == len(broker.all(Auth))


async def test_that_a_secret_is_wanted_is_remembered_too(
    broker: AuthBroker, common: UpstreamContext
) -> None:
    """Sockets that come without one do not make a connection each."""
    for _ in range(2):
        async with member(common) as upstream:
            with pytest.raises(AuthRequired):
                await upstream.subscribe(None)

    assert 1 == len(broker.all(Identify))


@pytest.mark.parametrize("refusal_channel,asked", [("", 1), (None, 2)])
async def test_channels_with_random_names_are_one_to_a_refusal(
    broker: AuthBroker, common: UpstreamContext, refusal_channel: str | None, asked: int
) -> None:
    for channel in ("gw.a#ephemeral", "gw.b#ephemeral"):
        async with member(common, channel=channel, refusal_channel=refusal_channel) as upstream:
            with pytest.raises(BrokerRefused):
                await upstream.subscribe(Secret(b"wrong"))

    assert asked == len(broker.all(Auth))


async def test_what_is_no_matter_of_access_is_not_remembered(
    broker: AuthBroker, common: UpstreamContext
) -> None:
    """A channel may have room in a moment."""
    broker.on(Subscribe, refuse("E_SUB_FAILED", "SUB failed consumers for t:c exceeds limit of 1"))
    for _ in range(2):
        async with member(common) as upstream:
            with pytest.raises(BrokerRefused, match=r"E_SUB_FAILED [^;]*$"):
                await upstream.subscribe(ALICE)

    assert 2 == len(broker.all(Subscribe))


async def test_a_broker_that_is_away_is_no_refusal(
    broker: AuthBroker, common: UpstreamContext
) -> None:
    """It may be back at the next try."""
    await broker.stop()
    async with member(common) as upstream:
        with pytest.raises(NoBroker):
            await upstream.subscribe(ALICE)
        await broker.start()
        await upstream.subscribe(ALICE)

        assert [1] == upstream.sources


async def test_who_has_a_secret_is_looked_after_until_it_leaves(common: UpstreamContext) -> None:
    """Whether the secret holds is asked again while the socket is there."""
    reauthenticator = common.reauthenticator
    assert reauthenticator is not None
    async with member(common) as upstream:
        await upstream.subscribe(ALICE)
        watched = len(reauthenticator)

    assert (1, 0) == (watched, len(reauthenticator))


@pytest.mark.parametrize("asked_ms,expected_ms", [(0, 60_000), (5_000, 5_000)])
async def test_the_timeout_is_known_before_any_broker_is(
    common: UpstreamContext, asked_ms: int, expected_ms: int
) -> None:
    """What the client asked for, or what nsqd has when nobody says otherwise."""
    async with member(common, msg_timeout=asked_ms) as upstream:
        assert expected_ms == upstream.msg_timeout_ms
