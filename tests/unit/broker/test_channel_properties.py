"""Any sequence of operations on a channel: no message is lost, doubled or uncounted."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.broker.channel import Channel
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.message import OVERHEAD_BYTES
from tests.support.brokers.broker_core import consumer, context, new_messages, peeked_at_once

CONSUMERS = st.integers(min_value=0, max_value=2)


class ChannelMachine(RuleBasedStateMachine):
    """Three consumers that come and go, answer or do not, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.context = context()
        self.channel = Channel("t", "c", self.context)
        self.now = 0.0
        self.published = 0
        self.finished: set[bytes] = set()
        self.consumers: dict[int, ChannelConsumer] = {}
        self.next_number = 1

    @rule(count=st.integers(min_value=1, max_value=5), defer_ms=st.sampled_from([0, 0, 1_500]))
    def publish(self, count: int, defer_ms: int) -> None:
        """Put messages, deferred ones too."""
        messages = new_messages(count, first=self.published + 1, defer_ms=defer_ms)
        self.published += count
        self.context.memory.take(messages)
        if defer_ms:
            self.channel.put_deferred(messages, self.now)
        else:
            self.channel.put(messages)

    @rule(place=CONSUMERS, ready=st.integers(min_value=0, max_value=4))
    def ready(self, place: int, ready: int) -> None:
        """Subscribe where nobody is, and say RDY."""
        if place not in self.consumers:
            self.consumers[place] = consumer(self.next_number, msg_timeout_s=1.0 + place)
            self.next_number += 1
            self.channel.subscribe(self.consumers[place])
        self.channel.ready(self.consumers[place], ready)

    @rule(place=CONSUMERS)
    def leave(self, place: int) -> None:
        """Lose a client with what it has in flight."""
        if place in self.consumers:
            self.channel.remove_consumer(self.consumers.pop(place))

    @rule(place=CONSUMERS, is_blocked=st.booleans())
    def block(self, place: int, is_blocked: bool) -> None:  # noqa: FBT001
        """Let a client not read, or read again."""
        if place in self.consumers:
            self.consumers[place].is_blocked = is_blocked
            self.channel.add_waiting(self.consumers[place])

    @rule()
    def deliver(self) -> None:
        """Send what can be sent; nobody gets more than RDY allows."""
        for receiver, messages in self.channel.deliver(self.now):
            assert receiver.capacity >= 0
            assert not receiver.is_blocked
            assert messages

    @rule(place=CONSUMERS, verb=st.sampled_from(["FIN", "REQ", "REQ later", "TOUCH"]))
    def answer(self, place: int, verb: str) -> None:
        """Answer the oldest message of a consumer."""
        receiver = self.consumers.get(place)
        if receiver is None or not receiver.in_flight:
            return
        message_id = next(iter(receiver.in_flight))
        if verb == "FIN":
            assert self.channel.finish(receiver, message_id) is None
            self.finished.add(message_id)
        elif verb == "TOUCH":
            assert self.channel.touch(receiver, message_id, now=self.now) is None
        else:
            delay_ms = 700 if verb == "REQ later" else 0
            self.channel.requeue(receiver, message_id, delay_ms=delay_ms, now=self.now)

    @rule(seconds=st.sampled_from([0.1, 0.7, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass, and run what is due."""
        self.now += seconds
        for entry in self.context.scheduler.pop_due(self.now):
            entry.expire(self.now)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """A message is queued, in flight, deferred or finished; memory counts the first three."""
        held = self.channel.depth + self.channel.in_flight_count + self.channel.deferred_count
        assert self.published == held + len(self.finished)
        assert held * (OVERHEAD_BYTES + 1) == self.context.memory.used_bytes

    @invariant()
    def peek_shows_each_message_once_and_in_order(self) -> None:
        """The queue comes first, then all others, the earliest deadline or due time first."""
        channel, used_bytes = self.channel, self.context.memory.used_bytes
        due = {message.id: until for until, _, message in channel._deferred}

        everything = peeked_at_once(channel)
        peeked = everything.messages
        assert not everything.has_more
        assert (peeked[:2], len(peeked) > 2) == peeked_at_once(channel, max_count=2)

        states = Counter(each.state.value for each in peeked)
        counts = (channel.depth, channel.in_flight_count, channel.deferred_count)
        assert counts == (states["queued"], states["in_flight"], states["deferred"])
        assert list(channel._queue) == [each.message for each in peeked[: channel.depth]]
        later = [each.message for each in peeked[channel.depth :]]
        times = [due.get(message.id, message.deadline) for message in later]
        assert sorted(times) == times
        assert len(peeked) == len({each.message.id for each in peeked})
        assert used_bytes == self.context.memory.used_bytes

    @invariant()
    def nothing_is_overdue(self) -> None:
        """The scheduler knows the nearest deadline of all."""
        deadlines = [each.next_deadline for each in self.channel.consumers.values()]
        nearest = min(deadlines, default=float("inf"))
        assert self.channel.next_due <= nearest

    @invariant()
    def who_has_room_is_served(self) -> None:
        """With messages queued and room somewhere, the channel is scheduled."""
        has_room = any(each.capacity > 0 for each in self.channel.consumers.values())
        deliverable = self.context.scheduler.pop_deliverable()
        for entry in deliverable:
            self.context.scheduler.add_deliverable(entry)
        assert deliverable or not (self.channel.depth and has_room)

    def teardown(self) -> None:
        """In the end everything can be delivered and finished."""
        last = consumer(self.next_number)
        for receiver in list(self.consumers.values()):
            self.channel.remove_consumer(receiver)
        self.channel.expire(self.now + 1_000.0)
        self.channel.subscribe(last)
        self.channel.ready(last, 10_000)
        for delivery in self.channel.deliver(self.now + 1_000.0):
            for message in delivery.messages:
                self.channel.finish(last, message.id)
                self.finished.add(message.id)
        assert self.published == len(self.finished)
        assert self.context.memory.used_bytes == 0


TestChannel = ChannelMachine.TestCase
