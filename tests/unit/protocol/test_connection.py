"""Both roles of a connection: against each other, in any pieces, and against nonsense."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import LocalProtocolError
from gateway.protocol.commands import (
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    MultiPublishStart,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import (
    Codec,
    Event,
    HeartbeatReceived,
    Identified,
    MessagesReceived,
    Role,
    V2Connection,
    ViolationReceived,
)
from gateway.protocol.frames import (
    CLOSE_WAIT,
    HEARTBEAT_FRAME,
    OK,
    ErrorFrame,
    Message,
    Response,
    encode_messages,
)
from gateway.protocol.identify import IdentifyResponse
from gateway.protocol.states import State
from gateway.protocol.wire import MAGIC, Limits
from tests.support.brokers.connected_pair import (
    ConnectedPair,
    Cut,
    byte_by_byte,
    cut_at,
    feed,
    in_steps,
    opened_broker,
    plain,
    violation,
    whole,
)
from tests.support.brokers.nsqd_errors import ID, NSQD_ERRORS

BOTH_CUTS = pytest.mark.parametrize("cut", [whole, byte_by_byte])
MESSAGE = Message(1_700_000_000_000_000_000, 1, ID, b"body\n\x00")

# Strategies

names = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)
ids = st.from_regex(rb"[0-9a-f]{16}", fullmatch=True)
bodies = st.binary(min_size=1, max_size=100)
in_any_state = st.one_of(
    st.just(Nop()),
    st.builds(Publish, names, bodies),
    st.builds(DeferredPublish, names, st.integers(0, 3_600_000), bodies),
    st.builds(MultiPublish, names, st.lists(bodies, min_size=1, max_size=5)),
)
before_sub = st.one_of(in_any_state, st.builds(Identify, bodies), st.builds(Auth, bodies))
behind_cls = st.one_of(
    in_any_state,
    st.builds(Finish, ids),
    st.builds(Touch, ids),
    st.builds(Requeue, ids, st.integers(0, 3_600_000)),
)
behind_sub = st.one_of(behind_cls, st.builds(Ready, st.integers(0, 2_500)))
conversations: st.SearchStrategy[list[Command]] = st.builds(
    lambda opening, sub, middle, end: [*opening, sub, *middle, StartClose(), *end],
    st.lists(before_sub, max_size=4),
    st.builds(Subscribe, names, names),
    st.lists(behind_sub, max_size=6),
    st.lists(behind_cls, max_size=3),
)
messages = st.builds(
    Message, st.integers(0, 2**63 - 1), st.integers(0, 65_535), ids, st.binary(max_size=100)
)
broker_frames: st.SearchStrategy[list[Response | ErrorFrame | Message]] = st.lists(
    st.one_of(
        messages,
        messages,
        st.sampled_from([OK, CLOSE_WAIT, HEARTBEAT_FRAME]),
        st.builds(Response, st.binary(max_size=50)),
        st.builds(ErrorFrame, st.from_regex(r"E_[A-Z_]{1,9}", fullmatch=True), st.text("ab 1")),
    ),
    max_size=12,
)


def positions(stream: bytes) -> st.SearchStrategy[list[int]]:
    """Return where *stream* could be cut."""
    return st.lists(st.integers(0, len(stream)), max_size=20)


def subscribed(cut: Cut = whole, limits: Limits | None = None) -> ConnectedPair:
    pair = ConnectedPair(cut, limits)
    pair.ask(Subscribe("t", "c"))
    return pair


# Both roles against each other


@BOTH_CUTS
@pytest.mark.parametrize(
    "command",
    [
        Identify(b'{"client_id":"c"}'),
        Auth(b"a\nsecret"),
        Subscribe("t", "c#ephemeral"),
        Publish("t", b"\x00\n\r\xff"),
        DeferredPublish("t", 3_600_000, b"  V2"),
        MultiPublish("t", [b"a", b"NOP\n", b"\x00" * 1_000]),
        Nop(),
    ],
    ids=lambda command: type(command).__name__,
)
def test_broker_receives_commands_of_a_new_client(command: Command, cut: Cut) -> None:
    """A command arrives as it was sent, however its bytes are cut."""
    pair = ConnectedPair(cut)

    assert [command] == pair.ask(command)


@BOTH_CUTS
@pytest.mark.parametrize(
    "command",
    [Ready(0), Ready(2_500), Finish(ID), Requeue(ID, 0), Touch(ID), StartClose(), Nop()],
    ids=lambda command: type(command).__name__,
)
def test_broker_receives_commands_of_a_subscriber(command: Command, cut: Cut) -> None:
    """A command that needs SUB arrives as it was sent, however its bytes are cut."""
    pair = subscribed(cut)

    assert [command] == pair.ask(command)


@BOTH_CUTS
def test_commands_in_one_write_arrive_in_order(cut: Cut) -> None:
    """Many commands may be in one write, IDENTIFY among them."""
    pair = ConnectedPair(cut)
    commands: list[Command] = [
        Identify(b"{}"),
        Identify(b"{}"),
        Auth(b"s"),
        Publish("t", b"a"),
        MultiPublish("t", [b"a", b"b"]),
        Subscribe("t", "c"),
        Ready(5),
        Finish(ID),
        StartClose(),
        Finish(ID),
        Publish("t", b"a"),
    ]

    assert commands == pair.ask(*commands)


@BOTH_CUTS
def test_client_receives_responses_errors_and_heartbeats(cut: Cut) -> None:
    """Answers, errors and heartbeats arrive in order, however their bytes are cut."""
    pair = ConnectedPair(cut)
    error = ErrorFrame("E_FIN_FAILED", "FIN 0123456789abcdef failed ID not in flight")

    received = pair.answer(OK, HEARTBEAT_FRAME, error, Response(b""), CLOSE_WAIT)

    assert [OK, HeartbeatReceived(), error, Response(b""), CLOSE_WAIT] == received


@BOTH_CUTS
def test_client_gets_messages_as_they_were_sent(cut: Cut) -> None:
    """Messages arrive in order, an empty body and the highest numbers included."""
    pair = subscribed(cut)
    sent = [MESSAGE, Message(2**63 - 1, 65_535, b"\xff" * 16, b""), MESSAGE]

    assert sent == pair.deliver(sent)


def test_consecutive_messages_of_one_read_are_one_event() -> None:
    """Messages that came in a row stand in one event; another frame ends the row."""
    client = V2Connection(Role.CLIENT)
    two, one = encode_messages([MESSAGE, MESSAGE]), encode_messages([MESSAGE])

    events = client.receive_data(two + OK.encode() + one)

    assert [MessagesReceived([MESSAGE, MESSAGE]), OK, MessagesReceived([MESSAGE])] == events


def test_many_finishes_are_received_one_by_one() -> None:
    """`send_finishes` sends many commands at once."""
    pair = subscribed()
    ids_ = [b"%016d" % number for number in range(100)]

    received = pair.to_broker(pair.client.send_finishes(ids_))

    assert [Finish(id_) for id_ in ids_] == received


def test_states_of_both_sides_go_together() -> None:
    """SUB and CLS move both sides."""
    pair = ConnectedPair()

    states = [(pair.client.state, pair.broker.state)]
    for command in (Identify(b"{}"), Subscribe("t", "c"), StartClose()):
        pair.ask(command)
        states.append((pair.client.state, pair.broker.state))

    both = [(state, state) for state in State]
    assert [both[0], *both] == states


@BOTH_CUTS
def test_rdy_after_cls_is_ignored(cut: Cut) -> None:
    """A client may say RDY while it closes; the broker hears nothing of it."""
    pair = subscribed(cut)
    pair.ask(StartClose())

    assert [Nop(), Finish(ID)] == pair.ask(Ready(5), Finish(ID))


def test_heartbeat_is_answered_with_nop() -> None:
    """A heartbeat is an event of the client, and the NOP after it one of the broker."""
    pair = ConnectedPair()

    asked = pair.answer(HEARTBEAT_FRAME)
    answered = pair.ask(Nop())

    assert ([HeartbeatReceived()], [Nop()]) == (asked, answered)


def test_heartbeat_is_not_the_answer_to_identify() -> None:
    pair = ConnectedPair()
    pair.ask(Identify(b"{}"))

    assert [HeartbeatReceived(), Identified(IdentifyResponse())] == pair.answer(HEARTBEAT_FRAME, OK)


# However the bytes are cut


@given(st.data(), conversations)
def test_commands_do_not_depend_on_how_bytes_are_cut(
    data: st.DataObject, commands: list[Command]
) -> None:
    """A conversation is heard the same whole, byte by byte and in any pieces."""
    client = V2Connection(Role.CLIENT)
    stream = client.send_magic() + b"".join(map(client.send, commands))
    pieces = cut_at(stream, data.draw(positions(stream)))

    received = [
        plain(feed(V2Connection(Role.BROKER), cut))
        for cut in (pieces, whole(stream), byte_by_byte(stream))
    ]

    assert [commands] * 3 == received


@given(st.data(), broker_frames)
def test_frames_do_not_depend_on_how_bytes_are_cut(
    data: st.DataObject, frames: list[Response | ErrorFrame | Message]
) -> None:
    """A broker's frames are the same events whole, byte by byte and in any pieces."""
    stream = b"".join(
        encode_messages([frame]) if isinstance(frame, Message) else frame.encode()
        for frame in frames
    )
    pieces = cut_at(stream, data.draw(positions(stream)))
    expected = [HeartbeatReceived() if frame == HEARTBEAT_FRAME else frame for frame in frames]

    received = [
        plain(feed(V2Connection(Role.CLIENT), cut))
        for cut in (pieces, whole(stream), byte_by_byte(stream))
    ]

    assert [expected] * 3 == received


def test_mpub_may_be_cut_anywhere() -> None:
    """Two pieces of an MPUB are one, wherever it is cut."""
    command = MultiPublish("t", [b"\x00" * 4, b"\n", b"abc"])
    stream = command.encode() + Nop().encode()

    for position in range(len(stream) + 1):
        assert [command, Nop()] == feed(opened_broker(), cut_at(stream, [position])), position


@BOTH_CUTS
def test_errors_do_not_depend_on_how_bytes_are_cut(cut: Cut) -> None:
    """Each invalid command is one violation, after valid ones and before all that follows."""
    for error in NSQD_ERRORS:
        broker = opened_broker()
        broker.state = error.state

        events = feed(broker, cut(error.data if error.at_eof else error.data + b"NOP\n"))
        events += broker.receive_eof()

        assert [error.frame] == plain(events), error


@BOTH_CUTS
def test_an_announced_mpub_has_the_same_errors(cut: Cut) -> None:
    """Its line is an event of its own, before the violation, also if nothing follows it."""
    for error in [row for row in NSQD_ERRORS if row.data.startswith(b"MPUB t\n")]:
        broker = V2Connection(Role.BROKER, announces_mpub=True)
        broker.receive_data(MAGIC)

        events = feed(broker, cut(error.data if error.at_eof else error.data + b"NOP\n"))
        events += broker.receive_eof()

        announced = [event for event in events if isinstance(event, MultiPublishStart)]
        others = [event for event in events if not isinstance(event, MultiPublishStart)]
        assert ([MultiPublishStart("t")], [error.frame]) == (announced, plain(others)), error


# The first four bytes


@BOTH_CUTS
def test_wrong_magic_ends_the_connection(cut: Cut) -> None:
    """Any other four bytes are E_BAD_PROTOCOL, whatever follows."""
    magics = (b"  V1", b"  v2", b" V2 ", b"V2  ", b"\x00" * 4, b"GET ", b"NOP\n", b"\n" * 4)
    for data, rest in itertools.product(magics, (b"", b"  V2NOP\n")):
        events = plain(feed(V2Connection(Role.BROKER), cut(data + rest)))

        assert [b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL"] == events, (data, rest)


def test_magic_alone_is_no_event() -> None:
    assert [] == V2Connection(Role.BROKER).receive_data(b"  V2")


def test_half_a_magic_waits() -> None:
    """Three bytes are no mistake yet, even wrong ones."""
    assert [] == V2Connection(Role.BROKER).receive_data(b"\n\n\n")


def test_empty_line_after_the_magic_is_refused_at_once() -> None:
    """Behind the magic one byte is enough again."""
    broker = opened_broker()

    assert [b"\x00\x00\x00\x1e\x00\x00\x00\x01E_INVALID invalid command "] == plain(
        broker.receive_data(b"\n")
    )


# Lines


@BOTH_CUTS
def test_longest_line_is_received(cut: Cut) -> None:
    """16 384 bytes, the newline included, are a line."""
    assert [Nop()] == feed(opened_broker(), cut(b"NOP " + b"x" * 16_379 + b"\n"))


@BOTH_CUTS
def test_longer_line_ends_the_connection_without_a_frame(cut: Cut) -> None:
    """With 16 384 bytes and no newline among them the connection is over, and says nothing."""
    received = plain(feed(opened_broker(), cut(b"NOP " + b"x" * 16_380 + b"\nNOP\n")))

    assert [b""] == received


# The end


def test_nothing_is_read_after_a_violation() -> None:
    """Valid commands come before the violation, and nothing after it."""
    broker = opened_broker()

    first = broker.receive_data(b"NOP\nNOPE\nNOP\n")
    second = broker.receive_data(b"NOP\n")

    assert ([Nop(), ViolationReceived], []) == ([first[0], type(first[1])], second)
    assert (2, []) == (len(first), broker.receive_eof())


def test_end_between_commands_is_quiet() -> None:
    """A client may go at any time."""
    broker = opened_broker()
    broker.receive_data(b"PUB t\n\x00\x00\x00\x01")
    broker.receive_data(b"x")

    assert [] == broker.receive_eof()


@pytest.mark.parametrize("data", [b"", b"  V", b"  V2", b"  V2NO", b"  V2NOP\nPUB t"])
def test_end_of_half_a_line_is_quiet(data: bytes) -> None:
    broker = V2Connection(Role.BROKER)
    broker.receive_data(data)

    assert [] == broker.receive_eof()


def test_end_of_half_a_frame_is_quiet() -> None:
    """The client's side learns from its socket that the broker has gone."""
    client = V2Connection(Role.CLIENT)
    client.receive_data(OK.encode()[:-1])

    assert [] == client.receive_eof()


def test_nothing_is_read_after_eof() -> None:
    """After the end of the socket, or its deadline, no command counts."""
    broker = opened_broker()
    broker.receive_eof()

    assert [] == broker.receive_data(b"NOP\n")


# A broker's mistakes


@pytest.mark.parametrize(
    "data,description",
    [
        (b"\x00\x00\x00\x06\x00\x00\x00\x03OK", "unknown frame type 3; allowed: 0, 1, 2"),
        (b"\x00\x00\x00\x06\xff\xff\xff\xffOK", "unknown frame type 4294967295; allowed: 0, 1, 2"),
        (b"HTTP/1.1 400 Bad", "unknown frame type 791752241; allowed: 0, 1, 2"),
        (bytes(8), "frame of 0 bytes, allowed: 4 to 268435456 bytes"),
        (b"\x00\x01\x00\x01\x00\x00\x00\x01", "frame of 65537 bytes, allowed: 4 to 65536 bytes"),
        (b"\x00\x00\x00\x03" + bytes(4), "frame of 3 bytes, allowed: 4 to 268435456 bytes"),
        (
            b"\x10\x00\x00\x01\x00\x00\x00\x00",
            "frame of 268435457 bytes, allowed: 4 to 268435456 bytes",
        ),
        (
            b"\x00\x00\x00\x1d\x00\x00\x00\x02" + bytes(25),
            "frame of 29 bytes, allowed: 30 to 268435456 bytes",
        ),
        (
            b"\x00\x00\x00\x1d\x00\x00\x00\x02" + bytes(100),
            "frame of 29 bytes, allowed: 30 to 268435456 bytes",
        ),
        (
            b"\xff\xff\xff\xff\x00\x00\x00\x02" + bytes(100),
            "frame of 4294967295 bytes, allowed: 30 to 268435456 bytes",
        ),
    ],
)
@BOTH_CUTS
def test_impossible_frame_is_a_violation(data: bytes, description: str, cut: Cut) -> None:
    """A type or a size that no frame has ends the connection, after what was right."""
    received = plain(feed(V2Connection(Role.CLIENT), cut(OK.encode() + data)))

    assert [OK, ErrorFrame("E_INVALID", description).encode()] == received


@pytest.mark.parametrize(
    "head", [b"\x10\x00\x00\x00\x00\x00\x00\x00", b"\x10\x00\x00\x00\x00\x00\x00\x02"]
)
def test_biggest_frame_is_waited_for(head: bytes) -> None:
    """2^28 bytes may come."""
    assert [] == V2Connection(Role.CLIENT).receive_data(head)


@BOTH_CUTS
def test_invalid_identify_response_is_a_violation(cut: Cut) -> None:
    pair = ConnectedPair(cut)
    pair.ask(Identify(b"{}"))

    received = pair.answer(Response(b"what?"), OK)

    assert [b"E_INVALID the response to IDENTIFY is invalid"] == [
        bytes(event)[8:].partition(b":")[0] for event in received if isinstance(event, bytes)
    ]
    assert 1 == len(received)


# Our own mistakes


def test_client_sends_no_command_forbidden_in_its_state() -> None:
    """FIN before SUB is our own mistake, and changes nothing."""
    client = V2Connection(Role.CLIENT)

    with pytest.raises(LocalProtocolError, match=r"^FIN is not allowed in state INIT$"):
        client.send(Finish(ID))

    assert State.INIT is client.state


def test_finishes_need_a_subscription() -> None:
    """Many FINs are checked as one is."""
    client = V2Connection(Role.CLIENT)

    with pytest.raises(LocalProtocolError, match=r"^FIN is not allowed in state INIT$"):
        client.send_finishes([ID])


def test_messages_need_a_subscription() -> None:
    """A broker sends no message to a client that did not ask for any."""
    broker = opened_broker()

    with pytest.raises(
        LocalProtocolError, match=r"^messages can be sent to a subscribed connection only$"
    ):
        broker.send_messages([MESSAGE])


def test_upgrade_needs_a_pause() -> None:
    client = V2Connection(Role.CLIENT)

    with pytest.raises(LocalProtocolError, match="paused after IDENTIFY"):
        client.upgrade(None)


def test_second_codec_is_a_local_error() -> None:
    broker = upgraded_broker(InvertingCodec())
    broker.receive_data(InvertingCodec().encode(IDENTIFY))

    with pytest.raises(LocalProtocolError, match="has no codec yet"):
        broker.upgrade(InvertingCodec())


# Upgrades

IDENTIFY = Identify(b"{}").encode()


class InvertingCodec:
    """A codec that inverts all bits."""

    def __init__(self, piece_bytes: int = 1_000) -> None:
        self.piece_bytes = piece_bytes
        self.pieces_taken = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Invert every bit, and count the pieces."""
        for piece in in_steps(self.encode(data), self.piece_bytes):
            self.pieces_taken += 1
            yield piece

    def encode(self, data: bytes) -> bytes:
        """Invert every bit."""
        return bytes(byte ^ 0xFF for byte in data)


deflate = partial(DeflateCodec, 6)
CodecFactory = Callable[[], Codec]

CODECS = pytest.mark.parametrize(
    "layer", [InvertingCodec, SnappyCodec, deflate], ids=["mirror", "snappy", "deflate"]
)
SNAPPY = IdentifyResponse(snappy=True)
TLS = IdentifyResponse(tls_v1=True)
TLS_AND_SNAPPY = IdentifyResponse(tls_v1=True, snappy=True)


def upgraded_broker(layer: Codec) -> V2Connection:
    broker = opened_broker()
    broker.receive_data(IDENTIFY)
    broker.upgrade(layer)
    return broker


def identified(pair: ConnectedPair) -> ConnectedPair:
    """Send IDENTIFY from *pair*'s client into nothing."""
    pair.client.send(Identify(b"{}"))
    return pair


@CODECS
@BOTH_CUTS
def test_bytes_after_the_response_are_read_through_the_codec(layer: CodecFactory, cut: Cut) -> None:
    """Bytes of the next layer that arrive with the JSON response wait for their codec."""
    pair = identified(ConnectedPair(cut))
    stream = Response(SNAPPY.to_json()).encode() + layer().encode(OK.encode() + OK.encode())

    before = pair.to_client(stream)
    behind = pair.client.upgrade(layer())

    assert ([Identified(SNAPPY)], [OK, OK]) == (before, behind)


@CODECS
@BOTH_CUTS
def test_both_sides_talk_through_their_codecs(layer: CodecFactory, cut: Cut) -> None:
    """After the upgrade everything goes through the layer, in both directions."""
    pair = ConnectedPair(cut)
    pair.broker.receive_data(pair.client.send(Identify(b"{}")))
    pair.answer(Response(SNAPPY.to_json()))
    pair.broker.upgrade(layer())
    pair.client.upgrade(layer())

    answered = pair.answer(OK)
    asked = pair.ask(Publish("t", b"a" * 1_000), Subscribe("t", "c"), Ready(5))
    delivered = pair.deliver([MESSAGE, MESSAGE])
    finished = pair.to_broker(pair.client.send_finishes([ID, ID]))

    assert [OK] == answered
    assert [Publish("t", b"a" * 1_000), Subscribe("t", "c"), Ready(5)] == asked
    assert [MESSAGE, MESSAGE] == delivered
    assert [Finish(ID), Finish(ID)] == finished


def test_codec_encodes_what_is_sent() -> None:
    broker = upgraded_broker(InvertingCodec())

    assert InvertingCodec().encode(OK.encode()) == broker.send(OK)


@pytest.mark.parametrize("answer", [Response(IdentifyResponse().to_json()), OK], ids=["json", "ok"])
@BOTH_CUTS
def test_answer_without_upgrade_does_not_pause(answer: Response, cut: Cut) -> None:
    pair = identified(ConnectedPair(cut))

    assert [Identified(IdentifyResponse()), OK] == pair.answer(answer, OK)


def test_broker_pauses_after_identify() -> None:
    """Only the handler knows the answer, so the rest of the read waits for it."""
    broker = opened_broker()

    before = broker.receive_data(IDENTIFY + b"NOP\nPUB t\n")
    later = broker.receive_data(b"\x00\x00\x00\x01x")
    behind = broker.upgrade(None)

    assert ([Identify(b"{}")], [], [Nop(), Publish("t", b"x")]) == (before, later, behind)


def test_a_pause_without_further_bytes_ends_quietly() -> None:
    """An upgrade when nothing has come says nothing, and the next read is heard."""
    broker = opened_broker()
    broker.receive_data(IDENTIFY)

    assert ([], [Nop()]) == (broker.upgrade(None), broker.receive_data(b"NOP\n"))


def test_rest_of_a_paused_read_is_joined_with_later_bytes() -> None:
    """Half a command of before and half of later are one."""
    broker = opened_broker()
    broker.receive_data(IDENTIFY + b"NO")
    broker.receive_data(b"P\n")

    assert [Nop()] == broker.upgrade(None)


def test_tls_takes_the_unread_bytes() -> None:
    """Bytes after the pause belong to the TLS layer, which reads them once."""
    pair = identified(ConnectedPair())
    pair.to_client(Response(TLS.to_json()).encode() + b"\x16\x03")
    pair.to_client(b"\x03\x00")

    taken = [pair.client.take_unread(), pair.client.take_unread()]

    assert [b"\x16\x03\x03\x00", b""] == taken


def test_decrypted_bytes_are_read_without_a_codec() -> None:
    """TLS lies below: what it decrypts is V2 again."""
    pair = identified(ConnectedPair())
    pair.to_client(Response(TLS.to_json()).encode() + b"\x16\x03")
    pair.client.take_unread()

    upgraded = pair.client.upgrade(None)

    assert ([], [OK, OK]) == (upgraded, pair.answer(OK, OK))


def test_compression_after_tls_pauses_again() -> None:
    """The OK of TLS is plain, and what comes with it is the next layer's already."""
    pair = identified(ConnectedPair())
    pair.to_client(Response(TLS_AND_SNAPPY.to_json()).encode())
    pair.client.upgrade(None)

    tls = pair.to_client(OK.encode() + InvertingCodec().encode(OK.encode()))
    snappy = pair.client.upgrade(InvertingCodec())
    behind = pair.to_client(InvertingCodec().encode(OK.encode() * 2))

    assert ([OK], [OK], [OK, OK]) == (tls, snappy, behind)


def test_second_identify_keeps_the_codec() -> None:
    """An IDENTIFY that upgrades nothing leaves the layer where it is."""
    broker = upgraded_broker(InvertingCodec())
    before = broker.receive_data(InvertingCodec().encode(IDENTIFY + b"NO"))
    broker.receive_data(InvertingCodec().encode(b"P\n"))

    behind = broker.upgrade(None)

    assert ([Identify(b"{}")], [Nop()]) == (before, behind)


@pytest.mark.parametrize("layer", [SnappyCodec, deflate], ids=["snappy", "deflate"])
@BOTH_CUTS
def test_bytes_that_are_not_of_the_layer_are_a_violation(layer: CodecFactory, cut: Cut) -> None:
    """Invalid compressed data is a violation, after all valid data."""
    broker = upgraded_broker(layer())
    client = layer()

    events = feed(broker, [client.encode(b"NOP\n"), *cut(b"\xff" * 4)])

    assert [Nop()] == events[:1]
    (broken,) = events[1:]
    assert isinstance(broken, ViolationReceived)
    assert b"" == violation(broken)
    assert [] == broker.receive_data(client.encode(b"NOP\n"))


def test_pause_of_a_broken_layer_ends_with_the_violation() -> None:
    """Data held during a pause is decoded only after it; then it is a violation."""
    broker = upgraded_broker(SnappyCodec())
    before = broker.receive_data(SnappyCodec().encode(IDENTIFY + b"NOP\n"))
    paused = broker.receive_data(b"\xff" * 4)

    behind = broker.upgrade(None)

    assert ([Identify(b"{}")], [], [Nop()]) == (before, paused, behind[:-1])
    assert [ViolationReceived] == [type(event) for event in behind[1:]]
    assert [] == broker.receive_data(b"NOP\n")


def test_violation_stops_the_decoding() -> None:
    layer = InvertingCodec(piece_bytes=5)
    broker = upgraded_broker(layer)

    events = broker.receive_data(layer.encode(b"NOP \nNOPE\n" + b"NOP \n" * 1_000))

    assert [Nop, ViolationReceived] == [type(event) for event in events]
    assert 2 == layer.pieces_taken


def test_pause_stops_the_decoding() -> None:
    """Data after IDENTIFY is decoded when the pause ends, in order."""
    layer = InvertingCodec(piece_bytes=1)
    broker = upgraded_broker(layer)

    before = broker.receive_data(layer.encode(IDENTIFY + b"RD"))
    decoded = layer.pieces_taken
    paused = [broker.receive_data(layer.encode(part)) for part in (b"Y 1", b"\nNOP\n")]
    broker.state = State.SUBSCRIBED
    behind = broker.upgrade(None)

    assert ([Identify(b"{}")], len(IDENTIFY)) == (before, decoded)
    assert ([[], []], [Ready(1), Nop()]) == (paused, behind)


def test_after_eof_during_a_pause_the_rest_stays_undecoded() -> None:
    """After the end of the socket nothing is read on."""
    layer = InvertingCodec(piece_bytes=len(IDENTIFY))
    broker = upgraded_broker(layer)
    broker.receive_data(layer.encode(IDENTIFY + b"NOP\n"))
    broker.receive_eof()

    assert ([], 1) == (broker.upgrade(None), layer.pieces_taken)


@CODECS
def test_many_identifies_are_read_through_a_codec(layer: CodecFactory) -> None:
    """Thousands of pauses in one read are no deeper than one."""
    broker = upgraded_broker(layer())

    received = feed(broker, [layer().encode(IDENTIFY * 5_000 + b"NOP\n")])

    assert [Identify(b"{}")] * 5_000 + [Nop()] == received


@given(st.data(), conversations, st.sampled_from([InvertingCodec, SnappyCodec, deflate]))
def test_compressed_commands_do_not_depend_on_how_bytes_are_cut(
    data: st.DataObject, commands: list[Command], layer: CodecFactory
) -> None:
    """A compressed conversation is heard the same whole, byte by byte and in any pieces."""
    client, filter_ = V2Connection(Role.CLIENT), layer()
    stream = b"".join(filter_.encode(client.send(command)) for command in commands)
    pieces = cut_at(stream, data.draw(positions(stream)))

    received = [
        plain(feed(upgraded_broker(layer()), cut))
        for cut in (pieces, whole(stream), byte_by_byte(stream))
    ]

    assert [commands] * 3 == received


# Nonsense

_WORDS = [
    *(
        f"{verb}{end}".encode()
        for verb in ("NOP", "CLS", "IDENTIFY", "AUTH")
        for end in ("\n", " ")
    ),
    *(f"{verb} t".encode() for verb in ("SUB", "PUB", "MPUB", "DPUB")),
    *(f"{verb} ".encode() + ID for verb in ("FIN", "REQ", "TOUCH")),
    b"RDY 1\n",
    b" c\n",
    b" 0\n",
    b"\n",
    b"\r\n",
    *(bytes([0, 0, 0, number]) for number in range(4)),
    b"\xff\xff\xff\xff",
    b"x",
    b"{}",
]
_FRAME_PARTS = [
    OK.encode(),
    HEARTBEAT_FRAME.encode(),
    ErrorFrame("E_X", "y").encode(),
    encode_messages([MESSAGE]),
    Response(b"{}").encode(),
    Response(b'{"snappy":true}').encode(),
    b"\x00\x00\x00\x04",
    b"\x00\x00\x00\x00",
    b"\x00\x00\x00\x02",
    b"\x00\x00\x00\x1e",
]


def nonsense(parts: Sequence[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Return pieces made of *parts* and of any bytes, cut where they meet."""
    return st.lists(st.sampled_from(parts) | st.binary(max_size=40), max_size=30)


def assert_ends_well(connection: V2Connection, events: list[Event]) -> None:
    """Check that a violation is the last event, and nothing comes after it."""
    violations = [
        number for number, event in enumerate(events, 1) if type(event) is ViolationReceived
    ]
    assert violations in ([], [len(events)])
    if violations:
        assert ([], []) == (connection.receive_data(b"NOP\n"), connection.receive_eof())


@given(nonsense(_WORDS), st.sampled_from(State), st.binary(max_size=8))
def test_nothing_that_a_client_sends_is_an_exception(
    pieces: list[bytes], state: State, magic: bytes
) -> None:
    """Any bytes are events, and a violation is the last of them."""
    broker = V2Connection(Role.BROKER)
    broker.receive_data(magic if state is State.INIT and magic else b"  V2")
    broker.state = state

    assert_ends_well(broker, feed(broker, pieces))


@given(nonsense(_FRAME_PARTS), st.booleans())
def test_nothing_that_a_broker_sends_is_an_exception(
    pieces: list[bytes],
    expects_answer: bool,  # noqa: FBT001
) -> None:
    """Any bytes are events, and a violation is the last of them."""
    client = V2Connection(Role.CLIENT)
    if expects_answer:
        client.send(Identify(b"{}"))

    assert_ends_well(client, feed(client, pieces))


@given(nonsense(_WORDS), st.lists(st.integers(0, 600), max_size=20))
def test_nonsense_does_not_depend_on_how_bytes_are_cut(pieces: list[bytes], at: list[int]) -> None:
    """Wrong bytes are heard the same whole, byte by byte and in any pieces."""
    stream = b"".join(pieces)
    any_cut = cut_at(stream, [position for position in at if position <= len(stream)])

    received = [
        plain(feed(opened_broker(), cut)) for cut in (whole(stream), byte_by_byte(stream), any_cut)
    ]

    assert [received[0]] * 3 == received
