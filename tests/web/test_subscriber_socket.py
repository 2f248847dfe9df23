"""One subscriber between its WebSocket and NSQ, event by event and without either."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest

from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import SubscriptionOptions
from gateway.errors import BrokerRefused, BrokerUnreachable, GatewayError, NoBroker
from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import Message
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.session.actions import Finish, Ready, Requeue
from gateway.session.options import SessionOptions
from gateway.session.outbox import MAX_FRAME_BYTES
from gateway.session.session import Session
from gateway.web.caller_quota import CallerQuota
from gateway.web.credentials import AccessPolicy
from gateway.web.fanout import Fanouts
from gateway.web.faults import CloseCode
from gateway.web.membership import Common, Membership, NsqAction
from gateway.web.recheck import Rechecks
from gateway.web.socket_parts import KeptSocket, SocketOptions, Surroundings
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.subscriber_socket import SubscriberSocket
from gateway.web.waiting_room import WaitingRoom
from tests.support.manual_clock import turn, until
from tests.support.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.recording_websocket import RecordingWebSocket

IDS = [b"%016x" % number for number in range(10)]


class Nsq:
    """What a socket is in NSQ; keeps what is wanted, and joins with one source, or fails."""

    channel = "c"
    msg_timeout_ms = 60_000
    secret: Secret | None = None

    def __init__(self, socket: SubscriberSocket) -> None:
        self._socket = socket
        self.wanted: list[NsqAction] = []
        self.failure: GatewayError | None = None
        self.sources: Sequence[int] = ()
        self.has_left = False
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.leaving = 0
        """How often it was left."""
        self.cut_short = 0

    async def join(self, secret: Secret | None) -> None:
        """Be there, or not."""
        self.secret = secret
        if self.failure is not None:
            raise self.failure
        self._socket.source_opened(1, Answer())

    def source_opened(self, source: int, answer: Answer) -> Authorization | None:
        """Count it; it wanted no AUTH."""
        del answer
        self.sources = [source]
        return None

    def source_lost(self, source: int) -> None:
        """Count it no more."""
        del source
        self.sources = ()

    def auth_addresses(self) -> Sequence[str]:
        """Return none."""
        return ()

    def carry_out(self, action: NsqAction) -> None:
        """Keep it."""
        self.wanted.append(action)

    async def leave(self) -> None:
        """Keep it, and take a while."""
        self.leaving += 1
        try:
            await turn()
            await self.may_leave.wait()
        except asyncio.CancelledError:
            self.cut_short += 1
            raise
        self.has_left = True

    def all(self, kind: type[NsqAction]) -> list[NsqAction]:
        """Return what was wanted of one kind."""
        return [action for action in self.wanted if isinstance(action, kind)]


class Socket(SubscriberSocket):
    """A subscriber of `Nsq`."""

    nsq: Nsq

    def _new_membership(self, options: SocketOptions) -> Membership:
        del options
        self.nsq = Nsq(self)
        return self.nsq


class House:
    """What sockets share, and who has come and gone."""

    def __init__(self) -> None:
        self.publisher: RecordingPublisher = WaitingPublisher()
        self.here: list[KeptSocket] = []
        self.left: list[KeptSocket] = []

    def opened(self, socket: KeptSocket) -> None:
        """Keep it."""
        self.here.append(socket)

    def gone(self, socket: KeptSocket) -> None:
        """Keep it."""
        self.left.append(socket)

    def new_socket(self, **options: object) -> Socket:
        """Return a socket for "c" of "t"; *options* are those of the session."""
        callers = CallerQuota(None, access=AccessPolicy(), asks_for_auth=lambda: False)
        common = Common(
            discovery=Discovery([]),
            refusals=Refusals(),
            rechecks=Rechecks(60.0, random=lambda: 1.0),
        )
        surroundings = Surroundings(
            keeper=self,
            common=common,
            fanouts=Fanouts(common, lambda *_: self._subscription(), max_in_flight=10),
            waiting_room=WaitingRoom(1),
            publishing=SocketPublishing(self.publisher, callers),
        )
        return Socket(
            SocketOptions(
                session=SessionOptions(topic="t", channel="c", **options),  # type: ignore[arg-type]
                subscription=self._subscription(),
                peer="192.0.2.1",
                request_id="1",
            ),
            surroundings,
        )

    @staticmethod
    def _subscription() -> SubscriptionOptions:
        return SubscriptionOptions(topic="t", channel="c")


def message(number: int, size_bytes: int = 5) -> Message:
    """Return a message."""
    return Message(number, 1, IDS[number], b"x" * size_bytes)


def cut(frames: bytes) -> list[bytes]:
    """Return what is in *frames*, whose sizes have 16 bits each."""
    texts = []
    while frames:
        end = 4 + int.from_bytes(frames[2:4])
        texts.append(frames[4:end])
        frames = frames[end:]
    return texts


async def subscribed(house: House, **options: object) -> tuple[Socket, RecordingWebSocket]:
    """Return a socket that is open and subscribed, and has told its client so."""
    socket = house.new_socket(**options)
    await socket.open(None)
    web = RecordingWebSocket()
    socket.opened(web)
    assert ["SUB"] == [line["cmd"] for line in web.take()]
    return socket, web


# To the client


async def test_what_arrives_is_sent_at_once() -> None:
    """In the same turn of the event loop, and so is its FIN."""
    socket, web = await subscribed(House())
    socket.messages_arrived(1, [message(1)])
    (delivery,) = web.take()
    socket.text_received(json.dumps({"cmd": "FIN", "id": delivery["id"]}))

    assert [Finish(1, [IDS[1]])] == socket.nsq.all(Finish)
    assert (1, 1) == (socket.delivered, socket.finished)


async def test_what_arrived_before_the_upgrade_comes_behind_its_answer() -> None:
    """The client hears first that it is subscribed."""
    socket = House().new_socket()
    await socket.open(None)
    socket.messages_arrived(1, [message(1)])
    web = RecordingWebSocket()
    socket.opened(web)

    assert ["response", "message"] == [line["type"] for line in web.take()]


async def test_what_json_makes_too_large_goes_in_several_frames() -> None:
    """Control characters take six bytes each: more than was reckoned when the frame was filled."""
    socket, web = await subscribed(House())

    socket.messages_arrived(1, [Message(n, 1, IDS[n], b"\x01" * 5_000) for n in range(10)])

    assert [] == web.texts
    frames = cut(b"".join(web.frames))
    assert [2, 2, 2, 2, 2] == [frame.count(b"\n") + 1 for frame in frames]
    assert max(map(len, frames)) <= MAX_FRAME_BYTES


async def test_a_socket_that_takes_nothing_is_sent_nothing() -> None:
    """What comes waits in the session until there is room."""
    socket, web = await subscribed(House())
    web.fills_up = True
    socket.messages_arrived(1, [message(1)])
    socket.messages_arrived(1, [message(2)])
    first = web.take()
    web.is_writable, web.fills_up = True, False
    socket.has_room()

    assert ([1], [1]) == ([line["attempts"] for line in first], [len(web.take())])


async def test_ack_auto_finishes_what_the_socket_has_taken() -> None:
    """A frame that filled the socket up is taken when there is room again."""
    socket, web = await subscribed(House(), finishes_by_itself=True)
    socket.messages_arrived(1, [message(1)])
    web.fills_up = True
    socket.messages_arrived(1, [message(2)])
    before = socket.nsq.all(Finish)
    web.is_writable = True
    socket.has_room()

    assert [Finish(1, [IDS[1]])] == before
    assert [Finish(1, [IDS[1]]), Finish(1, [IDS[2]])] == socket.nsq.all(Finish)


async def test_who_does_not_read_its_answers_is_not_listened_to() -> None:
    """Above the bound of the buffer; below it again it is."""
    socket, web = await subscribed(House(), buffer_bytes=1_000)
    web.is_writable = False
    question = json.dumps({"cmd": "NOP", "ref": "r" * 2_000})
    socket.text_received(question)
    while_full = web.is_reading
    web.is_writable = True
    socket.has_room()

    assert (False, True) == (while_full, web.is_reading)
    assert ["NOP"] == [line["cmd"] for line in web.take()]


# The end


def fail(socket: Socket) -> None:
    """Something of ours goes wrong."""
    socket.end(CloseCode.INTERNAL, "the gateway failed")


def hang_up(socket: Socket) -> None:
    """The connection goes."""
    socket.lost(1006)


def misuse(socket: Socket) -> None:
    """The client says too much that is no command."""
    socket.text_received("\n".join(["nonsense"] * 200))


def lose_secret(socket: Socket) -> None:
    """NSQ does not take the secret any more."""
    socket.secret_refused(BrokerRefused("E_AUTH_FAILED", "AUTH failed"))


def delete_channel(socket: Socket) -> None:
    """Somebody deletes the channel."""
    socket.channel_gone("192.0.2.9:4150")


ENDS = [fail, hang_up, misuse, lose_secret, delete_channel]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_what_is_unfinished_is_handed_back_before_anything_is_awaited(
    end: Callable[[Socket], None],
) -> None:
    """What the client holds and what it has not been sent, behind an RDY of 0."""
    house = House()
    socket, web = await subscribed(house)
    socket.messages_arrived(1, [message(1)])
    web.is_writable = False
    socket.messages_arrived(1, [message(2)])
    socket.nsq.wanted.clear()
    end(socket)
    wanted = list(socket.nsq.wanted)
    socket.lost(1006)
    await until(lambda: bool(house.left))

    back = [each for each in wanted if isinstance(each, Requeue)]
    assert sorted([IDS[1], IDS[2]]) == sorted(id_ for each in back for id_ in each.ids)
    assert Ready(0) == wanted[0]
    assert wanted == socket.nsq.wanted
    assert socket.nsq.has_left
    assert [socket] == house.here == house.left


async def test_a_bug_ends_the_socket_alone_and_hands_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """1011; whoever called hears nothing of it: NSQ's connection may be that of others."""
    socket, web = await subscribed(House())
    socket.messages_arrived(1, [message(1)])

    def fail(*_: object) -> list[object]:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "arrived", fail)
        socket.messages_arrived(1, [message(2)])

    assert (1011, "the gateway failed") == web.closed
    assert [Requeue(1, [IDS[1]], 0)] == socket.nsq.all(Requeue)


async def test_what_comes_after_the_end_goes_back() -> None:
    """It was on its way when the socket ended."""
    socket, _ = await subscribed(House())
    socket.lost(1006)
    socket.messages_arrived(1, [message(1)])

    assert [Requeue(1, [IDS[1]], 0)] == socket.nsq.all(Requeue)


async def test_answers_that_wait_are_sent_before_the_close() -> None:
    """Whether or not the socket takes them at once: nothing comes after."""
    socket, web = await subscribed(House())
    web.is_writable = False
    socket.text_received('{"cmd":"NOP","ref":1}')
    delete_channel(socket)

    assert [None, "CHANNEL_GONE"] == [line.get("code") for line in web.take()]
    assert (4004, "the channel was deleted") == web.closed


async def test_a_socket_that_ended_before_its_upgrade_says_so_then() -> None:
    """It is opened, told, and closed."""
    house = House()
    socket = house.new_socket()
    await socket.open(None)
    lose_secret(socket)
    web = RecordingWebSocket()
    socket.opened(web)
    await until(lambda: socket.nsq.has_left)
    before = list(house.left)
    socket.lost(4003)

    assert 4003 == socket.close_code
    assert web.closed is not None
    assert (4003, [], [socket]) == (web.closed[0], before, house.left)


async def test_a_socket_that_is_not_opened_leaves_nothing() -> None:
    """Its upgrade was refused, or its client has gone: what came meanwhile goes back."""
    house = House()
    socket = house.new_socket()
    await socket.open(None)
    socket.messages_arrived(1, [message(1)])
    await socket.release()

    assert [Requeue(1, [IDS[1]], 0)] == socket.nsq.all(Requeue)
    assert ([], []) == (house.here, house.left)
    assert socket.nsq.has_left


# AUTH


async def test_a_bug_while_auth_is_tried_is_told_as_1011() -> None:
    """And what NSQ says is told as it is."""
    house = House()
    socket = house.new_socket()
    socket.wait_for_auth()
    web = RecordingWebSocket()
    socket.opened(web)
    socket.nsq.failure = NoBroker("192.0.2.9:4150 is away")
    socket.text_received('{"cmd":"AUTH","secret":"alice"}')
    while_tried = web.is_reading
    await until(lambda: web.closed is not None)

    (error,) = web.take()
    assert ("AUTH", "NO_BROKER", True) == (error["cmd"], error["code"], error["retryable"])
    assert web.closed is not None
    assert (1014, False) == (web.closed[0], while_tried)
    assert Secret(b"alice") == socket.secret


async def late(house: House) -> tuple[Socket, RecordingWebSocket]:
    """Return a socket that holds a message, and of whom a later broker wants a secret."""
    socket, web = await subscribed(house)
    socket.messages_arrived(1, [message(1)])
    socket.auth_required()
    web.take()
    return socket, web


async def test_who_subscribes_anew_with_a_secret_hands_back_first() -> None:
    """NSQ would wait for the timeout: RDY 0 and REQ before the way out, RDY behind the way in."""
    house = House()
    socket, web = await late(house)
    socket.nsq.wanted.clear()

    socket.text_received('{"cmd":"AUTH","secret":"alice"}')
    await until(lambda: len(web.texts) > 1)

    assert [Ready(0), Requeue(1, [IDS[1]], 0)] == socket.nsq.wanted[:2]
    assert Ready(10) == socket.nsq.wanted[-1]
    lost, *answers = web.take()
    assert ("NOP", [f"{IDS[1].decode()}-1"]) == (lost["cmd"], lost["data"]["lost_ids"])
    assert ["AUTH", "NOP"] == [line["cmd"] for line in answers]
    assert (True, Secret(b"alice")) == (socket.nsq.has_left, socket.secret)


async def test_what_is_left_for_a_secret_is_left_to_its_end() -> None:
    """Though the client goes meanwhile."""
    house = House()
    socket, _ = await late(house)
    socket.nsq.may_leave.clear()
    socket.text_received('{"cmd":"AUTH","secret":"alice"}')
    await until(lambda: socket.nsq.leaving == 1)

    socket.lost(1001)
    await turn(3)
    socket.nsq.may_leave.set()
    await until(lambda: house.left == [socket])

    assert (2, 0) == (socket.nsq.leaving, socket.nsq.cut_short)
    assert socket.secret is None


# Publishing


async def test_a_secret_that_nobody_wanted_is_used_to_publish() -> None:
    """NSQ may want one for publishing only."""
    house = House()
    socket, _ = await subscribed(house)

    socket.text_received('{"cmd":"PUB","topic":"u","body":"a"}')
    socket.text_received('{"cmd":"AUTH","secret":"alice"}')
    socket.text_received('{"cmd":"PUB","topic":"u","body":"b"}')

    assert [None, Secret(b"alice")] == house.publisher.secrets


async def test_a_publish_that_is_answered_at_once_may_be_the_last_that_was_open() -> None:
    """The answer is told in the midst of what its frame asks for, and the socket ends once."""
    house = House()
    house.publisher = RecordingPublisher()
    socket, web = await subscribed(house)

    socket.text_received('{"cmd":"CLS"}\n' + '{"cmd":"PUB","topic":"u","body":"a","ref":1}\n' * 2)
    socket.lost(1000)
    await until(lambda: house.left == [socket])

    assert ["CLS", "PUB", "PUB"] == [line["cmd"] for line in web.take()]
    assert web.closed is not None
    assert (1000, 2) == (web.closed[0], len(house.publisher.published))


async def test_a_publish_is_answered_when_nsq_has_answered_it() -> None:
    """With the socket's secret; its outcome after the end is told to nobody."""
    house = House()
    socket, web = await subscribed(house)
    for ref in (1, 2):
        socket.text_received(json.dumps({"cmd": "PUB", "topic": "u", "body": "hello", "ref": ref}))
    before = web.take()
    assert isinstance(house.publisher, WaitingPublisher)
    first, second = house.publisher.waiting
    first(None)
    answers = web.take()
    socket.lost(1001)
    second(None)

    assert [] == before + web.take()
    assert [("PUB", 1, "OK")] == [(line["cmd"], line["ref"], line["data"]) for line in answers]
    assert [("u", [b"hello"], 0)] * 2 == house.publisher.published


# What NSQ tells


async def test_a_source_that_comes_and_goes_is_told() -> None:
    """The deliveries that went with it too; an answer that NSQ refused too."""
    socket, web = await subscribed(House())
    socket.messages_arrived(1, [message(1)])
    (delivery,) = web.take()
    socket.source_lost(1, BrokerUnreachable("192.0.2.9:4150", "gone"))
    (lost,) = web.take()
    socket.source_opened(2, Answer())
    (back,) = web.take()

    assert ("disconnected", [delivery["id"]]) == (lost["data"]["state"], lost["data"]["lost_ids"])
    assert "connected" == back["data"]["state"]


async def test_a_pause_is_told() -> None:
    """And its end."""
    socket, web = await subscribed(House())
    socket.channel_paused(True)
    socket.channel_paused(False)

    states = [line["data"]["state"] for line in web.take()]
    assert ["channel_paused", "connected"] == states
