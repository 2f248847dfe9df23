"""Viewers of one topic share a consumer, and are told what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from gateway.aio import spawn
from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.error_cache import ErrorCache
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, NoBroker
from gateway.protocol.commands import Auth, Finish, Ready, Requeue, StartClose, Subscribe
from gateway.protocol.frames import Message
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse
from gateway.web.subscribe.fanout import FanoutRegistry, SharedUpstream
from gateway.web.subscribe.reauth import Reauthenticator
from gateway.web.subscribe.upstream import UpstreamContext
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.scripted_broker import Peer, no_response
from tests.support.brokers.scripted_lookupd import scripted_lookupd
from tests.support.manual_clock import now, turn, until
from tests.support.websocket.recording_websocket import RecordingWebSocket

ALICE = Secret(b"alice")
IDS = [b"%016x" % number for number in range(10)]


def message(number: int, body: bytes = b"hello") -> Message:
    return Message(number, 1, IDS[number], body)


class View:
    """A viewer; `look` for it to be given messages, and `leave` last."""

    def __init__(self, fanouts: FanoutRegistry, *, sample_rate: int = 0) -> None:
        self.upstream = SharedUpstream(fanouts, "t", sample_rate, self)
        self.socket = RecordingWebSocket()
        self.frames = self.socket.frames
        self.told: list[str] = []

    async def look(self, secret: Secret | None = None) -> View:
        """Join, and get messages from now on."""
        await self.upstream.subscribe(secret)
        self.upstream.start_sending(self.socket)
        return self

    async def leave(self) -> None:
        """Look no more."""
        await self.upstream.unsubscribe()

    def check_slow(self) -> bool:
        """Take as much as it can."""
        return True

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Keep what the broker said to AUTH."""
        said = self.upstream.add_source(source, answer)
        self.told.append("opened" if said is None else f"opened for {said.identity}")

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Keep it."""
        del error
        self.upstream.remove_source(source)
        self.told.append("lost")

    def on_secret_missing(self) -> None:
        """Keep it."""
        self.told.append("auth required")

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Keep it."""
        self.told.append(error.code)


class LateView(View):
    """A viewer that does not keep up."""

    def check_slow(self) -> bool:
        """End."""
        self.upstream.stop_sending()
        return False


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[AuthBroker]:
    """A broker that wants no AUTH, unless a test says so, and knows Alice."""
    broker = AuthBroker()
    broker.grants[ALICE.reveal()] = {"t"}
    broker.wants_auth(wants=False)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def fanouts(broker: AuthBroker) -> FanoutRegistry:
    """The fan-outs of one process."""
    return fanouts_by(Discovery([broker.address]))


def fanouts_by(discovery: Discovery) -> FanoutRegistry:
    """Return the fan-outs of a process that finds its brokers by *discovery*."""

    def options_of(topic: str, channel: str, sample_rate: int) -> SubscriptionOptions:
        offer = IdentifyRequest(feature_negotiation=True, sample_rate=sample_rate)
        connection = ConnectionOptions(offer=offer)
        return SubscriptionOptions(topic=topic, channel=channel, connection=connection)

    common = UpstreamContext(
        discovery=discovery,
        error_cache=ErrorCache(),
        reauthenticator=Reauthenticator(60.0, random=lambda: 1.0),
    )
    return FanoutRegistry(common, options_of, max_in_flight=50)


async def peer_of(broker: AuthBroker) -> Peer:
    """Return the connection of a new fan-out, once it has its window."""
    peer = await broker.peer()
    await peer.next(Ready)
    return peer


def lines(frame: bytes) -> list[dict[str, object]]:
    """Return the objects of one text frame of less than 126 bytes, or of less than 64 KiB."""
    payload = frame[2:] if frame[1] < 126 else frame[4:]
    return [json.loads(line) for line in payload.split(b"\n")]


async def test_viewers_share_one_consumer(broker: AuthBroker, fanouts: FanoutRegistry) -> None:
    """One connection and one window; each of them gets the same bytes, and NSQ one FIN."""
    one, two = await View(fanouts).look(), await View(fanouts).look()
    peer = await broker.peer()
    ready = await peer.next(Ready)
    peer.send([message(1), message(2)])
    await peer.next(Finish)
    await peer.next(Finish)

    assert (50, 1, 1) == (ready.count, len(broker.peers), len(fanouts))
    assert one.frames == two.frames
    assert one.frames[0] is two.frames[0]
    assert [Finish(IDS[1]), Finish(IDS[2])] == peer.all(Finish)
    assert [(IDS[1].decode() + "-1"), (IDS[2].decode() + "-1")] == [
        line["id"] for frame in one.frames for line in lines(frame)
    ]
    await one.leave()
    await two.leave()


async def test_who_joins_later_is_told_of_what_is_there(fanouts: FanoutRegistry) -> None:
    """The sources, and the channel that all are on; messages only from now on."""
    one = await View(fanouts).look()
    two = View(fanouts)
    before = two.upstream.channel
    await two.look()

    assert (["opened"], [1]) == (two.told, two.upstream.sources)
    assert ("", one.upstream.channel) == (before, two.upstream.channel)
    assert one.upstream.channel.endswith("#ephemeral")
    await one.leave()
    await two.leave()


@pytest.mark.parametrize(
    "one,two,count",
    [((0, None), (0, ALICE), 2), ((0, None), (5, None), 2), ((5, ALICE), (5, ALICE), 1)],
)
async def test_another_secret_or_share_is_another_consumer(
    fanouts: FanoutRegistry,
    one: tuple[int, Secret | None],
    two: tuple[int, Secret | None],
    count: int,
) -> None:
    """What NSQ may say or skip differs."""
    views = [await View(fanouts, sample_rate=rate).look(secret) for rate, secret in (one, two)]

    assert count == len({view.upstream.channel for view in views}) == len(fanouts)
    for view in views:
        await view.leave()


async def test_the_last_viewer_closes_the_consumer(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Who stays goes on; who comes during the close has a new one."""
    one, two = await View(fanouts).look(), await View(fanouts).look()
    peer = await peer_of(broker)
    await one.leave()
    peer.send([message(1)])
    await peer.next(Finish)
    stayed = len(peer.all(StartClose))
    broker.on(StartClose, no_response)
    leaving = spawn("leave", two.leave())
    await peer.next(StartClose)
    three = await View(fanouts).look()
    peer.close()
    await leaving

    assert (0, 1, 0) == (stayed, len(two.frames), len(one.frames))
    assert two.upstream.channel != three.upstream.channel
    assert 2 == len(broker.peers)
    await three.leave()
    assert 0 == len(fanouts)


async def test_a_viewer_that_left_is_told_nothing_more(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    one, two = await View(fanouts).look(), await View(fanouts).look()
    peer = await peer_of(broker)
    await one.leave()
    peer.close()
    await until(lambda: "lost" in two.told)

    assert ["opened"] == one.told
    await two.leave()


async def test_nothing_is_finished_that_nobody_was_given(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Until a client is there NSQ keeps what it has; what is on its way goes back."""
    one = View(fanouts)
    await one.upstream.subscribe(None)
    peer = await broker.peer()
    peer.send([message(1)])
    back = await peer.next(Requeue)
    before = peer.all(Ready)
    one.upstream.start_sending(one.socket)
    ready = await peer.next(Ready)

    assert ([], 50) == ([command for command in before if command.count], ready.count)
    assert Requeue(IDS[1], 0) == back
    assert [] == one.frames + peer.all(Finish)
    await one.leave()


async def test_what_the_only_one_does_not_keep_up_with_goes_back(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    one = await LateView(fanouts).look()
    one.socket.is_writable = False
    peer = await peer_of(broker)
    peer.send([message(1)])
    back = await peer.next(Requeue)

    assert Requeue(IDS[1], 0) == back
    assert ([], 0) == (one.frames + peer.all(Finish), one.upstream.delivered)
    await one.leave()


async def test_while_the_last_one_who_looks_has_gone_nothing_comes(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Another has joined, and its client is not there yet: RDY 0 until it is."""
    one, two = await View(fanouts).look(), View(fanouts)
    await two.upstream.subscribe(None)
    peer = await peer_of(broker)
    await one.leave()
    stopped = await peer.next(Ready)
    two.upstream.start_sending(two.socket)
    ready = await peer.next(Ready)

    assert (0, 50) == (stopped.count, ready.count)
    await two.leave()


async def test_a_start_that_fails_refuses_all_who_wait(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """With one question to NSQ, and the next one who comes asks anew."""
    await broker.stop()
    answers = await asyncio.gather(
        View(fanouts).look(), View(fanouts).look(), return_exceptions=True
    )
    left = len(fanouts)
    await broker.start()
    one = await View(fanouts).look()

    assert [NoBroker, NoBroker] == [type(answer) for answer in answers]
    assert (0, ["opened"]) == (left, one.told)
    await one.leave()


async def test_a_secret_that_is_wanted_is_asked_for(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Without one AuthRequired; with one the brokers' answer to AUTH is everybody's."""
    broker.wants_auth(wants=True)
    nobody = View(fanouts)
    with pytest.raises(AuthRequired):
        await nobody.look()
    await nobody.leave()
    one, two = await View(fanouts).look(ALICE), await View(fanouts).look(ALICE)

    assert [["opened for somebody"]] * 2 == [one.told, two.told]
    assert (1, ALICE) == (len(broker.all(Auth)), one.upstream.secret)
    await one.leave()
    await two.leave()


async def test_who_gives_up_waiting_leaves_nothing(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """A broker that does not answer: the last one who waits ends the try."""
    broker.on(Subscribe, no_response)
    views = View(fanouts), View(fanouts)
    looking = [spawn("look", view.look()) for view in views]
    peer = await broker.peer()
    await peer.next(Subscribe)
    for view, task in zip(views, looking, strict=True):
        task.cancel()
        await asyncio.wait({task})
        await view.leave()
    await peer.gone()

    assert 0 == len(fanouts)


async def test_a_broker_that_is_lost_is_told_to_all(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Who comes meanwhile is told that there is none; when it is back all hear it."""
    one, two = await View(fanouts).look(), await View(fanouts).look()
    await broker.stop()
    await until(lambda: "lost" in one.told)
    late = View(fanouts)
    with pytest.raises(NoBroker, match="no nsqd can be subscribed to"):
        await late.look()
    await late.leave()
    await broker.start()
    await until(lambda: len(two.told) == 3)

    assert [["opened", "lost", "opened"]] * 2 == [one.told, two.told]
    await one.leave()
    await two.leave()


async def test_a_topic_that_is_gone_keeps_nobody_out(broker: AuthBroker) -> None:
    """No nsqlookupd names a broker any more: who comes waits for the first message, as all do."""
    async with scripted_lookupd(broker.address) as lookupd:
        found = LookupOptions(lookupd_http_addresses=(lookupd.address,), poll_interval_s=0.1)
        discovery = Discovery([], found)
        await discovery.start()
        fanouts = fanouts_by(discovery)
        one = await View(fanouts).look()
        lookupd.knows()
        await broker.stop()
        await until(lambda: "lost" in one.told)
        fanout = one.upstream._fanout
        assert fanout is not None
        await until(lambda: fanout._upstream.awaits_topic)
        two = await View(fanouts).look()
        told_at_first = list(two.told)
        await broker.start()
        lookupd.knows(broker.address)
        await until(lambda: "opened" in two.told)
        await two.leave()
        await one.leave()
        await discovery.stop()

    assert ([], ["opened"]) == (told_at_first, two.told)
    assert ["opened", "lost", "opened"] == one.told


async def test_a_broker_that_is_named_and_away_keeps_who_comes_out(broker: AuthBroker) -> None:
    """The topic is not gone, and who comes may have more luck elsewhere."""
    async with scripted_lookupd(broker.address) as lookupd:
        found = LookupOptions(lookupd_http_addresses=(lookupd.address,), poll_interval_s=0.1)
        discovery = Discovery([], found)
        await discovery.start()
        fanouts = fanouts_by(discovery)
        one, late = await View(fanouts).look(), View(fanouts)
        await broker.stop()
        await until(lambda: "lost" in one.told)
        with pytest.raises(NoBroker):
            await late.look()
        await late.leave()
        await one.leave()
        await discovery.stop()


async def test_a_broker_that_wants_auth_from_now_on_is_told_to_all(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Who comes meanwhile without a secret is asked for it at once."""
    one = await View(fanouts).look()
    await broker.stop()
    broker.wants_auth(wants=True)
    await broker.start()
    await until(lambda: "auth required" in one.told)
    late = View(fanouts)

    with pytest.raises(AuthRequired):
        await late.look()
    await late.leave()
    await one.leave()


async def test_a_secret_that_is_refused_ends_all_of_it(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Those of another secret go on; who comes now asks NSQ anew."""
    one, two, other = (
        await View(fanouts).look(ALICE),
        await View(fanouts).look(ALICE),
        await View(fanouts).look(),
    )
    fanout = one.upstream._fanout
    assert fanout is not None
    fanout.on_secret_refused(BrokerRefused("E_AUTH_FAILED", "AUTH failed"))
    three = await View(fanouts).look(ALICE)

    assert [["opened", "E_AUTH_FAILED"]] * 2 == [one.told, two.told]
    assert [["opened"]] * 2 == [other.told, three.told]
    assert one.upstream.channel != three.upstream.channel
    assert 3 == len(broker.all(Subscribe))
    for view in (one, two, other, three):
        await view.leave()


async def test_a_secret_is_looked_at_once_for_all(fanouts: FanoutRegistry) -> None:
    one, two = await View(fanouts).look(ALICE), await View(fanouts).look(ALICE)
    reauthenticator = fanouts.context.reauthenticator
    assert reauthenticator is not None
    watched = len(reauthenticator)
    await one.leave()
    await two.leave()

    assert (1, 0) == (watched, len(reauthenticator))


async def test_a_burst_for_many_goes_out_over_several_turns(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Each frame once and in order; who leaves last hands back what was not passed on."""
    views = [await View(fanouts).look() for _ in range(300)]
    peer = await peer_of(broker)
    fanout = views[0].upstream._fanout
    assert fanout is not None
    burst = [message(number, b"x" * 20_000) for number in range(1, 4)]
    fanout.on_messages(1, burst, now())
    first = (len(views[0].frames), fanout._upstream._is_reading, len(peer.all(Finish)))
    await until(lambda: not fanout._reads)
    whole = (len(views[0].frames), fanout._upstream._is_reading, views[0].upstream.delivered)
    fanout.on_messages(1, burst, now())
    for view in views:
        await view.leave()

    assert ((1, False, 0), (3, True, 3)) == (first, whole)
    assert [IDS[1], IDS[2], IDS[3], IDS[1]] == [each.id for each in peer.all(Finish)]
    assert [IDS[2], IDS[3]] == [each.id for each in peer.all(Requeue)]
    assert fanout._upstream._is_reading


async def test_one_large_message_for_many_goes_out_over_several_turns(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """To some in this turn, to the others in the next ones; finished once all have it."""
    views = [await View(fanouts).look() for _ in range(29)]
    peer = await peer_of(broker)
    fanout = views[0].upstream._fanout
    assert fanout is not None
    fanout.on_messages(1, [message(1, b"x" * (1 << 20)), message(2)], now())
    given = [sum(bool(view.frames) for view in views)]
    finished = peer.all(Finish)
    late = await View(fanouts).look()
    await views[28].leave()
    while fanout._reads:
        await turn()
        given.append(sum(bool(view.frames) for view in views))
    counted = [view.upstream.delivered for view in (*views[:28], late)]
    for view in [*views[:28], late]:
        await view.leave()

    assert (4, []) == (given[0], finished)
    assert max(after - before for before, after in pairwise(given)) <= 2 * 4
    assert [28, 0] == [given[-1], len(views[28].frames)]
    assert {2} == {len(view.frames) for view in (*views[:28], late)}
    assert [2] * 29 == counted
    assert [IDS[1], IDS[2]] == [each.id for each in peer.all(Finish)]
    assert [] == peer.all(Requeue)


async def test_a_small_message_for_many_goes_out_over_several_turns(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """A write takes its time however little is written: to 3 000 viewers 100 ms went by."""
    views = [await View(fanouts).look() for _ in range(300)]
    peer = await peer_of(broker)
    fanout = views[0].upstream._fanout
    assert fanout is not None
    fanout.on_messages(1, [message(1)], now())
    given = [sum(bool(view.frames) for view in views)]
    while fanout._reads:
        await turn()
        given.append(sum(bool(view.frames) for view in views))
    for view in views:
        await view.leave()

    assert (256, 300) == (given[0], given[-1])
    assert {1} == {len(view.frames) for view in views}
    assert [IDS[1]] == [each.id for each in peer.all(Finish)]


async def test_what_somebody_was_given_is_finished_though_the_others_leave(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """It was shown; the message behind it goes back."""
    views = [await View(fanouts).look() for _ in range(9)]
    peer = await peer_of(broker)
    fanout = views[0].upstream._fanout
    assert fanout is not None
    fanout.on_messages(1, [message(1, b"x" * (1 << 20)), message(2)], now())
    for view in views:
        await view.leave()

    assert [IDS[1]] == [each.id for each in peer.all(Finish)]
    assert [IDS[2]] == [each.id for each in peer.all(Requeue)]


async def test_what_timed_out_unread_is_given_to_nobody(
    broker: AuthBroker, fanouts: FanoutRegistry
) -> None:
    """Nor finished, nor handed back: the broker delivers it again."""
    view = await View(fanouts).look()
    peer = await peer_of(broker)
    fanout = view.upstream._fanout
    assert fanout is not None
    fanout.on_messages(1, [message(1)], now() - 60.0)
    fanout.on_messages(1, [message(2)], now() - 59.0)
    await until(lambda: bool(peer.all(Finish)))
    await view.leave()

    assert [IDS[2]] == [each.id for each in peer.all(Finish)]
    assert [] == peer.all(Requeue)
