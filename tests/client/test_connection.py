"""One connection to a broker: opened, kept alive, paired, closed, whatever the broker does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from gateway.client.connection import (
    BrokerConnection,
    ConnectionOptions,
    Reply,
    open_connection,
)
from gateway.errors import BrokerRefused, BrokerUnreachable, LocalProtocolError
from gateway.protocol.commands import (
    Finish,
    Identify,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.frames import HEARTBEAT_FRAME, OK, ErrorFrame, Message, Response
from gateway.protocol.identify import Answer, Offer
from tests.support.deliveries import message_id, messages
from tests.support.manual_clock import ManualClock, turn
from tests.support.scripted_broker import (
    Peer,
    Rule,
    ScriptedBroker,
    close,
    refuse,
    reset,
    say,
    silence,
    write,
)

A, B = message_id(0xA), message_id(0xB)
MESSAGE_FRAME = b"\0\0\0\x1f\0\0\0\2" + bytes(8) + b"\0\1" + A + b"x"
HEARTBEAT_S = 30.0
OPTIONS = ConnectionOptions(offer=Offer(feature_negotiation=True, heartbeat_interval=30_000))
IN_A_HURRY = ConnectionOptions(connect_timeout_ms=50, close_timeout_ms=50)


class Listener:
    """Keeps what a connection tells."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[list[Message]] = asyncio.Queue()
        self.refusals: asyncio.Queue[ErrorFrame] = asyncio.Queue()
        self.ends: asyncio.Queue[BrokerUnreachable] = asyncio.Queue()

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Keep a list."""
        del connection
        self.messages.put_nowait(messages)

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Keep a refusal."""
        del connection
        self.refusals.put_nowait(frame)

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Keep the end."""
        assert not connection.is_open
        self.ends.put_nowait(error)

    @property
    def heard(self) -> int:
        """How much was told and not taken."""
        return self.messages.qsize() + self.refusals.qsize() + self.ends.qsize()


@pytest.fixture
def listener() -> Listener:
    """Return who is told."""
    return Listener()


@pytest_asyncio.fixture
async def connection(broker: ScriptedBroker, listener: Listener) -> AsyncIterator[BrokerConnection]:
    """Return a connection for publishing."""
    connection = await open_connection(broker.address, OPTIONS, listener)
    yield connection
    connection.abort()


@pytest_asyncio.fixture
async def peer(broker: ScriptedBroker, connection: BrokerConnection) -> Peer:
    """Return the broker's end of `connection`."""
    assert connection.is_open
    return await broker.peer()


@pytest_asyncio.fixture
async def subscribed(peer: Peer, connection: BrokerConnection) -> Peer:
    """Return the broker's end of `connection`, which has subscribed."""
    await connection.subscribe("t", "c")
    return peer


def ask(connection: BrokerConnection, *bodies: bytes) -> list[Reply]:
    """Publish *bodies*; return the list that their replies will come into."""
    replies: list[Reply] = []
    for body in bodies:
        connection.ask(Publish("t", body), replies.append)
    return replies


# Opening


async def test_opening_says_what_is_offered_and_learns_what_holds(broker: ScriptedBroker) -> None:
    """The offer goes out as JSON, and the broker's answer is kept."""
    broker.identifies_as(Answer(max_rdy_count=7))
    offer = Offer(client_id="me", feature_negotiation=True, msg_timeout=5_000)

    connection = await open_connection(broker.address, ConnectionOptions(offer=offer), Listener())

    identify = await (await broker.peer()).next(Identify)
    assert offer.to_json() == identify.body
    assert (True, 7, broker.address) == (
        connection.is_open,
        connection.answer.max_rdy_count,
        connection.address,
    )


async def test_a_plain_ok_stands_for_the_defaults(broker: ScriptedBroker) -> None:
    """A broker without feature negotiation is one too."""
    broker.on(Identify, say(OK))

    connection = await open_connection(broker.address, OPTIONS, Listener())

    assert Answer() == connection.answer


@pytest.mark.parametrize(
    "rule, reason",
    [
        (refuse("E_BAD_BODY", "no"), "refused IDENTIFY: E_BAD_BODY no"),
        (silence, "no answer to IDENTIFY within 50 ms"),
        (write(b"\0\0\0\6\0\0"), "no answer to IDENTIFY within 50 ms"),
        (close, "the broker closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak NSQ V2: E_INVALID frame type"),
        (say(Response(b"{")), "does not speak NSQ V2: E_INVALID the answer to IDENTIFY"),
        (say(Response(b'{"auth_required":true}')), "asks for AUTH, which this version does not"),
        (say(Response(b'{"snappy":true}')), "asks for TLS or compression, which this version"),
        (say(Response(b'{"tls_v1":true}')), "asks for TLS or compression, which this version"),
    ],
    ids=[
        "refused",
        "silent",
        "half a frame",
        "closed",
        "reset",
        "HTTP",
        "no JSON",
        "AUTH",
        "snappy",
        "TLS",
    ],
)
async def test_a_broker_that_cannot_be_talked_to_is_unreachable(
    broker: ScriptedBroker, listener: Listener, rule: Rule, reason: str
) -> None:
    """One error with address and reason; the listener hears nothing, and nothing stays open."""
    broker.on(Identify, rule)

    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection(broker.address, IN_A_HURRY, listener)

    assert reason == caught.value.reason[: len(reason)]
    assert f"nsqd at {broker.address}: {caught.value.reason}" == str(caught.value)
    await (await broker.peer()).gone()
    assert 0 == listener.heard


async def test_a_port_where_nobody_listens_is_unreachable(broker: ScriptedBroker) -> None:
    """In the system's words, without its numbers."""
    await broker.stop()

    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection(broker.address, OPTIONS, Listener())

    assert "Connection refused" == caught.value.reason


async def test_a_host_that_does_not_answer_is_unreachable() -> None:
    """A full backlog drops the SYN: the wait is bounded."""
    with socket.socket() as deaf, contextlib.ExitStack() as callers:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())

        port = deaf.getsockname()[1]
        with pytest.raises(BrokerUnreachable) as caught:
            await open_connection(f"127.0.0.1:{port}", IN_A_HURRY, Listener())

    assert "no TCP connection within 50 ms" == caught.value.reason


async def test_a_name_that_is_not_known_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver's words are the reason."""

    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)

    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection("nowhere:4150", OPTIONS, Listener())

    assert "Name or service not known" == caught.value.reason


@pytest.mark.parametrize("address", ["", "nsqd", "nsqd:", ":4150", "nsqd:99999", "a..b:4150"])
async def test_what_is_no_address_is_unreachable(address: str) -> None:
    """It is said before anything is tried, or by the resolver; either way it is one error."""
    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection(address, OPTIONS, Listener())

    assert address == caught.value.address


async def test_a_cancelled_opening_leaves_nothing_open(broker: ScriptedBroker) -> None:
    """The TCP connection goes with the one who wanted it."""
    broker.on(Identify, silence)
    opening = asyncio.ensure_future(open_connection(broker.address, OPTIONS, Listener()))
    peer = await broker.peer()
    await peer.next(Identify)

    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening
    await peer.gone()


# Asking and being answered


async def test_replies_are_paired_in_order(peer: Peer, connection: BrokerConnection) -> None:
    """Each command gets its own answer, also when they come in one read."""
    replies = ask(connection, b"1", b"2")
    peer._broker.on(Publish, silence)
    replies_behind = ask(connection, b"3", b"4")
    last = asyncio.ensure_future(connection.request(Publish("t", b"5"), timeout_ms=5_000))
    while len(peer.all(Publish)) < 5:
        await peer.next(Publish)

    peer.send(*(Response(each) for each in (b"1", b"2", b"3", b"4", b"5")))

    assert Response(b"5") == await last
    assert [Response(b"1"), Response(b"2")] == replies
    assert [Response(b"3"), Response(b"4")] == replies_behind


async def test_a_refusal_answers_the_oldest_command_and_ends_the_rest(
    peer: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """As nsqd does it: what stands behind a refused command is never answered."""
    peer._broker.on(Publish, silence)
    replies = ask(connection, b"1", b"2")
    await peer.next(Publish)

    peer.send(ErrorFrame("E_BAD_MESSAGE", "no"))

    end = await listener.ends.get()
    assert [ErrorFrame("E_BAD_MESSAGE", "no"), end] == replies
    assert "refused a command: E_BAD_MESSAGE no" == end.reason
    await peer.gone()


async def test_a_request_that_is_refused_raises(
    broker: ScriptedBroker, connection: BrokerConnection
) -> None:
    """Code and description are the broker's."""
    broker.on(Subscribe, refuse("E_BAD_CHANNEL", "no"))

    with pytest.raises(BrokerRefused) as caught:
        await connection.subscribe("t", "c")

    assert ("E_BAD_CHANNEL", "no") == (caught.value.code, caught.value.description)


@pytest.mark.parametrize(
    "rule, reason",
    [
        (close, "the broker closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (write(b"garbage!garbage!"), "does not speak NSQ V2"),
        (write(b"\0\0\0"), "no answer to SUB within 50 ms"),
    ],
    ids=["closed", "reset", "garbage", "silence"],
)
async def test_a_request_without_an_answer_raises(
    broker: ScriptedBroker, listener: Listener, rule: Rule, reason: str
) -> None:
    """The connection is gone then, and the listener knows why."""
    broker.on(Subscribe, rule)
    connection = await open_connection(broker.address, IN_A_HURRY, listener)

    with pytest.raises(BrokerUnreachable) as caught:
        await connection.subscribe("t", "c")

    assert caught.value.reason.startswith(reason)
    assert (await listener.ends.get()).reason == caught.value.reason
    await (await broker.peer()).gone()


async def test_a_response_that_nothing_asked_for_ends_the_connection(
    peer: Peer, listener: Listener
) -> None:
    """Nothing could be paired any more."""
    peer.send(Response(b"hello"))

    reason = (await listener.ends.get()).reason

    assert "sent a response that no command asked for: b'hello'" == reason


async def test_an_ended_connection_takes_no_questions(
    peer: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """Asking says why it has ended; what has no answer is silently not written."""
    peer.close()
    await listener.ends.get()

    with pytest.raises(BrokerUnreachable, match="the broker closed the connection"):
        connection.ask(Publish("t", b"1"), lambda _reply: None)
    connection.send(Nop())
    connection.finish([A])
    connection.requeue([A], delay_ms=0)
    connection.touch([A])
    connection.pause_reading()
    connection.resume_reading()
    connection.abort()
    await connection.close()

    assert [] == peer.received[1:]


async def test_what_v2_forbids_is_a_fault_of_ours(connection: BrokerConnection) -> None:
    """It is raised before a byte is written."""
    with pytest.raises(LocalProtocolError, match="RDY is not allowed in state INIT"):
        connection.ready(1)


# Messages


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_messages_arrive_as_lists(subscribed: Peer, listener: Listener, step: int) -> None:
    """In order, however the stream is cut."""
    sent = messages(*range(20))
    stream = subscribed._protocol.send_messages(sent)

    for start in range(0, len(stream), step):
        subscribed.write(stream[start : start + step])
        await turn()

    arrived: list[Message] = []
    while len(arrived) < len(sent):
        arrived += await listener.messages.get()
    assert sent == arrived


async def test_answers_go_out_as_nsqs_commands(
    subscribed: Peer, connection: BrokerConnection
) -> None:
    """RDY, FIN, REQ and TOUCH, in the order in which they were given."""
    connection.ready(5)
    connection.finish([A, B])
    connection.requeue([A, B], delay_ms=7)
    connection.touch([A, B])
    connection.send(Nop())

    await subscribed.next(Nop)

    assert [
        Ready(5),
        Finish(A),
        Finish(B),
        Requeue(A, 7),
        Requeue(B, 7),
        Touch(A),
        Touch(B),
        Nop(),
    ] == subscribed.received[2:]


async def test_a_late_refusal_is_told_and_the_connection_goes_on(
    subscribed: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """It answers no command that waits: FIN has no answer."""
    refusal = ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed ID not in flight")
    closing = asyncio.ensure_future(connection.request(StartClose(), timeout_ms=5_000))

    subscribed.send(refusal)

    assert refusal == await listener.refusals.get()
    assert Response(b"CLOSE_WAIT") == await closing


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (lambda peer: peer.write(MESSAGE_FRAME), "sent messages, and nobody has subscribed"),
        (lambda peer: peer.send(ErrorFrame("E_FIN_FAILED", "x")), "refused a command: E_FIN_FAIL"),
    ],
    ids=["a message", "a refused FIN"],
)
async def test_a_connection_for_publishing_knows_no_messages(
    peer: Peer, listener: Listener, wrong: Callable[[Peer], None], reason: str
) -> None:
    """A broker that says something of them has lost its way."""
    wrong(peer)

    assert reason == (await listener.ends.get()).reason[: len(reason)]
    assert 0 == listener.heard


async def test_nothing_is_read_behind_the_end(subscribed: Peer, listener: Listener) -> None:
    """A refusal ends the connection: what stands behind it in the same read is not told."""
    subscribed.send(messages(1), ErrorFrame("E_INVALID", "no"), messages(2), messages(3))

    await listener.ends.get()

    assert (1, messages(1)) == (listener.messages.qsize(), listener.messages.get_nowait())


# The peer's silence


async def test_a_heartbeat_is_answered(peer: Peer) -> None:
    """By NOP, each of them."""
    peer.beat()
    peer.beat()

    await peer.next(Nop)
    await peer.next(Nop)

    assert 2 == len(peer.all(Nop))


async def test_a_heartbeat_stands_between_replies(peer: Peer, connection: BrokerConnection) -> None:
    """It is a response frame and answers no command."""
    peer._broker.on(Publish, say(HEARTBEAT_FRAME, OK))

    reply = await connection.request(Publish("t", b"1"), timeout_ms=5_000)

    assert OK == reply


async def test_a_silent_peer_is_cut_after_two_heartbeats(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """Counted from the last byte it sent, not a moment before and not an interval later."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()
    await clock.advance(HEARTBEAT_S)
    peer.beat()
    await peer.next(Nop)

    await clock.advance(2 * HEARTBEAT_S - 0.001)
    was_open = connection.is_open
    await clock.advance(0.001)

    assert (True, False) == (was_open, connection.is_open)
    assert "silent for two heartbeats (60 s)" == (await listener.ends.get()).reason
    await peer.gone()


async def test_a_heartbeat_in_time_keeps_the_connection(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """A peer that beats is alive for ever."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()

    for _ in range(10):
        await clock.advance(1.9 * HEARTBEAT_S)
        peer.beat()
        await peer.next(Nop)

    assert (True, 0) == (connection.is_open, listener.heard)
    connection.abort()


async def test_without_heartbeats_silence_is_no_sign(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """Switched off by the offer, nothing is measured."""
    clock = ManualClock()
    options = ConnectionOptions(offer=Offer(heartbeat_interval=-1))
    connection = await open_connection(broker.address, options, listener)

    await clock.advance(1_000_000.0)

    assert (True, 0) == (connection.is_open, listener.heard)
    connection.abort()


async def test_while_nothing_is_read_the_broker_hears_from_us(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """NOP at once and at every interval, though heartbeats lie unread; silence is no sign then."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()
    await connection.subscribe("t", "c")

    connection.pause_reading()
    connection.pause_reading()
    await peer.next(Nop)
    for _ in range(5):
        peer.beat()
        await clock.advance(HEARTBEAT_S)
        await peer.next(Nop)

    assert (True, 6) == (connection.is_open, len(peer.all(Nop)))
    connection.abort()


async def test_reading_again_gives_what_had_come(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """And the peer's silence counts from there."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()
    await connection.subscribe("t", "c")
    connection.pause_reading()
    await clock.advance(HEARTBEAT_S)
    peer.send(messages(1))
    await turn(3)
    unread = listener.heard

    connection.resume_reading()
    arrived = await listener.messages.get()
    await clock.advance(2 * HEARTBEAT_S)

    assert (0, messages(1)) == (unread, arrived)
    assert "silent for two heartbeats (60 s)" == (await listener.ends.get()).reason


# The end


async def test_closing_says_goodbye_where_subscribed(
    subscribed: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """CLS, its answer, the end; what was paused is read for it."""
    connection.pause_reading()

    await connection.close()

    assert [StartClose()] == subscribed.all(StartClose)
    await subscribed.gone()
    assert False is connection.is_open
    assert 1 == listener.ends.qsize()


async def test_closing_a_connection_for_publishing_is_just_that(
    peer: Peer, connection: BrokerConnection
) -> None:
    """CLS is for subscribers; what was written before arrives."""
    ask(connection, b"x" * 500_000)

    await connection.close()

    await peer.gone()
    assert ([1], []) == (
        [len(each.body) // 500_000 for each in peer.all(Publish)],
        peer.all(StartClose),
    )


async def test_messages_that_come_while_closing_are_told(
    broker: ScriptedBroker, subscribed: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """They were on their way, and somebody must give them back; answers are still written."""
    broker.on(StartClose, silence)
    closing = asyncio.ensure_future(connection.close())
    await subscribed.next(StartClose)

    subscribed.send(messages(0xA))
    await listener.messages.get()
    connection.requeue([A], delay_ms=0)
    requeued = await subscribed.next(Requeue)
    subscribed.send(Response(b"CLOSE_WAIT"))

    await closing
    assert Requeue(A, 0) == requeued


@pytest.mark.parametrize(
    "rule",
    [silence, close, reset, refuse("E_INVALID", "cannot CLS in current state")],
    ids=["silence", "close", "reset", "refusal"],
)
async def test_closing_ends_whatever_the_broker_does(
    broker: ScriptedBroker, listener: Listener, rule: Rule
) -> None:
    """Within its limit, without an error, and with nothing left open."""
    broker.on(StartClose, rule)
    connection = await open_connection(broker.address, IN_A_HURRY, listener)
    await connection.subscribe("t", "c")

    await connection.close()

    await (await broker.peer()).gone()
    assert 1 == listener.ends.qsize()


async def test_closing_does_not_wait_for_a_broker_that_reads_nothing(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """What cannot be written within the limit is dropped."""
    connection = await open_connection(broker.address, IN_A_HURRY, listener)
    peer = await broker.peer()
    peer.transport.pause_reading()
    ask(connection, b"x" * 50_000_000)

    await connection.close()
    await listener.ends.get()

    assert not connection.is_open
    peer.transport.abort()


async def test_closing_twice_is_closing_once(
    subscribed: Peer, connection: BrokerConnection
) -> None:
    """The second waits for nothing that the first has not."""
    await asyncio.gather(connection.close(), connection.close())

    await connection.close()

    assert [StartClose()] == subscribed.all(StartClose)


async def test_a_cancelled_closing_leaves_nothing_open(
    broker: ScriptedBroker, subscribed: Peer, connection: BrokerConnection
) -> None:
    """There is no time for a goodbye then."""
    broker.on(StartClose, silence)
    closing = asyncio.ensure_future(connection.close())
    await subscribed.next(StartClose)

    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    await subscribed.gone()


async def test_an_abort_says_why(
    peer: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """The reason reaches the listener and whoever asks later; the first one counts."""
    replies = ask(connection, b"1")

    connection.abort("no patience")
    connection.abort("no patience at all")

    end = await listener.ends.get()
    assert ("no patience", [end]) == (end.reason, replies)
    await peer.gone()
