"""A viewer keeps up with its fan-out, or ends; with a real fan-out, and no WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from gateway.client.discovery import Discovery
from gateway.client.error_cache import ErrorCache
from gateway.client.subscription import SubscriptionOptions
from gateway.protocol.commands import Finish
from gateway.protocol.frames import Message
from gateway.session.types import SessionOptions
from gateway.telemetry import REGISTRY
from gateway.web.auth import ANONYMOUS, AccessPolicy
from gateway.web.rate_limit import PublishRateLimiter
from gateway.web.subscribe.connection_limits import SocketsBuffer, UnauthenticatedLimit
from gateway.web.subscribe.fanout import FanoutRegistry
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.subscribe.reauth import Reauthenticator
from gateway.web.subscribe.socket import (
    SocketOptions,
    SubscribeContext,
    SubscriberSocket,
    ViewerSocket,
)
from gateway.web.subscribe.upstream import UpstreamContext
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.http.recording_publisher import RecordingPublisher
from tests.support.manual_clock import ManualClock, run_on, until
from tests.support.websocket.recording_websocket import RecordingWebSocket

BUFFER_BYTES = 1_000
SLOW_S = 30.0
SLOW = (4001, "the client reads too slowly")


class House:
    """What viewers share, in front of one broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.left: list[SubscriberSocket] = []
        self.buffer = SocketsBuffer(1 << 30)
        common = UpstreamContext(
            discovery=Discovery([broker.address]),
            error_cache=ErrorCache(),
            reauthenticator=Reauthenticator(60.0, random=lambda: 1.0),
        )
        callers = PublishRateLimiter(None, access=AccessPolicy(), requires_auth=lambda: False)
        wanted = SubscriptionOptions(topic="t", channel="")
        self._surroundings = SubscribeContext(
            registry=self,
            upstream=common,
            fanouts=FanoutRegistry(
                common, lambda _, channel, __: replace(wanted, channel=channel), max_in_flight=50
            ),
            unauthenticated=UnauthenticatedLimit(1),
            publishing=SocketPublishing(RecordingPublisher(), callers),
            buffer=self.buffer,
        )
        self._wanted = wanted

    def on_socket_open(self, socket: SubscriberSocket) -> None:
        """Count nobody."""

    def acquire_caller(self, socket: SubscriberSocket) -> None:
        """Take any."""

    def on_socket_closed(self, socket: SubscriberSocket) -> None:
        """Keep it."""
        self.left.append(socket)

    async def accept(self) -> ViewerSocket:
        """Return a viewer that has joined."""
        session = SessionOptions(
            topic="t",
            channel="",
            max_in_flight=50,
            is_viewer=True,
            is_auto_ack=True,
            buffer_bytes=BUFFER_BYTES,
            slow_consumer_s=SLOW_S,
        )
        options = SocketOptions(
            session=session, subscription=self._wanted, peer="192.0.2.1", request_id="1"
        )
        viewer = ViewerSocket(options, self._surroundings)
        await viewer.open(ANONYMOUS)
        return viewer

    async def view(self) -> tuple[ViewerSocket, RecordingWebSocket]:
        """Return a viewer that is open, and has told its client so."""
        viewer, web = await self.accept(), RecordingWebSocket()
        viewer.on_open(web)
        assert ["SUB"] == [line["cmd"] for line in web.take()]
        return viewer, web


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def house(broker: ScriptedBroker) -> House:
    """What its viewers share."""
    return House(broker)


async def deliver(broker: ScriptedBroker, number: int = 1) -> None:
    """Let a message come, and be finished."""
    peer = broker.peers[0]
    peer.send([Message(number, 1, b"%016x" % number, b"hello")])
    await peer.next(Finish)


async def leave(house: House, *viewers: ViewerSocket) -> None:
    """Let the clients go, and wait until nothing is left of them."""
    run_on()
    for viewer in viewers:
        viewer.on_close(1001)
    await until(lambda: all(viewer in house.left for viewer in viewers))


async def test_the_answer_names_the_shared_channel_and_its_window(house: House) -> None:
    viewers = [await house.accept(), await house.accept()]
    answers = []
    for viewer in viewers:
        web = RecordingWebSocket()
        viewer.on_open(web)
        answers += web.take()

    assert answers[0] == answers[1]
    assert (viewers[0].channel, 50) == (
        answers[0]["data"]["channel"],
        answers[0]["data"]["max_in_flight"],
    )
    await leave(house, *viewers)


async def test_the_answer_comes_before_any_message(house: House, broker: ScriptedBroker) -> None:
    """Also where the socket takes nothing at once."""
    viewer, web = await house.accept(), RecordingWebSocket()
    web.is_writable = False
    viewer.on_open(web)
    told = web.take()
    await deliver(broker)

    assert (["SUB"], 1, 1) == ([line["cmd"] for line in told], len(web.frames), viewer.delivered)
    await leave(house, viewer)


async def test_who_has_too_much_waiting_is_closed(house: House, broker: ScriptedBroker) -> None:
    """At once with 4001, and is given no more; the others get everything."""
    (slow, slow_web), (quick, quick_web) = await house.view(), await house.view()
    slow_web.is_writable, slow_web.unsent_bytes = False, BUFFER_BYTES + 1
    await deliver(broker)
    await deliver(broker, 2)

    assert (SLOW, []) == (slow_web.closed, slow_web.frames)
    assert (None, 2) == (quick_web.closed, len(quick_web.frames))
    assert (4001, 0, 2) == (slow.close_code, slow.delivered, quick.delivered)
    await leave(house, slow, quick)


async def test_who_holds_the_most_of_what_all_may_hold_is_closed(
    house: House, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 4001, while a message is being passed on; nothing is counted for it any more."""
    (slow, slow_web), (quick, quick_web) = await house.view(), await house.view()
    monkeypatch.setattr("gateway.web.subscribe.connection_limits.READ_BYTES", 100)
    house.buffer.limit_bytes = BUFFER_BYTES - 1
    slow_web.is_writable, slow_web.unsent_bytes = False, BUFFER_BYTES
    await deliver(broker)
    await deliver(broker, 2)

    assert (SLOW, []) == (slow_web.closed, slow_web.frames)
    assert (None, 2, 0) == (quick_web.closed, len(quick_web.frames), house.buffer.total_bytes)
    await leave(house, slow, quick)


async def test_who_stays_behind_for_too_long_is_closed(
    house: House, broker: ScriptedBroker
) -> None:
    """Less than too much may wait, for slow_consumer_s; then it is in no sum any more."""
    unsent = "nsq_gateway_socket_unsent_bytes"
    unsent_bytes = [REGISTRY.get_sample_value(unsent)]
    viewer, web = await house.view()
    clock = ManualClock()
    web.is_writable, web.unsent_bytes = False, BUFFER_BYTES
    await deliver(broker)
    await clock.advance(SLOW_S - 1)
    before = web.closed
    await deliver(broker, 2)
    unsent_bytes.append(REGISTRY.get_sample_value(unsent))
    await clock.advance(1)
    unsent_bytes.append(REGISTRY.get_sample_value(unsent))

    assert (None, SLOW, 2) == (before, web.closed, len(web.frames))
    at_first, behind, at_last = unsent_bytes
    assert at_first == at_last != behind
    await leave(house, viewer)


async def test_who_catches_up_in_time_stays(house: House, broker: ScriptedBroker) -> None:
    """Its time begins anew when it falls behind again."""
    viewer, web = await house.view()
    clock = ManualClock()
    for number in (1, 2):
        web.is_writable = False
        await deliver(broker, number)
        await clock.advance(SLOW_S - 1)
        web.is_writable = True
        viewer.on_writable()
    await clock.advance(SLOW_S)

    assert (None, 2) == (web.closed, len(web.frames))
    await leave(house, viewer)


async def test_what_a_viewer_says_is_answered_beside_what_comes(
    house: House, broker: ScriptedBroker
) -> None:
    viewer, web = await house.view()
    web.is_writable = False
    viewer.on_text('{"cmd":"NOP","ref":1}')
    before = web.take()
    await deliver(broker)
    web.is_writable = True
    viewer.on_writable()

    assert ([], [1], 1) == (before, [line["ref"] for line in web.take()], len(web.frames))
    await leave(house, viewer)
