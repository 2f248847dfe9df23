"""
Random histories of a socket, its client and several nsqd, each beside a small model of it.

The real `Session` and `SessionSocket` run on a clock that only the test moves; `Nsqds` is the
reference for what nsqd does. `NSQ_GATEWAY_FUZZ_S` is for how many seconds new histories are tried.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.protocol.frames import ErrorFrame
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.session.types import (
    Action,
    CloseReason,
    CloseSocket,
    DelayedRequeue,
    FinishDeliveries,
    PauseReading,
    PublishBodies,
    Refusal,
    RequeueCause,
    RequeueDeliveries,
    ResubscribeWithSecret,
    ResumeReading,
    SessionOptions,
    SetReady,
    TouchDeliveries,
)
from gateway.session.window import MARGIN_S
from gateway.web.errors import CloseCode
from gateway.web.subscribe.session_socket import no_event
from tests.support.brokers.channel_model import (
    MAX_MSG_TIMEOUT_S,
    Channel,
    Connection,
    Nsqds,
    Sending,
    State,
)
from tests.support.fuzz import fuzz_rounds
from tests.support.websocket.model_socket import ModelLoop, ModelSocket
from tests.support.websocket.session_messages import Json

MAX_ATTEMPTS = 5
LARGEST = 7
"""The largest window that a client may ask for."""
READ_S = 0.1
"""What nsqd writes is read within this, unless the gateway has paused reading."""
BIG_TURN = 600
"""Commands of one frame; more than a turn takes."""

TIMEOUTS = st.sampled_from([2.0, 5.0, 60.0])
SIZES = st.lists(st.integers(20, 900), min_size=1, max_size=6)
VERBS = st.sampled_from(["FIN", "FIN", "FIN", "REQ", "TOUCH", "TOUCH"])
GAPS = st.one_of(st.floats(0.0, 0.5), st.floats(0.0, 8.0), st.floats(0.0, 40.0))
OTHERS = st.sampled_from(
    [
        {"cmd": "RDY", "count": 0},
        {"cmd": "RDY", "count": 1},
        {"cmd": "RDY", "count": 3},
        {"cmd": "RDY", "count": LARGEST},
        {"cmd": "RDY", "count": -1},
        {"cmd": "NOP"},
        {"cmd": "NOP", "ref": None},
        {"cmd": "AUTH", "secret": "s"},
        {"cmd": "PUB", "topic": "t", "body": "b" * 100},
        {"cmd": "DPUB", "topic": "t", "body": "b", "defer_ms": 5},
        {"cmd": "MPUB", "topic": "t", "bodies": ["b", "c"]},
        {"cmd": "PUB", "topic": "no topic", "body": "b"},
        {"cmd": "FIN"},
        {"cmd": "FIN", "ids": []},
        {"cmd": "JUMP"},
    ]
)


class Client:
    """What a client that drops a message when it reads its error knows."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        """Serials of the deliveries that it has not answered, by id."""
        self.got: list[str] = []
        """Every delivery id that it has read."""
        self.serials: dict[str, int] = {}
        self.verbs: dict[str, set[int]] = {"FIN": set(), "REQ": set(), "TOUCH": set()}
        self.asked: set[int] = set()
        self.told: Counter[int] = Counter()
        self.texts: deque[str] = deque()
        """What it has said and the gateway has not read."""

    def say(self, command: Json) -> None:
        """Forget what *command* answers."""
        verb = command.get("cmd", "")
        ids = command.get("ids") or [command.get("id") or ""]
        for delivery_id in ids if verb in self.verbs else ():
            self.verbs[verb].add(self.serials.get(delivery_id, 0))
            if verb != "TOUCH":
                self.held.pop(delivery_id, None)

    def read(self, line: Json) -> None:
        """Take one object."""
        if line["type"] == "message":
            serial = int(line["body"].partition(":")[0])
            assert line["attempts"] <= MAX_ATTEMPTS
            self.held[line["id"]] = self.serials[line["id"]] = serial
            self.got.append(line["id"])
            return
        if type(line["ref"]) is int:
            self.told[line["ref"]] += 1
            assert self.told[line["ref"]] == 1, f"ref {line['ref']} is answered twice"
            assert line["ref"] in self.asked
        gone: list[str] = []
        if line["type"] == "error":
            is_about_deliveries = line["code"].endswith("_FAILED")
            gone = line.get("ids") or [line.get("id")] if is_about_deliveries else []
        elif line["cmd"] == "NOP" and isinstance(line["data"], dict):
            gone = line["data"]["lost_ids"]
        for delivery_id in gone:
            self.held.pop(delivery_id, None)


class SocketModel(RuleBasedStateMachine):
    """A client and several nsqd around one socket."""

    @initialize(
        kind=st.sampled_from(["client"] * 5 + ["auto", "viewer"]),
        start=st.sampled_from(["secret", "open", "auth", "no topic"]),
        size=st.integers(1, 5),
        channels=st.lists(
            st.tuples(TIMEOUTS, st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 0.3])),
            min_size=1,
            max_size=3,
        ),
        backlog=st.integers(0, 8),
        is_quick=st.booleans(),
    )
    def connect(
        self,
        kind: str,
        start: str,
        size: int,
        channels: list[tuple[float, float, float]],
        backlog: int,
        is_quick: bool,  # noqa: FBT001
    ) -> None:
        """Open a socket; what is subscribed to depends on *start*."""
        self.is_quick = is_quick
        """Whether the gateway reads at once what nsqd writes."""
        self.is_attentive = True
        """Whether the client reads at once what the gateway writes."""
        self.options = SessionOptions(
            topic="t",
            channel="c",
            max_in_flight=size,
            max_in_flight_limit=LARGEST,
            is_auto_ack=kind != "client",
            is_viewer=kind == "viewer",
            buffer_bytes=2_000,
            publish_bytes=300,
            max_attempts=MAX_ATTEMPTS,
            command_rate_limit=300,
            broker_outage_s=100.0,
            has_secret=start == "secret",
        )
        self.size = self.largest = size
        self.nsqds, self.client, self.refs = Nsqds(), Client(), count(1)
        self.nsqds.channels = [
            Channel(number, *each) for number, each in enumerate(channels, start=1)
        ]
        for _ in range(backlog):
            self.nsqds.channels[0].publish(20, 0)
        self.loop = ModelLoop()
        self.is_reading, self.is_trying_auth, self.is_checked = True, False, False
        self.is_closing, self.is_joined = False, False
        self.publishes: list[PublishBodies] = []
        self.put_off = 0
        self.socket = ModelSocket(self.loop, self.options, self.carry_out, lambda: None)
        self.session = self.socket.session
        if start == "auth":
            self.socket.tell(self.session.on_secret_missing)
        else:
            self.subscribe(None if start == "no topic" else len(channels) % 2 + 1)
        self.socket.tell(no_event)
        self.settle()

    @property
    def now(self) -> float:
        """The moment."""
        return self.loop.now

    @property
    def is_over(self) -> bool:
        """Whether the socket has ended."""
        return self.socket.is_over

    # The gateway's side

    def subscribe(self, count_: int | None, authorization: AuthResponse | None = None) -> None:
        """Join that many nsqd; None: discovery answered that none has the topic."""
        self.is_joined = True
        if count_ is None:
            self.socket.tell(self.session.on_no_source, 60_000)
            return
        for channel in self.nsqds.channels[:count_]:
            if channel.connection is None:
                self.open(channel, authorization)

    def open(self, channel: Channel, authorization: AuthResponse | None = None) -> None:
        """Connect to an nsqd and let the session know."""
        source = self.nsqds.connect(channel).source
        answer = IdentifyResponse(
            msg_timeout=int(channel.timeout_s * 1000),
            max_msg_timeout=int(MAX_MSG_TIMEOUT_S * 1000),
        )
        self.socket.tell(lambda _: self.session.on_source_opened(source, answer, authorization))
        self.nsqds.pump(self.now)

    def carry_out(self, action: Action) -> None:
        """Carry out what the session wants, as the subscription does, and let nsqd act on it."""
        match action:
            case FinishDeliveries() | RequeueDeliveries() | DelayedRequeue() | TouchDeliveries():
                self.pass_on(action)
            case SetReady(ready):
                assert 0 <= ready <= self.largest
                self.nsqds.ready = ready
            case PublishBodies():
                self.publishes.append(action)
            case PauseReading() | ResumeReading():
                self.is_reading = isinstance(action, ResumeReading)
            case ResubscribeWithSecret():
                assert not self.is_trying_auth
                self.is_trying_auth = True
            case CloseSocket(reason):
                assert not self.is_over
                self.socket.close(CloseCode.INTERNAL, reason.value)
        self.nsqds.pump(self.now)

    def pass_on(
        self, action: FinishDeliveries | RequeueDeliveries | DelayedRequeue | TouchDeliveries
    ) -> None:
        """Give nsqd the answers to deliveries: none that is not the client's."""
        for message_id in action.ids:
            if isinstance(action, TouchDeliveries):
                self.nsqds.touch(action.source, message_id, self.now)
                continue
            if isinstance(action, FinishDeliveries):
                sending = self.nsqds.finish(action.source, message_id, self.now)
            else:
                delay_s = action.delay_ms / 1000
                sending = self.nsqds.requeue(action.source, message_id, delay_s, self.now)
            if isinstance(action, DelayedRequeue):
                self.put_off += 1
                assert sending is None or sending.message.attempts > MAX_ATTEMPTS
            elif sending is not None and sending.is_read:
                if isinstance(action, FinishDeliveries):
                    assert sending.serial in self.may_be_finished()
                elif action.cause is RequeueCause.CLIENT:
                    assert sending.serial in self.client.verbs["REQ"]

    def may_be_finished(self) -> set[int]:
        """Return the serials of what the client has finished, or was sent with ack=auto."""
        if self.options.is_auto_ack:
            return self.socket.web.serials
        return self.client.verbs["FIN"]

    # What the gateway reads

    def read_stream(self, connection: Connection, at_most: int = 100) -> None:
        """Read what one nsqd has written: messages that stand together are told together."""
        stream = connection.stream
        source = connection.source
        row: list[Sending] = []
        while stream and len(row) < at_most and isinstance(stream[0][1], Sending):
            row.append(stream[0][1])
            stream.popleft()
        if row:
            since = row[0].sent_at
            messages = [each.message for each in row]
            for each in row:
                each.read(since, connection.channel.timeout_s)
            self.socket.tell(lambda _: self.session.on_messages(source, messages, self.now, since))
        elif stream:
            _, frame = stream.popleft()
            assert isinstance(frame, ErrorFrame)
            self.refused(frame, source)

    def refused(self, frame: ErrorFrame, source: int) -> None:
        """Let the session know that an answer was refused."""
        self.socket.tell(lambda _: self.session.on_ack_refused(frame, source))

    def unread(self) -> list[Connection]:
        """Return the connections with something to read, the one that has waited longest first."""
        waiting = [each for each in self.nsqds.connections.values() if each.stream]
        return sorted(waiting, key=lambda each: each.stream[0][0])

    def read_streams(self, until: float) -> None:
        """Read what was written until then, in that order."""
        while self.is_reading and (unread := self.unread()) and unread[0].stream[0][0] <= until:
            self.read_stream(unread[0])

    # nsqd

    def draw_channel(self, data: st.DataObject) -> Channel:
        """Draw the channel on one nsqd, by its number."""
        channels = self.nsqds.channels
        return channels[data.draw(st.integers(1, len(channels)), label="channel") - 1]

    @precondition(lambda self: hasattr(self, "nsqds"))
    @rule(data=st.data(), sizes=SIZES, attempts=st.sampled_from([0, 0, 0, 5]))
    def publish(self, data: st.DataObject, sizes: list[int], attempts: int) -> None:
        """Let messages come to a channel."""
        channel = self.draw_channel(data)
        for size in sizes:
            channel.publish(size, attempts)
        self.nsqds.pump(self.now)
        self.settle()

    @precondition(lambda self: self.is_reading and self.unread())
    @rule(data=st.data(), at_most=st.integers(1, 3))
    def read_some(self, data: st.DataObject, at_most: int) -> None:
        """Let the gateway read a part of what one nsqd has written."""
        unread = self.unread()
        oldest = unread[0].stream[0][0]
        able = [each for each in unread if each.stream[0][0] <= oldest + READ_S]
        source = data.draw(st.sampled_from([each.source for each in able]))
        self.read_stream(self.nsqds.connections[source], at_most)
        self.settle()

    @rule(data=st.data(), verb=st.sampled_from(["", "FIN", "TOUCH", "TOUCH"]))
    def empty(self, data: st.DataObject, verb: str) -> None:
        """Let an operator empty the channel on one nsqd; the client may answer what it holds."""
        self.draw_channel(data).empty()
        self.nsqds.pump(self.now)
        self.settle()
        if verb:
            self.send([{"cmd": verb, "id": each} for each in self.client.held], has_ref=True)

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:  # noqa: FBT001 - hypothesis draws it
        """Let an operator pause the channel everywhere, or let it go on."""
        for channel in self.nsqds.channels:
            channel.is_paused = is_paused
        self.socket.tell(lambda _: self.session.on_paused(is_paused))
        self.nsqds.pump(self.now)
        self.settle()

    @precondition(lambda self: self.nsqds.connections)
    @rule(data=st.data())
    def lose_source(self, data: st.DataObject) -> None:
        """Let the connection to an nsqd end."""
        source = data.draw(st.sampled_from(sorted(self.nsqds.connections)))
        self.nsqds.disconnect(self.nsqds.connections[source])
        self.socket.tell(self.session.on_source_lost, source)
        self.nsqds.pump(self.now)
        self.settle()

    @precondition(lambda self: self.is_joined and not self.is_over and not self.is_trying_auth)
    @rule(data=st.data())
    def open_source(self, data: st.DataObject) -> None:
        """Let an nsqd come, or come back."""
        channel = self.draw_channel(data)
        if channel.connection is None:
            self.open(channel)
            self.settle()

    @precondition(lambda self: self.publishes)
    @rule(is_refused=st.booleans())
    def answer_publish(self, is_refused: bool) -> None:  # noqa: FBT001 - hypothesis draws it
        """Let the oldest publish be answered."""
        publish = self.publishes.pop(0)
        refusal = Refusal("NO_BROKER", "none", retryable=True) if is_refused else None
        if not self.is_over:
            self.socket.tell(lambda _: self.session.on_published(publish, refusal))
        self.settle()

    # AUTH

    @precondition(lambda self: self.is_joined and not self.is_over and not self.is_trying_auth)
    @rule()
    def on_secret_missing(self) -> None:
        """Let an nsqd come that wants a secret."""
        if not self.options.has_secret:
            self.socket.tell(self.session.on_secret_missing)
            self.settle()

    @precondition(lambda self: self.is_trying_auth and not self.is_over)
    @rule(is_right=st.sampled_from([True, True, True, False]))
    def answer_auth(self, is_right: bool) -> None:  # noqa: FBT001 - hypothesis draws it
        """Subscribe anew with the client's secret."""
        if self.is_joined:
            for action in self.session.drop_sources(self.now):
                self.carry_out(action)
            for connection in list(self.nsqds.connections.values()):
                self.nsqds.disconnect(connection)
            self.socket.tell(self.session.drop_sources)
        self.is_trying_auth = False
        if is_right:
            self.subscribe(len(self.nsqds.channels), AuthResponse(identity="me"))
            self.socket.tell(self.session.run_waiting)
        else:
            self.socket.tell(
                lambda _: self.session.on_auth_failed("E_AUTH_FAILED", "no", CloseReason.FORBIDDEN)
            )
        self.settle()

    # The client

    @rule(frames=st.sampled_from([1, 2, 100]))
    def read(self, frames: int) -> None:
        """Let the client read some frames, or all there will be."""
        self.is_attentive = frames == 100
        self.take(frames)
        self.settle()

    def take(self, frames: int) -> None:
        """Read frames; a socket that was full has room behind the last of them."""
        web = self.socket.web
        for _ in range(min(frames, len(web.frames))):
            for line in web.read():
                self.client.read(line)
                if line["type"] == "message" and not self.options.is_auto_ack:
                    self.check_window()
        if not web.frames and not web.is_writable:
            web.is_writable, web.room = True, 1_000_000
            if not self.is_over:
                self.socket.on_writable()

    def check_window(self) -> None:
        """Whatever happens, no more is in the client's hands than it asked for."""
        counted = [
            serial
            for serial in self.client.held.values()
            # No consumer can know that a channel was emptied, or that nsqd took its answer for a
            # sending that it has not read yet.
            if self.nsqds.serials[serial].state is not State.EMPTIED
            and not self.nsqds.serials[serial].is_answered_unread
        ]
        assert len(counted) <= self.largest, f"{len(counted)} of {self.largest} are held"

    @rule(frames=st.integers(0, 3))
    def fill_up(self, frames: int) -> None:
        """Let the client read no more after some frames; at 0 a pong has filled the socket."""
        self.is_attentive = False
        self.socket.web.room = frames
        self.socket.web.is_writable = self.socket.web.is_writable and frames > 0

    @rule(frames=st.integers(0, 2), size=st.integers(20, 300), gap_s=st.sampled_from([1.0, 9.0]))
    def stall(self, frames: int, size: int, gap_s: float) -> None:
        """Let the client read nothing for a while, in which messages come, and then go on."""
        self.fill_up(frames)
        self.send([{"cmd": "NOP"}] * (frames > 0), has_ref=True)
        for channel in self.nsqds.channels:
            channel.publish(size, 0)
        self.nsqds.pump(self.now)
        self.pass_time(self.now + gap_s)
        self.read(100)

    @rule(
        data=st.data(),
        others=st.lists(OTHERS, max_size=2),
        has_ref=st.booleans(),
    )
    def say(
        self,
        data: st.DataObject,
        others: list[Json],
        has_ref: bool,  # noqa: FBT001 - hypothesis draws it
    ) -> None:
        """Let the client answer some of what it has got, late and twice too, and say more."""
        commands = [dict(each) for each in others]
        known = [*self.client.got[-6:], *list(self.client.held)[-6:], "x"]
        ids = st.lists(st.sampled_from(known), min_size=1, max_size=4)
        for verb, those in data.draw(st.lists(st.tuples(VERBS, ids), max_size=3)):
            named: Json = {"ids": those} if len(those) > 1 else {"id": those[0]}
            commands.append({"cmd": verb, **named})
        self.send(data.draw(st.permutations(commands)), has_ref=has_ref)

    @precondition(lambda self: self.client.held)
    @rule(verb=VERBS, has_ref=st.booleans())
    def answer_oldest(self, verb: str, has_ref: bool) -> None:  # noqa: FBT001 - hypothesis draws it
        """Let the client answer what it has held longest."""
        self.send([{"cmd": verb, "id": next(iter(self.client.held))}], has_ref=has_ref)

    @precondition(lambda self: not self.client.texts)
    @rule()
    def say_much(self) -> None:
        """Let the client say more than a turn takes."""
        self.send([{"cmd": "NOP"} for _ in range(BIG_TURN)], has_ref=True)

    def send(self, commands: list[Json], *, has_ref: bool) -> None:
        """Send commands in one frame."""
        if self.is_over or not commands:
            return
        for command in commands:
            if has_ref and "ref" not in command:
                command["ref"] = next(self.refs)
                self.client.asked.add(command["ref"])
            self.client.say(command)
            if command["cmd"] == "RDY" and not self.options.is_auto_ack:
                self.size = command["count"] if command["count"] >= 0 else self.size
                self.largest = max(self.largest, self.size)
        self.client.texts.append("\n".join(map(json.dumps, commands)))
        self.settle()

    def settle(self) -> None:
        """Let everything come over that nobody holds up."""
        web, texts = self.socket.web, self.client.texts
        while True:
            if texts and web.is_reading and not self.is_over:
                self.socket.on_text(texts.popleft())
            elif self.is_quick and self.is_reading and self.unread():
                self.read_stream(self.unread()[0])
            elif self.is_attentive and (web.frames or not web.is_writable):
                self.take(100)
            else:
                return

    # Time

    @rule(gap_s=GAPS)
    def wait(self, gap_s: float) -> None:
        """Let time pass; what is due happens in its order."""
        self.pass_time(self.now + gap_s)

    @precondition(lambda self: self.client.held)
    @rule(
        before_s=st.sampled_from([0.3, 0.15, 0.05, 0.0, -0.1]),
        verb=st.sampled_from(["FIN", "REQ", "TOUCH", "TOUCH", ""]),
        has_ref=st.booleans(),
    )
    def answer_at_a_deadline(
        self,
        before_s: float,
        verb: str,
        has_ref: bool,  # noqa: FBT001
    ) -> None:
        """Let the client answer just before, or after, a message times out, or let it pass."""
        oldest = next(iter(self.client.held))
        self.wait_for_a_deadline(before_s)
        if verb:
            self.send([{"cmd": verb, "id": oldest}], has_ref=has_ref)

    def wait_for_a_deadline(self, before_s: float) -> None:
        """Let time pass until *before_s* ahead of the next time that a message times out."""
        serials = [self.nsqds.serials[each] for each in self.client.held.values()]
        deadlines = [each.consumer_deadline - before_s for each in serials]
        coming = [each for each in deadlines if each >= self.now]
        if coming:
            self.pass_time(min(coming))

    def pass_time(self, end: float) -> None:
        """Move the clock to *end*."""
        in_a_row = 0
        while True:
            unread = self.unread() if self.is_reading else []
            reads_at = unread[0].stream[0][0] + READ_S if unread else float("inf")
            due = min(self.loop.due, self.nsqds.next_event(), reads_at)
            if due > end:
                break
            in_a_row = in_a_row + 1 if due <= self.now else 0
            assert in_a_row < 100, "something is due for ever"
            self.loop.now = max(self.now, due)
            self.nsqds.tick(self.now)
            self.read_streams(self.now - READ_S + 1e-9)  # 0.1 has no exact form
            self.loop.fire()
            self.settle()
        self.loop.now = end

    @precondition(lambda self: not self.is_over and not self.is_closing)
    @rule()
    def messages_flow(self) -> None:
        """With room, a depth and a client that reads, messages come within a bounded time."""
        self.read_all()
        done = self.progress
        for _ in range(8):
            if self.is_over or self.progress > done or not self.should_flow:
                return
            self.pass_time(self.now + 0.5)
            self.read_all()
        raise AssertionError(f"no message comes: RDY {self.nsqds.ready}, {self.client.held}")

    @property
    def progress(self) -> int:
        """How many messages came to the client, or were put off."""
        return len(self.client.got) + self.put_off

    @property
    def should_flow(self) -> bool:
        """Whether nothing stands in the way of a message."""
        return (
            self.nsqds.depth > 0
            and len(self.client.held) < self.size
            and not self.options.is_viewer
            and self.socket.is_idle
            and not self.is_trying_auth
        )

    def read_all(self) -> None:
        """Let everything come to the client that is on its way."""
        self.is_attentive = True
        self.read_streams(self.now)
        while self.socket.web.frames or not self.socket.web.is_writable:
            self.settle()
            self.read_streams(self.now)

    # The end

    @precondition(lambda self: not self.is_over)
    @rule(
        how=st.sampled_from(
            [*[CloseReason.DONE, CloseReason.DRAINED, CloseReason.AGED] * 2, "hang up", "gone"]
        )
    )
    def begin_to_end(self, how: CloseReason | str) -> None:
        """Let the client say CLS or go, the gateway drain, or an operator delete the channel."""
        self.is_closing = True
        if how is CloseReason.DRAINED or how is CloseReason.AGED:
            close_at = self.now + 20.0
            self.socket.tell(
                lambda _: self.session.drain(how, close_at=close_at, reconnect_after_ms=1)
            )
        elif how is CloseReason.DONE:
            self.send([{"cmd": "CLS"}], has_ref=True)
        elif how == "gone":
            self.socket.tell(lambda _: self.session.on_channel_gone())
        else:
            self.socket.web.closed = (1006, "")
            self.socket.hand_back()

    @precondition(lambda self: self.is_over and not self.is_checked)
    @rule()
    def everything_was_handed_back(self) -> None:
        """What is read after the end goes back, too; nsqd waits for nothing but what is late."""
        self.is_checked = True
        for connection in list(self.nsqds.connections.values()):
            while connection.stream:
                self.read_stream(connection)
        for connection in self.nsqds.connections.values():
            for sending in connection.in_flight.values():
                assert sending.consumer_deadline - MARGIN_S <= self.now
        assert (0, 0) == self.socket.counted
        assert 0 == self.session.stats.held
        assert None is self.session.next_wake()

    @invariant()
    def what_is_counted_is_what_the_client_holds(self) -> None:
        """The window and the client agree whenever nothing is on its way between them."""
        if not hasattr(self, "socket"):
            return
        web = self.socket.web
        if self.is_over:
            # What waited was sent before the close; a client that has gone may leave some behind.
            assert not self.session.has_frame or web.closed == (1006, "")
            return
        if self.socket.is_idle and not (web.frames or self.client.texts):
            expected = 0 if self.options.is_auto_ack else len(self.client.held)
            assert expected == self.session.stats.held, self.client.held
        assert self.session.has_frame == (self.session.stats.unsent_bytes > 0)

    @invariant()
    def rdy_is_what_fits(self) -> None:
        """All that the client has room for, and no more than nsqd counts itself."""
        if not hasattr(self, "socket") or self.is_over or self.is_closing or not self.is_joined:
            return
        web, client = self.socket.web, self.client
        is_read = not (web.frames or client.texts) and web.is_writable
        if self.options.is_viewer or self.is_trying_auth or not (is_read and self.socket.is_idle):
            return
        held = [] if self.options.is_auto_ack else list(client.held.values())
        timed_out = [
            serial
            for serial in held
            if self.nsqds.serials[serial].consumer_deadline - MARGIN_S < self.now
        ]
        assert self.nsqds.ready >= self.size - len(held), (self.nsqds.ready, held)
        assert self.nsqds.ready <= max(0, self.size - len(timed_out)), (self.nsqds.ready, timed_out)

    def teardown(self) -> None:
        """Let all that waits be done: each ref is answered; then close."""
        if not hasattr(self, "socket"):
            return
        for _ in range(400):
            if self.is_over:
                break
            self.read_all()
            if self.publishes:
                self.answer_publish(is_refused=False)
            elif self.is_trying_auth:
                self.answer_auth(is_right=True)
            elif self.client.texts or not self.socket.is_idle:
                self.pass_time(max(self.now, min(self.loop.due, self.now + 1.0)))
            else:
                break
        if not self.is_over:
            assert self.client.asked == self.client.told.keys()
            self.begin_to_end("hang up")
        if not self.is_checked:
            self.everything_was_handed_back()


@pytest.mark.fuzz
def test_a_session_keeps_its_promises_in_every_history() -> None:
    """See `SocketModel`; a failure prints the history and how to repeat it."""
    examples = settings(
        max_examples=100,
        stateful_step_count=50,
        deadline=None,
        print_blob=True,
        database=None,
        report_multiple_bugs=False,
    )
    for _ in fuzz_rounds():
        run_state_machine_as_test(SocketModel, settings=examples)


def test_what_is_read_together_is_late_together() -> None:
    """A message that is read behind one that has timed out may be as old: it is not handed back."""
    model = SocketModel()
    channels = [(2.0, 0.0, 0.0), (2.0, 0.0, 0.0)]
    model.connect(kind="client", start="open", size=5, channels=channels, backlog=0, is_quick=False)
    model.on_secret_missing()
    model.say_much()
    model.fill_up(frames=0)
    model.stall(frames=0, gap_s=9.0, size=245)
    model.rdy_is_what_fits()
    model.stall(frames=0, gap_s=1.0, size=208)
    model.rdy_is_what_fits()
    late = [each for each in model.nsqds.serials.values() if each.state is State.IN_FLIGHT]

    model.everything_was_handed_back()

    assert [(9.0, 4.0)] == [(each.sent_at, each.consumer_deadline) for each in late]
    model.teardown()
