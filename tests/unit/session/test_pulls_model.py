"""
A model of leases: random histories of pulls beside an nsqd that obeys RDY and times out.

The real `PullSession` runs on a clock that only the test moves. The nsqd answers at once, so it may
never refuse anything: each FIN, REQ and TOUCH is for a message that is in flight there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.pulls import (
    AnswerPull,
    LeasedBatch,
    Pull,
    PullAction,
    PullOptions,
    PullSession,
)
from gateway.session.types import (
    FinishDeliveries,
    PauseReading,
    RequeueDeliveries,
    ResumeReading,
    SetReady,
    TouchDeliveries,
)

TIMEOUT_S, MAX_TIMEOUT_S, LINGER_S = 2.0, 9.0, 0.5
MAX_LEASES = 6
ANSWER = IdentifyResponse(
    msg_timeout=int(TIMEOUT_S * 1000), max_msg_timeout=int(MAX_TIMEOUT_S * 1000)
)
ROUNDING_S = 1e-6
STALL_S = 0.2


@dataclass
class Flight:
    """A message in flight at the model of nsqd."""

    source: int
    deadline: float
    ceiling: float


@dataclass
class Held:
    """A lease that the client has."""

    message_id: bytes
    ends_at: float
    is_answered: bool = False


class Leases(RuleBasedStateMachine):
    """One consumer, its pulls and clients, and one nsqd, which may be connected anew."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.session = PullSession(
            PullOptions(max_leases=MAX_LEASES, linger_s=LINGER_S, buffer_bytes=2_000)
        )
        self.queue: deque[Message] = deque()
        self.flights: dict[bytes, Flight] = {}
        self.finished: set[bytes] = set()
        self.may_finish: set[bytes] = set()
        """Messages for which a client sends FIN just now."""
        self.published = 0
        self.ready = 0
        """The last RDY that was sent."""
        self.obeyed = 0
        """The RDY that nsqd obeys: it sends under an earlier one for a while."""
        self.is_reading = True
        self.unread: deque[Message] = deque()
        self.source = 0
        self.pulls: list[Pull] = []
        self.held: dict[str, Held] = {}
        self.arrived_at: dict[bytes, float] = {}
        self.is_closed = False
        self.stalled_s = 0.0
        self.connect()

    # nsqd

    def connect(self) -> None:
        self.source += 1
        self.session.on_source_opened(self.source, ANSWER)

    def deliver(self) -> None:
        """Send what RDY allows, in batches of up to three; under an old RDY, only for a while."""
        for _ in range(self.obeyed):
            batch: list[Message] = []
            while self.queue and len(self.flights) < self.obeyed and len(batch) < 3:
                message = self.queue.popleft()
                sent = Message(message.timestamp_ns, message.attempts + 1, message.id, message.body)
                self.flights[sent.id] = Flight(
                    self.source, self.now + TIMEOUT_S, self.now + MAX_TIMEOUT_S
                )
                batch.append(sent)
            if not batch:
                return
            if self.is_reading:
                self.read(batch)
            else:
                self.unread.extend(batch)

    def read(self, batch: list[Message]) -> None:
        for message in batch:
            self.arrived_at[message.id] = self.now
        self.carry_out(self.session.on_messages(self.source, batch, self.now, self.now))
        self.carry_out(self.session.serve(self.now))

    def carry_out(self, actions: list[PullAction]) -> None:
        for action in actions:
            match action:
                case SetReady(count):
                    self.ready = count
                case FinishDeliveries() | RequeueDeliveries() | TouchDeliveries():
                    self.on_command(action)
                case AnswerPull(pull, messages):
                    self.on_answer(pull, messages)
                case PauseReading():
                    self.is_reading = False
                case ResumeReading():
                    self.is_reading = True
                case _:
                    raise AssertionError(action)

    def on_command(self, command: FinishDeliveries | RequeueDeliveries | TouchDeliveries) -> None:
        for each in command.ids:
            if isinstance(command, TouchDeliveries):
                flight = self.flights[each]
                assert command.source == flight.source
                flight.deadline = min(self.now + TIMEOUT_S, flight.ceiling)
                continue
            self.take(command.source, each)
            if isinstance(command, RequeueDeliveries):
                self.queue.append(Message(1, 1, each, b"x" * 200))
            else:
                assert each in self.may_finish, "finished without a FIN"
                self.finished.add(each)

    def take(self, source: int, message_id: bytes) -> None:
        """Answer a message; it must be in flight on this connection."""
        assert message_id in self.flights, "nsqd would refuse it"
        assert source == self.flights.pop(message_id).source
        self.arrived_at.pop(message_id, None)

    def on_answer(self, pull: Pull, batches: list[LeasedBatch]) -> None:
        self.pulls.remove(pull)
        assert sum(len(batch.messages) for batch in batches) <= pull.max_messages
        assert batches or self.is_closed or self.now >= pull.deadline - ROUNDING_S
        live = {each.message_id for each in self.held.values() if self.is_live(each)}
        for batch in batches:
            assert 0 < batch.lease_s <= (pull.lease_s or TIMEOUT_S) + ROUNDING_S
            for delivery_id, message in zip(batch.delivery_ids, batch.messages, strict=True):
                assert message.id not in live, "leased twice"
                assert delivery_id not in self.held
                self.held[delivery_id] = Held(message.id, self.now + batch.lease_s)
                self.arrived_at.pop(message.id, None)

    def is_live(self, held: Held) -> bool:
        return not held.is_answered and held.ends_at > self.now

    def settle(self) -> None:
        """Let nsqd deliver until nothing more happens."""
        for _ in range(50):
            before = len(self.queue), len(self.unread)
            if self.is_reading and self.unread:
                batch = list(self.unread)
                self.unread.clear()
                self.read(batch)
            self.deliver()
            if before == (len(self.queue), len(self.unread)) and self.obeyed == self.ready:
                has_room = len(self.flights) < MAX_LEASES and self.is_reading
                assert not (self.pulls and self.queue and has_room), "a pull starves"
                return
            self.obeyed = self.ready
        raise AssertionError("messages go round in circles")

    # What happens

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            self.queue.append(Message(1, 0, b"%016x" % self.published, b"x" * 200))
        self.settle()

    @rule(
        most=st.integers(1, 5),
        lease_s=st.sampled_from([0.0, 1.0, 3.0, 8.0, 60.0]),
        wait_s=st.sampled_from([0.1, 1.0, 5.0]),
    )
    def pull(self, most: int, lease_s: float, wait_s: float) -> None:
        if self.session.is_full:
            return
        pull = Pull(most, lease_s, self.now + wait_s)
        self.pulls.append(pull)
        self.carry_out(self.session.begin(pull, self.now))
        self.settle()

    @precondition(lambda self: self.pulls)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A client leaves before its answer."""
        pull = data.draw(st.sampled_from(self.pulls))
        self.pulls.remove(pull)
        self.carry_out(self.session.cancel(pull))
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), verb=st.sampled_from(["FIN", "REQ", "TOUCH"]))
    def answer(self, data: st.DataObject, verb: str) -> None:
        """By leases that are held, were answered, have ended, or are lost."""
        ids = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True, min_size=1))
        self.may_finish = {self.held[each].message_id for each in ids if verb == "FIN"}
        if verb == "FIN":
            actions, refused = self.session.finish(ids, self.now)
        elif verb == "REQ":
            actions, refused = self.session.requeue(ids, 0, self.now)
        else:
            actions, refused = self.session.touch(ids, 2.0, self.now)
        assert set(refused) <= set(ids)
        for each in ids:
            held = self.held[each]
            assert self.is_live(held) or each in refused
            if each in refused:
                continue
            if verb == "TOUCH":
                flight = self.flights[held.message_id]
                held.ends_at = min(self.now + 2.0, flight.ceiling - 0.25)
            else:
                held.is_answered = True
        self.carry_out(actions)
        self.may_finish = set()
        self.settle()

    @rule(seconds=st.sampled_from([0.05, 0.3, 0.6, 1.1, 2.5, 7.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; the session is woken when it wants to be."""
        end = self.now + seconds
        while (due := self.session.next_wake()) is not None and due <= end:
            self.now = max(self.now, due)
            self.time_out()
            self.carry_out(self.session.wake(self.now))
            self.settle()
        self.now = end
        self.time_out()
        self.settle()

    @precondition(lambda self: (self.session.next_wake() or self.now) >= self.now)
    @rule()
    def stall(self) -> None:
        """The event loop is late, once: what is due has not happened yet."""
        self.now += STALL_S
        self.stalled_s += STALL_S
        self.time_out()

    @rule()
    def wait_until_something_is_nearly_due(self) -> None:
        """So that a stall passes it."""
        due = self.session.next_wake()
        if due is not None and due - STALL_S / 2 > self.now:
            self.now = due - STALL_S / 2
            self.time_out()

    def time_out(self) -> None:
        """A message that was not answered in time goes back to nsqd's queue."""
        for message_id, flight in list(self.flights.items()):
            if flight.deadline <= self.now:
                # It was touched in time, or nobody has it: only unread ones wait in the socket.
                unread = {each.id for each in self.unread}
                assert message_id in unread, "a leased message timed out"
                del self.flights[message_id]
                self.unread = deque(each for each in self.unread if each.id != message_id)
                self.queue.append(Message(1, 1, message_id, b"x" * 200))

    @rule()
    def lose(self) -> None:
        """The connection is lost: nsqd has its messages again, and another one is opened."""
        lost = self.source
        for message_id in list(self.flights):
            del self.flights[message_id]
            self.queue.append(Message(1, 1, message_id, b"x" * 200))
        self.unread.clear()
        self.arrived_at.clear()
        self.carry_out(self.session.on_source_lost(lost))
        for held in self.held.values():
            held.is_answered = True  # nothing can be done with it any more
        self.connect()
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def refuse_touch(self, data: st.DataObject) -> None:
        """A refusal of nsqd that names an unknown message changes nothing."""
        frame = ErrorFrame("E_TOUCH_FAILED", "TOUCH ffffffffffffffff failed ID not in flight")
        self.carry_out(self.session.on_ack_refused(self.source, frame))
        del data

    def teardown(self) -> None:
        """A drain answers the pulls, takes answers for a while, and hands the rest back."""
        self.is_closed = True
        self.carry_out(self.session.drain(self.now))
        assert not self.pulls
        assert not self.ready
        self.settle()
        live = sorted(each for each, held in self.held.items() if self.is_live(held))
        if live:
            self.finish_one(live[0])
        self.carry_out(self.session.close(self.now))
        assert self.flights.keys() <= {each.id for each in self.unread}
        assert not self.session.lease_count
        self.nothing_is_lost()

    def finish_one(self, delivery_id: str) -> None:
        message_id = self.held[delivery_id].message_id
        self.may_finish = {message_id}
        actions, refused = self.session.finish([delivery_id], self.now)
        assert not refused
        self.carry_out(actions)
        assert message_id in self.finished

    # What always holds

    @invariant()
    def nothing_is_lost(self) -> None:
        here = {each.id for each in self.queue} | self.flights.keys() | self.finished
        assert self.published == len(here)

    @invariant()
    def rdy_is_for_waiting_pulls(self) -> None:
        assert self.ready <= MAX_LEASES
        assert self.pulls or not self.ready

    @invariant()
    def pulls_are_answered_in_time(self) -> None:
        assert all(self.now <= each.deadline + self.stalled_s + ROUNDING_S for each in self.pulls)

    @invariant()
    def counts_are_right(self) -> None:
        live = [each for each in self.held.values() if self.is_live(each)]
        assert len(live) <= self.session.lease_count
        assert len(self.flights) >= len(live)

    @invariant()
    def nothing_lingers(self) -> None:
        assert all(
            self.now - at <= LINGER_S + self.stalled_s + ROUNDING_S
            for at in self.arrived_at.values()
        )


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
