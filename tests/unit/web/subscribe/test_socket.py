"""One subscriber between its WebSocket and NSQ, event by event and without either."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from gateway.credentials import Secret
from gateway.errors import BrokerRefused, BrokerUnreachable, NoBroker
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.session import Session
from gateway.session.types import (
    CloseReason,
    FinishDeliveries,
    RequeueCause,
    RequeueDeliveries,
    SetReady,
)
from gateway.session.window import MAX_FRAME_BYTES
from gateway.telemetry import REGISTRY
from gateway.web.auth import ANONYMOUS
from gateway.web.errors import CloseCode
from gateway.web.loop_budget import UNITS_PER_TURN
from gateway.web.subscribe.endpoint import _closed_by, _code_label
from tests.support.http.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.manual_clock import now, turn, until
from tests.support.websocket.recording_websocket import RecordingWebSocket
from tests.support.websocket.subscriber_fixture import (
    IDS,
    FixtureSubscriber,
    SubscriberFixture,
    message,
    subscribed,
)


def cut(frames: bytes) -> list[bytes]:
    """Return what is in *frames*, whose sizes have 16 bits each."""
    texts = []
    while frames:
        end = 4 + int.from_bytes(frames[2:4])
        texts.append(frames[4:end])
        frames = frames[end:]
    return texts


# To the client


async def test_what_arrives_is_sent_at_once() -> None:
    """In the same turn of the event loop, and so is its FIN."""
    socket, web = await subscribed(SubscriberFixture())
    socket.on_messages(1, [message(1)], now())
    (delivery,) = web.take()
    socket.on_text(json.dumps({"cmd": "FIN", "id": delivery["id"]}))

    assert [FinishDeliveries(1, [IDS[1]])] == socket.nsq.all(FinishDeliveries)
    assert (1, 1) == (socket.delivered, socket.finished)


async def test_what_arrived_before_the_upgrade_comes_behind_its_answer() -> None:
    """The client hears first that it is subscribed."""
    socket = SubscriberFixture().new_socket()
    await socket.open(ANONYMOUS)
    socket.on_messages(1, [message(1)], now())
    web = RecordingWebSocket()
    socket.on_open(web)

    assert ["response", "message"] == [line["type"] for line in web.take()]


async def test_what_json_makes_too_large_goes_in_several_frames() -> None:
    """Control characters take six bytes each: more than was reckoned when the frame was filled."""
    socket, web = await subscribed(SubscriberFixture())

    socket.on_messages(1, [Message(n, 1, IDS[n], b"\x01" * 5_000) for n in range(10)], now())

    assert [] == web.texts
    frames = cut(b"".join(web.frames))
    assert [2, 2, 2, 2, 2] == [frame.count(b"\n") + 1 for frame in frames]
    assert max(map(len, frames)) <= MAX_FRAME_BYTES


async def test_a_socket_that_takes_nothing_is_sent_nothing() -> None:
    """What comes waits in the session until there is room."""
    socket, web = await subscribed(SubscriberFixture())
    web.fills_up = True
    socket.on_messages(1, [message(1)], now())
    socket.on_messages(1, [message(2)], now())
    first = web.take()
    web.is_writable, web.fills_up = True, False
    socket.on_writable()

    assert ([1], [1]) == ([line["attempts"] for line in first], [len(web.take())])


async def test_ack_auto_finishes_what_the_socket_has_taken() -> None:
    """A frame that filled the socket up is taken when there is room again."""
    socket, web = await subscribed(SubscriberFixture(), is_auto_ack=True)
    socket.on_messages(1, [message(1)], now())
    web.fills_up = True
    socket.on_messages(1, [message(2)], now())
    before = socket.nsq.all(FinishDeliveries)
    web.is_writable = True
    socket.on_writable()

    assert [FinishDeliveries(1, [IDS[1]])] == before
    assert [FinishDeliveries(1, [IDS[1]]), FinishDeliveries(1, [IDS[2]])] == socket.nsq.all(
        FinishDeliveries
    )


async def test_messages_that_expired_behind_a_pong_are_made_up_for() -> None:
    """The socket was full of what is not the session's: RDY rises once it has room."""
    socket, web = await subscribed(SubscriberFixture(), max_in_flight=2)
    web.is_writable = False
    socket.on_messages(1, [message(1), message(2)], asyncio.get_running_loop().time())
    expired_at = socket._session.next_wake()
    assert expired_at is not None
    socket._on_event(lambda _: socket._session.wake(expired_at))
    lowered = socket.nsq.all(SetReady)[-1]
    web.is_writable = True
    socket.on_writable()

    assert ([], SetReady(0), SetReady(2)) == (web.take(), lowered, socket.nsq.all(SetReady)[-1])


async def test_a_touch_that_nsqd_refuses_makes_room_for_the_next_message() -> None:
    """By source: another nsqd may have given the same id to another message."""
    socket, web = await subscribed(SubscriberFixture(), max_in_flight=1)
    socket.on_messages(1, [message(1)], asyncio.get_running_loop().time())
    (delivery,) = web.take()
    socket.on_text(json.dumps({"cmd": "TOUCH", "id": delivery["id"]}))
    refusal = ErrorFrame("E_TOUCH_FAILED", f"TOUCH {IDS[1].decode()} failed ID not in flight")

    socket.on_ack_refused(2, refusal)
    by_another = socket.in_flight
    web.take()
    socket.on_ack_refused(1, refusal)

    assert (1, 0) == (by_another, socket.in_flight)
    assert [delivery["id"]] == [each["id"] for each in web.take()]


async def test_commands_that_wait_share_the_turns_of_all_sockets() -> None:
    """Behind the first 512 of a frame: of few sockets in each turn, and of all in the end."""
    house = SubscriberFixture()
    sockets = [await subscribed(house) for _ in range(20)]
    text = "\n".join(json.dumps({"cmd": "NOP", "ref": ref}) for ref in range(600))
    for socket, web in sockets:
        socket.on_text(text)
        web.take()
    going_on = []
    while len([web for _, web in sockets if web.texts]) < 20:
        before = len([web for _, web in sockets if web.texts])
        await turn()
        going_on.append(len([web for _, web in sockets if web.texts]) - before)

    assert max(going_on) <= 2 * UNITS_PER_TURN // 64  # `turn` is two of the event loop
    assert [600 - 512] * 20 == [len(web.take()) for _, web in sockets]


async def test_who_does_not_read_its_answers_is_not_listened_to() -> None:
    """Above the bound of the buffer; below it again it is."""
    socket, web = await subscribed(SubscriberFixture(), buffer_bytes=1_000)
    web.is_writable = False
    question = json.dumps({"cmd": "NOP", "ref": "r" * 2_000})
    socket.on_text(question)
    while_full = web.is_reading
    web.is_writable = True
    socket.on_writable()

    assert (False, True) == (while_full, web.is_reading)
    assert ["NOP"] == [line["cmd"] for line in web.take()]


# The end


def fail(socket: FixtureSubscriber) -> None:
    """Something of ours goes wrong."""
    socket.close(CloseCode.INTERNAL, "the gateway failed")


def hang_up(socket: FixtureSubscriber) -> None:
    """The connection goes."""
    socket.on_close(1006)


def misuse(socket: FixtureSubscriber) -> None:
    """The client says too much that is no command."""
    socket.on_text("\n".join(["nonsense"] * 200))


def lose_secret(socket: FixtureSubscriber) -> None:
    """NSQ does not take the secret any more."""
    socket.on_secret_refused(BrokerRefused("E_AUTH_FAILED", "AUTH failed"))


def delete_channel(socket: FixtureSubscriber) -> None:
    socket.on_channel_gone("192.0.2.9:4150")


ENDS = [fail, hang_up, misuse, lose_secret, delete_channel]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_what_is_unfinished_is_handed_back_before_anything_is_awaited(
    end: Callable[[FixtureSubscriber], None],
) -> None:
    """What the client holds and what it has not been sent, behind an RDY of 0."""
    house = SubscriberFixture()
    socket, web = await subscribed(house)
    socket.on_messages(1, [message(1)], now())
    web.is_writable = False
    socket.on_messages(1, [message(2)], now())
    socket.nsq.wanted.clear()
    end(socket)
    wanted = list(socket.nsq.wanted)
    socket.on_close(1006)
    await until(lambda: bool(house.left))

    back = [each for each in wanted if isinstance(each, RequeueDeliveries)]
    assert sorted([IDS[1], IDS[2]]) == sorted(id_ for each in back for id_ in each.ids)
    assert SetReady(0) == wanted[0]
    assert wanted == socket.nsq.wanted
    assert socket.nsq.has_left
    assert [socket] == house.here == house.left


def drain(socket: FixtureSubscriber) -> None:
    """The gateway wants it to go."""
    socket.drain(CloseReason.DRAINED, close_at=float("inf"), reconnect_after_ms=1)


def hang_up_in_a_drain(socket: FixtureSubscriber) -> None:
    """The client has not taken its CLOSE_WAIT."""
    drain(socket)
    hang_up(socket)


def break_down(socket: FixtureSubscriber) -> None:
    """What the session wants fails, its end as well."""
    socket.nsq.is_broken = True
    drain(socket)


def sums() -> list[float | None]:
    """Return what all sockets have: messages, and what waits for their clients."""
    names = ("messages_in_flight", "socket_unsent_bytes", "socket_unsent_max_bytes")
    return [REGISTRY.get_sample_value(f"nsq_gateway_{name}") for name in names]


@pytest.mark.parametrize(
    "end", [*ENDS, hang_up_in_a_drain, break_down], ids=lambda end: end.__name__
)
async def test_what_has_ended_is_in_no_sum(end: Callable[[FixtureSubscriber], None]) -> None:
    """However it ends, and whatever its client has not taken."""
    before = sums()
    socket, web = await subscribed(SubscriberFixture())
    socket.on_messages(1, [message(1)], now())
    web.is_writable, web.unsent_bytes = False, 700
    socket.on_text('{"cmd":"NOP","ref":1}')
    before_its_end = sums()
    end(socket)
    at_once = sums()
    socket.on_channel_paused(True)
    socket.on_close(1006)

    assert before != before_its_end
    assert [before, before] == [at_once, sums()]


async def test_what_was_never_opened_is_in_no_sum() -> None:
    """Though it has been subscribed, and has something to tell."""
    before = sums()
    socket = SubscriberFixture().new_socket()
    await socket.open(ANONYMOUS)
    socket.on_messages(1, [message(1)], now())
    before_its_end = sums()
    await socket.release()

    assert (True, before) == (before != before_its_end, sums())


def request_again(socket: FixtureSubscriber) -> None:
    """The client says REQ."""
    socket.on_text(json.dumps({"cmd": "REQ", "id": f"{IDS[1].decode()}-1"}))


def come_late(socket: FixtureSubscriber) -> None:
    """A message comes behind the RDY of 0."""
    socket.on_text(json.dumps({"cmd": "FIN", "id": f"{IDS[1].decode()}-1"}))
    drain(socket)
    socket.on_messages(1, [message(2)], now())


@pytest.mark.parametrize(
    "happen,cause,requeued_on_close",
    [
        (request_again, RequeueCause.CLIENT, 0),
        (come_late, RequeueCause.DRAIN, 1),
        (hang_up_in_a_drain, RequeueCause.DRAIN, 1),
        (lambda socket: socket.on_close(1012), RequeueCause.DISCONNECT, 1),
        (delete_channel, RequeueCause.DISCONNECT, 1),
    ],
    ids=["REQ", "late in a drain", "gone in a drain", "1012 of the client", "an end of ours"],
)
async def test_why_a_message_goes_back_goes_with_it(
    happen: Callable[[FixtureSubscriber], None], cause: RequeueCause, requeued_on_close: int
) -> None:
    """Whatever code the socket ends with; what an end has brought is counted apart."""
    socket, _ = await subscribed(SubscriberFixture())
    socket.on_messages(1, [message(1)], now())
    happen(socket)

    [back] = socket.nsq.all(RequeueDeliveries)
    assert isinstance(back, RequeueDeliveries)
    assert (cause, 1, requeued_on_close) == (back.cause, socket.requeued, socket.requeued_on_close)


async def test_a_bug_ends_the_socket_alone_and_hands_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """1011; whoever called hears nothing of it: NSQ's connection may be that of others."""
    socket, web = await subscribed(SubscriberFixture())
    socket.on_messages(1, [message(1)], now())

    def fail(*_: object) -> list[object]:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "on_messages", fail)
        socket.on_messages(1, [message(2)], now())

    assert (1011, "the gateway failed") == web.closed
    assert [RequeueDeliveries(1, [IDS[1]], 0, RequeueCause.DISCONNECT)] == socket.nsq.all(
        RequeueDeliveries
    )


async def test_what_comes_after_the_end_goes_back() -> None:
    socket, _ = await subscribed(SubscriberFixture())
    socket.on_close(1006)
    socket.on_messages(1, [message(1)], now())

    assert [RequeueDeliveries(1, [IDS[1]], 0, RequeueCause.DISCONNECT)] == socket.nsq.all(
        RequeueDeliveries
    )


async def test_answers_that_wait_when_the_client_goes_are_not_sent() -> None:
    """Its socket has room again meanwhile, and a source is lost."""
    socket, web = await subscribed(SubscriberFixture())
    web.is_writable = False
    socket.on_text(json.dumps({"cmd": "NOP", "ref": 1}))
    socket.on_close(1006)
    web.is_writable = True
    socket.on_source_lost(1, BrokerUnreachable("127.0.0.1:4150", "gone"))

    assert [] == web.take()


async def test_answers_that_wait_are_sent_before_the_close() -> None:
    """Whether or not the socket takes them at once: nothing comes after."""
    socket, web = await subscribed(SubscriberFixture())
    web.is_writable = False
    socket.on_text('{"cmd":"NOP","ref":1}')
    delete_channel(socket)

    assert [None, "CHANNEL_GONE"] == [line.get("code") for line in web.take()]
    assert (4004, "the channel was deleted") == web.closed


async def test_a_socket_that_ended_before_its_upgrade_says_so_then() -> None:
    """It is opened, told, and closed."""
    house = SubscriberFixture()
    socket = house.new_socket()
    await socket.open(ANONYMOUS)
    lose_secret(socket)
    web = RecordingWebSocket()
    socket.on_open(web)
    await until(lambda: socket.nsq.has_left)
    before = list(house.left)
    socket.on_close(4003)

    assert 4003 == socket.close_code
    assert web.closed is not None
    assert (4003, [], [socket]) == (web.closed[0], before, house.left)


async def test_a_socket_that_is_not_opened_leaves_nothing() -> None:
    """Its upgrade was refused, or its client has gone: what came meanwhile goes back."""
    house = SubscriberFixture()
    socket = house.new_socket()
    await socket.open(ANONYMOUS)
    socket.on_messages(1, [message(1)], now())
    await socket.release()

    assert [RequeueDeliveries(1, [IDS[1]], 0, RequeueCause.DISCONNECT)] == socket.nsq.all(
        RequeueDeliveries
    )
    assert ([], []) == (house.here, house.left)
    assert socket.nsq.has_left


# AUTH


async def test_a_bug_while_auth_is_tried_is_told_as_1011() -> None:
    house = SubscriberFixture()
    socket = house.new_socket()
    socket.wait_for_auth()
    web = RecordingWebSocket()
    socket.on_open(web)
    socket.nsq.failure = NoBroker("192.0.2.9:4150 is away")
    socket.on_text('{"cmd":"AUTH","secret":"alice"}')
    while_tried = web.is_reading
    await until(lambda: web.closed is not None)

    (error,) = web.take()
    assert ("AUTH", "NO_BROKER", True) == (error["cmd"], error["code"], error["retryable"])
    assert web.closed is not None
    assert (1014, False) == (web.closed[0], while_tried)
    assert Secret(b"alice") == socket.secret


async def late(house: SubscriberFixture) -> tuple[FixtureSubscriber, RecordingWebSocket]:
    """Return a socket that holds a message, and of whom a later broker wants a secret."""
    socket, web = await subscribed(house)
    socket.on_messages(1, [message(1)], now())
    socket.on_secret_missing()
    web.take()
    return socket, web


async def test_who_subscribes_anew_with_a_secret_hands_back_first() -> None:
    """NSQ would wait for the timeout: RDY 0 and REQ before the way out, RDY behind the way in."""
    house = SubscriberFixture()
    socket, web = await late(house)
    socket.nsq.wanted.clear()

    socket.on_text('{"cmd":"AUTH","secret":"alice"}')
    await until(lambda: len(web.texts) > 1)

    assert [
        SetReady(0),
        RequeueDeliveries(1, [IDS[1]], 0, RequeueCause.RESUBSCRIBE),
    ] == socket.nsq.wanted[:2]
    assert SetReady(10) == socket.nsq.wanted[-1]
    lost, *answers = web.take()
    assert ("NOP", [f"{IDS[1].decode()}-1"]) == (lost["cmd"], lost["data"]["lost_ids"])
    assert ["AUTH", "NOP"] == [line["cmd"] for line in answers]
    assert (True, Secret(b"alice")) == (socket.nsq.has_left, socket.secret)


async def test_what_is_left_for_a_secret_is_left_to_its_end() -> None:
    """Though the client goes meanwhile."""
    house = SubscriberFixture()
    socket, _ = await late(house)
    socket.nsq.may_leave.clear()
    socket.on_text('{"cmd":"AUTH","secret":"alice"}')
    await until(lambda: socket.nsq.leaving == 1)

    socket.on_messages(1, [message(2)], now())
    socket.on_close(1001)
    await turn(3)
    socket.nsq.may_leave.set()
    await until(lambda: house.left == [socket])

    assert (2, 0) == (socket.nsq.leaving, socket.nsq.cut_short)
    assert RequeueDeliveries(1, [IDS[2]], 0, RequeueCause.RESUBSCRIBE) in socket.nsq.wanted
    assert socket.secret is None


# Publishing


async def test_a_secret_that_nobody_wanted_is_used_to_publish() -> None:
    house = SubscriberFixture()
    socket, _ = await subscribed(house)

    socket.on_text('{"cmd":"PUB","topic":"u","body":"a"}')
    socket.on_text('{"cmd":"AUTH","secret":"alice"}')
    socket.on_text('{"cmd":"PUB","topic":"u","body":"b"}')

    assert [None, Secret(b"alice")] == house.publisher.secrets


async def test_a_publish_that_is_answered_at_once_may_be_the_last_that_was_open() -> None:
    """The answer is told in the midst of what its frame asks for, and the socket ends once."""
    house = SubscriberFixture()
    house.publisher = RecordingPublisher()
    socket, web = await subscribed(house)

    socket.on_text('{"cmd":"CLS"}\n' + '{"cmd":"PUB","topic":"u","body":"a","ref":1}\n' * 2)
    socket.on_close(1000)
    await until(lambda: house.left == [socket])

    assert ["CLS", "PUB", "PUB"] == [line["cmd"] for line in web.take()]
    assert web.closed is not None
    assert (1000, 2) == (web.closed[0], len(house.publisher.published))


async def test_a_publish_is_answered_when_nsq_has_answered_it() -> None:
    """With the socket's secret; its outcome after the end is told to nobody."""
    house = SubscriberFixture()
    socket, web = await subscribed(house)
    for ref in (1, 2):
        socket.on_text(json.dumps({"cmd": "PUB", "topic": "u", "body": "hello", "ref": ref}))
    before = web.take()
    assert isinstance(house.publisher, WaitingPublisher)
    first, second = house.publisher.waiting
    first(None)
    answers = web.take()
    socket.on_close(1001)
    second(None)

    assert [] == before + web.take()
    assert [("PUB", 1, "OK")] == [(line["cmd"], line["ref"], line["data"]) for line in answers]
    assert [("u", [b"hello"], 0)] * 2 == house.publisher.published


# What NSQ tells


async def test_a_source_that_comes_and_goes_is_told() -> None:
    """The deliveries that went with it too; an answer that NSQ refused too."""
    socket, web = await subscribed(SubscriberFixture())
    socket.on_messages(1, [message(1)], now())
    (delivery,) = web.take()
    socket.on_source_lost(1, BrokerUnreachable("192.0.2.9:4150", "gone"))
    (lost,) = web.take()
    socket.on_source_opened(2, IdentifyResponse())
    (back,) = web.take()

    assert ("disconnected", [delivery["id"]]) == (lost["data"]["state"], lost["data"]["lost_ids"])
    assert "connected" == back["data"]["state"]


async def test_a_pause_is_told() -> None:
    socket, web = await subscribed(SubscriberFixture())
    socket.on_channel_paused(True)
    socket.on_channel_paused(False)

    states = [line["data"]["state"] for line in web.take()]
    assert ["channel_paused", "connected"] == states


@pytest.mark.parametrize("by_client,label", [(True, "client"), (False, "4001")])
async def test_only_our_own_close_codes_are_counted_by_code(*, by_client: bool, label: str) -> None:
    """A client may send any: its ends are one."""
    socket, web = await subscribed(SubscriberFixture())
    web.is_closed_by_client = by_client
    socket.on_close(4001)

    assert (4001, label) == (socket.close_code, _code_label(socket))


@pytest.mark.parametrize(
    "code,by_client,close_reason,closed_by,reason",
    [
        (4001, True, "", "client", "the client disconnected"),
        (1006, False, "", "client", "the client disconnected"),
        (1003, False, "commands are text messages, this one is binary", "gateway", None),
        (4000, False, "no pong in time", "gateway", None),
        (1012, False, "the gateway is shutting down", "gateway", None),
    ],
)
async def test_the_log_names_the_side_that_closed_and_its_reason(
    *, code: int, by_client: bool, close_reason: str, closed_by: str, reason: str | None
) -> None:
    """None: the text of the close frame that the WebSocket layer has sent by itself."""
    socket, web = await subscribed(SubscriberFixture())
    web.is_closed_by_client, web.close_reason = by_client, close_reason
    socket.on_close(code)

    expected = close_reason if reason is None else reason
    assert (closed_by, expected) == (_closed_by(socket), socket.totals["reason"])


async def test_the_reason_of_a_close_by_the_session_is_kept() -> None:
    """The client's answer, or the loss of the connection, does not replace it."""
    socket, web = await subscribed(SubscriberFixture())
    socket.on_text('{"cmd":"CLS"}')
    web.is_closed_by_client = True
    socket.on_close(1000)

    assert ("gateway", "the client sent CLS") == (_closed_by(socket), socket.totals["reason"])
