"""One connection to a broker: opened, asked, answered, whatever the broker does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest

import gateway
from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.opening import open_connection
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
from gateway.protocol.frames import OK, ErrorFrame, Message, Response
from gateway.protocol.identify import Answer, Offer, parse_offer
from tests.support.connection_listener import IN_A_HURRY, OPTIONS, Listener, ask
from tests.support.deliveries import message_id, messages
from tests.support.manual_clock import turn
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


# Opening


async def test_opening_says_what_is_offered_and_learns_what_holds(broker: ScriptedBroker) -> None:
    """The offer goes out as JSON, and the broker's answer is kept."""
    broker.identifies_as(Answer(max_rdy_count=7))
    offer = Offer(
        client_id="me",
        hostname="here",
        user_agent="x/1",
        feature_negotiation=True,
        msg_timeout=5_000,
    )

    connection = await open_connection(broker.address, ConnectionOptions(offer=offer), Listener())

    identify = await (await broker.peer()).next(Identify)
    assert offer.to_json() == identify.body
    assert (True, 7, broker.address) == (
        connection.is_open,
        connection.answer.max_rdy_count,
        connection.address,
    )


async def test_a_client_that_does_not_say_who_it_is_is_named(broker: ScriptedBroker) -> None:
    """nsqd's /stats shows by host and program who is connected."""
    await open_connection(broker.address, ConnectionOptions(), Listener())

    identify = await (await broker.peer()).next(Identify)
    said = parse_offer(identify.body)
    host_name = socket.gethostname()
    assert (host_name.partition(".")[0], host_name) == (said.client_id, said.hostname)
    assert f"nsq-gateway/{gateway.__version__}" == said.user_agent


async def test_a_plain_ok_stands_for_the_defaults(broker: ScriptedBroker) -> None:
    """A broker without feature negotiation is one too."""
    broker.on(Identify, say(OK))

    connection = await open_connection(broker.address, OPTIONS, Listener())

    assert Answer() == connection.answer


@pytest.mark.parametrize(
    "rule, reason",
    [
        (refuse("E_BAD_BODY", "no"), "refused IDENTIFY: E_BAD_BODY no"),
        (silence, "no answer to IDENTIFY within 400 ms"),
        (write(b"\0\0\0\6\0\0"), "no answer to IDENTIFY within 400 ms"),
        (close, "the broker closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak NSQ V2: E_INVALID frame type"),
        (say(Response(b"{")), "does not speak NSQ V2: E_INVALID the answer to IDENTIFY"),
        (say(Response(b'{"snappy":true}')), "starts snappy, which was not asked for"),
        (say(Response(b'{"tls_v1":true}')), "starts tls_v1, which was not asked for"),
    ],
    ids=[
        "refused",
        "silent",
        "half a frame",
        "closed",
        "reset",
        "HTTP",
        "no JSON",
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

    assert "no TCP connection within 400 ms" == caught.value.reason


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
        (write(b"\0\0\0"), "no answer to SUB within 400 ms"),
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
