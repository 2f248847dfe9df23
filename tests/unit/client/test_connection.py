"""Tests of `BrokerConnection`: handshake, requests, replies and the end, with any broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest

import gateway
from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.handshake import open_connection
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
    encode_finishes,
)
from gateway.protocol.frames import OK, ErrorFrame, Message, Response
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse, parse_identify_request
from tests.support.brokers.connection_listener import (
    OPTIONS,
    SHORT_TIMEOUTS,
    Listener,
    publish_each,
)
from tests.support.brokers.scripted_broker import (
    Peer,
    Rule,
    ScriptedBroker,
    close,
    no_response,
    refuse,
    reset,
    respond,
    respond_raw,
)
from tests.support.manual_clock import turn
from tests.support.websocket.session_messages import message_id, messages

A, B = message_id(0xA), message_id(0xB)
MESSAGE_FRAME = b"\0\0\0\x1f\0\0\0\2" + bytes(8) + b"\0\1" + A + b"x"


# Opening


async def test_opening_says_what_is_offered_and_learns_what_holds(broker: ScriptedBroker) -> None:
    """IDENTIFY is written as JSON, and the broker's answer is kept."""
    broker.identifies_as(IdentifyResponse(max_rdy_count=7))
    offer = IdentifyRequest(
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


async def test_what_is_written_is_counted(broker: ScriptedBroker) -> None:
    """Every byte counts, of single commands and of FINs written together."""
    connection = await open_connection(broker.address, OPTIONS, Listener())
    before = connection.metrics.bytes_out
    connection.send(Subscribe("t", "c"), Ready(2))
    connection.finish([A, B])

    written = b"SUB t c\nRDY 2\n" + encode_finishes([A, B])
    assert (True, len(written)) == (before > 0, connection.metrics.bytes_out - before)


async def test_a_client_that_does_not_say_who_it_is_is_named(broker: ScriptedBroker) -> None:
    """nsqd's /stats shows the client's host and user agent."""
    await open_connection(broker.address, ConnectionOptions(), Listener())

    identify = await (await broker.peer()).next(Identify)
    said = parse_identify_request(identify.body)
    host_name = socket.gethostname()
    assert (host_name.partition(".")[0], host_name) == (said.client_id, said.hostname)
    assert f"nsq-gateway/{gateway.__version__}" == said.user_agent


async def test_a_plain_ok_stands_for_the_defaults(broker: ScriptedBroker) -> None:
    """A broker without feature negotiation is accepted."""
    broker.on(Identify, respond(OK))

    connection = await open_connection(broker.address, OPTIONS, Listener())

    assert IdentifyResponse() == connection.answer


@pytest.mark.parametrize(
    "rule, reason",
    [
        (refuse("E_BAD_BODY", "no"), "refused IDENTIFY: E_BAD_BODY no"),
        (no_response, "no answer to IDENTIFY within 400 ms"),
        (respond_raw(b"\0\0\0\6\0\0"), "no answer to IDENTIFY within 400 ms"),
        (close, "nsqd closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (
            respond_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "does not speak NSQ V2: E_INVALID unknown frame type",
        ),
        (respond(Response(b"{")), "does not speak NSQ V2: E_INVALID the response to IDENTIFY"),
        (respond(Response(b'{"snappy":true}')), "starts snappy, which was not requested"),
        (respond(Response(b'{"tls_v1":true}')), "starts tls_v1, which was not requested"),
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
    """One error has address and reason; the listener is not called, and no connection is left."""
    broker.on(Identify, rule)

    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection(broker.address, SHORT_TIMEOUTS, listener)

    assert reason == caught.value.reason[: len(reason)]
    assert f"nsqd at {broker.address}: {caught.value.reason}" == str(caught.value)
    await (await broker.peer()).gone()
    assert 0 == listener.heard


async def test_a_port_where_nobody_listens_is_unreachable(broker: ScriptedBroker) -> None:
    """The reason is the system's message without its error number."""
    await broker.stop()

    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection(broker.address, OPTIONS, Listener())

    assert "Connection refused" == caught.value.reason


async def test_a_host_that_does_not_answer_is_unreachable() -> None:
    """A full backlog drops the SYN, so the attempt ends at its time limit."""
    with socket.socket() as deaf, contextlib.ExitStack() as callers:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())

        port = deaf.getsockname()[1]
        with pytest.raises(BrokerUnreachable) as caught:
            await open_connection(f"127.0.0.1:{port}", SHORT_TIMEOUTS, Listener())

    assert "no TCP connection within 400 ms" == caught.value.reason


async def test_a_name_that_is_not_known_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the resolver's message."""

    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)

    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection("nowhere:4150", OPTIONS, Listener())

    assert "Name or service not known" == caught.value.reason


@pytest.mark.parametrize("address", ["", "nsqd", "nsqd:", ":4150", "nsqd:99999", "a..b:4150"])
async def test_what_is_no_address_is_unreachable(address: str) -> None:
    """One kind of error is raised, by our check or by the resolver."""
    with pytest.raises(BrokerUnreachable) as caught:
        await open_connection(address, OPTIONS, Listener())

    assert address == caught.value.address


async def test_a_cancelled_opening_leaves_nothing_open(broker: ScriptedBroker) -> None:
    """Cancellation closes the TCP connection."""
    broker.on(Identify, no_response)
    opening = asyncio.ensure_future(open_connection(broker.address, OPTIONS, Listener()))
    peer = await broker.peer()
    await peer.next(Identify)

    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening
    await peer.gone()


# Asking and being answered


async def test_replies_are_paired_in_order(peer: Peer, connection: BrokerConnection) -> None:
    """Each command gets its own reply, even if several arrive in one read."""
    replies = publish_each(connection, b"1", b"2")
    peer._broker.on(Publish, no_response)
    replies_behind = publish_each(connection, b"3", b"4")
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
    """As in nsqd, commands after a refused one get no reply."""
    peer._broker.on(Publish, no_response)
    replies = publish_each(connection, b"1", b"2")
    await peer.next(Publish)

    peer.send(ErrorFrame("E_BAD_MESSAGE", "no"))

    end = await listener.ends.get()
    assert [ErrorFrame("E_BAD_MESSAGE", "no"), end] == replies
    assert "refused a command: E_BAD_MESSAGE no" == end.reason
    await peer.gone()


async def test_a_request_that_is_refused_raises(
    broker: ScriptedBroker, connection: BrokerConnection
) -> None:
    """The error has the broker's code and description."""
    broker.on(Subscribe, refuse("E_BAD_CHANNEL", "no"))

    with pytest.raises(BrokerRefused) as caught:
        await connection.subscribe("t", "c")

    assert ("E_BAD_CHANNEL", "no") == (caught.value.code, caught.value.description)


@pytest.mark.parametrize(
    "rule, reason",
    [
        (close, "nsqd closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (respond_raw(b"garbage!garbage!"), "does not speak NSQ V2"),
        (respond_raw(b"\0\0\0"), "no answer to SUB within 400 ms"),
    ],
    ids=["closed", "reset", "garbage", "silence"],
)
async def test_a_request_without_an_answer_raises(
    broker: ScriptedBroker, listener: Listener, rule: Rule, reason: str
) -> None:
    """The connection has ended, and the listener gets the reason."""
    broker.on(Subscribe, rule)
    connection = await open_connection(broker.address, SHORT_TIMEOUTS, listener)

    with pytest.raises(BrokerUnreachable) as caught:
        await connection.subscribe("t", "c")

    assert caught.value.reason.startswith(reason)
    assert (await listener.ends.get()).reason == caught.value.reason
    await (await broker.peer()).gone()


async def test_a_response_that_nothing_asked_for_ends_the_connection(
    peer: Peer, listener: Listener
) -> None:
    """Later replies could not be paired with commands any more."""
    peer.send(Response(b"hello"))

    reason = (await listener.ends.get()).reason

    assert "sent a response without a command: b'hello'" == reason


async def test_an_ended_connection_takes_no_questions(
    peer: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """A request raises the reason of the end; a command without a reply is not written."""
    peer.close()
    await listener.ends.get()

    with pytest.raises(BrokerUnreachable, match="nsqd closed the connection"):
        connection.send_request(Publish("t", b"1"), lambda _reply: None)
    connection.send(Nop())
    connection.finish([A])
    connection.requeue([A], delay_ms=0)
    connection.touch([A])
    connection.pause_reading()
    connection.resume_reading()
    connection.abort()
    await connection.close()

    assert [] == peer.received[1:]


async def test_an_aborted_connection_takes_no_questions(connection: BrokerConnection) -> None:
    """Also before the event loop has closed its socket."""
    connection.abort()

    with pytest.raises(BrokerUnreachable, match="closed from this side"):
        connection.send_request(Publish("t", b"1"), lambda _reply: None)


async def test_what_v2_forbids_is_a_fault_of_ours(connection: BrokerConnection) -> None:
    """The error is raised before any byte is written."""
    with pytest.raises(LocalProtocolError, match="RDY is not allowed in state INIT"):
        connection.ready(1)


# Messages


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_messages_arrive_as_lists(subscribed: Peer, listener: Listener, step: int) -> None:
    """Messages keep their order, however the stream is split into reads."""
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
    """RDY, FIN, REQ and TOUCH are written in the order of the calls."""
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
    """E_FIN_FAILED is no reply to a pending command, because FIN has no reply."""
    refusal = ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed ID not in flight")
    closing = asyncio.ensure_future(connection.request(StartClose(), timeout_ms=5_000))

    subscribed.send(refusal)

    assert refusal == await listener.refusals.get()
    assert Response(b"CLOSE_WAIT") == await closing


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (lambda peer: peer.write(MESSAGE_FRAME), "sent messages without a subscription"),
        (lambda peer: peer.send(ErrorFrame("E_FIN_FAILED", "x")), "refused a command: E_FIN_FAIL"),
    ],
    ids=["a message", "a refused FIN"],
)
async def test_a_connection_for_publishing_knows_no_messages(
    peer: Peer, listener: Listener, wrong: Callable[[Peer], None], reason: str
) -> None:
    """A message or a refused FIN without a subscription aborts the connection."""
    wrong(peer)

    assert reason == (await listener.ends.get()).reason[: len(reason)]
    assert 0 == listener.heard


async def test_nothing_is_read_behind_the_end(subscribed: Peer, listener: Listener) -> None:
    """A refusal ends the connection; the rest of the same read is ignored."""
    subscribed.send(messages(1), ErrorFrame("E_INVALID", "no"), messages(2), messages(3))

    await listener.ends.get()

    assert (1, messages(1)) == (listener.messages.qsize(), listener.messages.get_nowait())
