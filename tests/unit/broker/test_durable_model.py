"""Topics and channels on disk beside a model, over kills and starts."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.broker.channel import MessageState, PeekedMessage
from gateway.broker.message import StoredMessage
from gateway.broker.message_log import decode_chunk
from tests.support.brokers.broker_core import consumer
from tests.support.brokers.durable_core import DurableCore, durable_channel, held_reads

TOPICS = st.sampled_from(["t", "u"])
CHANNELS = st.sampled_from(["c", "d", "e#ephemeral"])
COUNTS = st.sampled_from([1, 3, 30, 700, 1_500])
PLACES = st.integers(min_value=0, max_value=40)


@dataclass
class ModelChannel:
    """What a channel has to have: the attempts of each message that is not finished, by body."""

    messages: dict[bytes, int] = field(default_factory=dict)
    is_paused: bool = False


@dataclass
class ModelTopic:
    """What a topic has to have."""

    held: list[bytes] = field(default_factory=list)
    channels: dict[str, ModelChannel] = field(default_factory=dict)
    is_paused: bool = False

    def distribute(self) -> None:
        """Give what is held to the channels, unless there is none or the topic is paused."""
        if self.channels and not self.is_paused:
            for channel in self.channels.values():
                channel.messages.update(dict.fromkeys(self.held, 0))
            self.held = []


class DurableMachine(RuleBasedStateMachine):
    """
    After a kill, the store has what was committed.

    A kill may also keep what happened after the last commit, if it was handed to the thread in
    time; so each kill follows a commit, or compares with both what was and what is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.core = DurableCore(self.path)
        self.model: dict[str, ModelTopic] = {}
        self.bodies = 0
        self.in_flight: list[tuple[str, str, StoredMessage]] = []
        self.numbers = 0

    def teardown(self) -> None:
        self.core.kill()
        shutil.rmtree(self.path)

    @initialize()
    def begin(self) -> None:
        self.publish("t", 3, 0)
        self.subscribe("t", "c")

    @rule(name=TOPICS, count=COUNTS, defer_ms=st.sampled_from([0, 0, 0, 2_000]))
    def publish(self, name: str, count: int, defer_ms: int) -> None:
        bodies = [b"%d" % number for number in range(self.bodies, self.bodies + count)]
        self.bodies += count
        assert self.core.topic(name).publish(bodies, self.core.clocks(), defer_ms=defer_ms)
        self.core.commit()
        topic = self.model.setdefault(name, ModelTopic())
        topic.held += bodies
        topic.distribute()
        for channel in topic.channels if not topic.is_paused else ():
            if channel.endswith("#ephemeral"):
                self.take_what_ephemeral_kept(name, channel)

    def take_what_ephemeral_kept(self, name: str, channel: str) -> None:
        """An ephemeral channel drops what its memory cannot hold, as in nsqd."""
        log = durable_channel(self.core.topic(name).channels[channel]).log
        messages = self.model[name].channels[channel].messages
        if log.unfinished_count == len(messages):
            return
        assert log.unfinished_count < len(messages)
        # What all channels have finished may be deleted.
        stored = self.bodies_of(name).items()
        kept = {body for seq, body in stored if not log.is_finished(seq)}
        for body in messages.keys() - kept:
            del messages[body]

    @rule(name=TOPICS, channel=CHANNELS)
    def subscribe(self, name: str, channel: str) -> None:
        topic = self.core.topic(name)
        found = topic.get_channel(channel, now=self.core.now)
        model = self.model.setdefault(name, ModelTopic())
        if channel not in model.channels:
            model.channels[channel] = ModelChannel()
            model.distribute()
        if not found.consumers:
            self.numbers += 1
            found.subscribe(consumer(self.numbers, msg_timeout_s=10.0))

    @rule(name=TOPICS, channel=CHANNELS, count=st.sampled_from([1, 40, 1_200]))
    def receive(self, name: str, channel: str, count: int) -> None:
        if channel not in self.model.get(name, ModelTopic()).channels:
            return
        found = self.core.topic(name).channels[channel]
        queued = self.queued(self.peek(name, channel))
        for each in found.consumers.values():
            found.ready(each, each.in_flight_count + count)
        got = self.core.deliver()
        if not found.is_ephemeral:  # it drops what its memory cannot hold
            mine = [message.body for number, message in got if number in found.consumers]
            assert queued[: len(mine)] == mine
        by_consumer = {
            number: (topic.name, key)
            for topic in self.core.registry.topics.values()
            for key, other in topic.channels.items()
            for number in other.consumers
        }
        for number, message in got:
            place = by_consumer[number]
            messages = self.model[place[0]].channels[place[1]].messages
            messages[message.body] += 1
            assert message.attempts == messages[message.body]
            self.in_flight.append((*place, message))
        for each in found.consumers.values():
            found.ready(each, 0)
        # A backlog of the time before an ephemeral channel is read, and cut, at its first delivery.
        self.take_what_all_ephemeral_kept()

    def take_what_all_ephemeral_kept(self) -> None:
        for topic, model in self.model.items():
            for key in model.channels:
                if key.endswith("#ephemeral"):
                    self.take_what_ephemeral_kept(topic, key)

    def peek(self, name: str, channel: str) -> list[PeekedMessage]:
        """Look at all messages of a channel, which are those of the model; nothing changes."""
        found = self.core.topic(name).channels[channel]
        counts = (found.depth, found.in_flight_count, found.deferred_count)
        used_bytes = self.core.used_bytes
        peeked, has_more = self.core.run(found.peek(max_count=1_000_000, max_bytes=2**40))
        first = self.core.run(found.peek(max_count=3, max_bytes=2**40))
        assert counts == (found.depth, found.in_flight_count, found.deferred_count)
        assert used_bytes == self.core.used_bytes
        attempts = {each.message.body: each.message.attempts for each in peeked}
        assert self.model[name].channels[channel].messages == attempts
        assert len(peeked) == len(attempts)
        states = Counter(each.state for each in peeked)
        assert found.in_flight_count == states[MessageState.IN_FLIGHT]
        assert found.deferred_count <= states[MessageState.DEFERRED]
        later = [each.due_at for each in peeked[states[MessageState.QUEUED] :]]
        assert sorted(later) == later
        assert (False, len(first.messages) < len(peeked)) == (has_more, first.has_more)
        assert bool(first.messages) == bool(peeked)
        shown = self.queued(first.messages)
        assert self.queued(peeked)[: len(shown)] == shown
        return peeked

    def queued(self, peeked: list[PeekedMessage]) -> list[bytes]:
        return [each.message.body for each in peeked if each.state is MessageState.QUEUED]

    @rule(
        name=TOPICS,
        channel=CHANNELS,
        max_count=st.sampled_from([1, 30, 1_000]),
        count=st.sampled_from([1, 30, 1_200]),
        change=st.sampled_from(["finish", "receive", "empty", "delete"]),
    )
    def peek_meanwhile(
        self, name: str, channel: str, max_count: int, count: int, change: str
    ) -> None:
        """A peek shows what was there at its begin, without what is gone at its end."""
        if channel not in self.model.get(name, ModelTopic()).channels:
            return
        found = self.core.topic(name).channels[channel]
        before = self.peek(name, channel)
        has_begun_all = found.deferred_count == len(
            [each for each in before if each.state is MessageState.DEFERRED]
        )
        with held_reads(self.core.journal.store):
            peek = self.core.begin(found.peek(max_count=max_count, max_bytes=2**40))
            is_in_memory = peek.done()
            if change == "empty":
                self.empty_channel(name, channel)
            elif change == "delete":
                self.delete_channel(name, channel)
            else:
                self.finish(0, count)
        if change == "receive":
            self.receive(name, channel, count)
        shown = self.core.run(peek).messages
        before_by_body = {each.message.body: each for each in before}
        assert [(each.state, each.message.attempts) for each in shown] == [
            (then.state, then.message.attempts)
            for then in (before_by_body[each.message.body] for each in shown)
        ]
        if is_in_memory:
            return
        now = self.model.get(name, ModelTopic()).channels.get(channel, ModelChannel()).messages
        assert {each.message.body for each in shown} <= now.keys()
        expected = [body for body in self.queued(before)[:max_count] if body in now]
        if has_begun_all:
            assert self.queued(shown)[: len(expected)] == expected

    @rule(place=PLACES, count=st.sampled_from([1, 1, 25, 1_100]))
    def finish(self, place: int, count: int) -> None:
        for _ in range(min(count, len(self.in_flight))):
            name, channel, message = self.in_flight.pop(place % len(self.in_flight))
            found = self.core.topic(name).channels[channel]
            (holder,) = found.consumers.values()
            assert found.finish(holder, message.id) is None
            del self.model[name].channels[channel].messages[message.body]

    @rule(place=PLACES, delay_ms=st.sampled_from([0, 500, 60_000]), count=st.sampled_from([1, 30]))
    def requeue(self, place: int, delay_ms: int, count: int) -> None:
        for _ in range(min(count, len(self.in_flight))):
            name, channel, message = self.in_flight.pop(place % len(self.in_flight))
            found = self.core.topic(name).channels[channel]
            (holder,) = found.consumers.values()
            failure = found.requeue(holder, message.id, delay_ms=delay_ms, now=self.core.now)
            assert failure is None
        self.take_what_all_ephemeral_kept()

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.core.move(seconds)
        if seconds >= 10:
            self.in_flight.clear()
        self.take_what_all_ephemeral_kept()

    @rule(name=TOPICS, is_paused=st.booleans())
    def pause_topic(self, name: str, is_paused: bool) -> None:  # noqa: FBT001
        topic = self.core.topic(name)
        model = self.model.setdefault(name, ModelTopic())
        model.is_paused = is_paused
        if is_paused:
            topic.pause()
        else:
            topic.unpause(now=self.core.now)
            model.distribute()

    @rule(name=TOPICS)
    def empty_topic(self, name: str) -> None:
        self.core.topic(name).empty()
        self.model.setdefault(name, ModelTopic()).held = []

    @rule(name=TOPICS, channel=CHANNELS)
    def empty_channel(self, name: str, channel: str) -> None:
        if channel in self.model.get(name, ModelTopic()).channels:
            self.core.topic(name).channels[channel].empty()
            self.model[name].channels[channel].messages.clear()
            self.drop_in_flight(name, channel)

    @rule(name=TOPICS, channel=CHANNELS)
    def delete_channel(self, name: str, channel: str) -> None:
        if channel in self.model.get(name, ModelTopic()).channels:
            self.core.registry.delete_channel(name, channel)
            del self.model[name].channels[channel]
            self.drop_in_flight(name, channel)

    @rule(name=TOPICS)
    def delete_topic(self, name: str) -> None:
        if name in self.model:
            for channel in self.model.pop(name).channels:
                self.drop_in_flight(name, channel)
            self.core.registry.delete_topic(name)

    def drop_in_flight(self, name: str, channel: str) -> None:
        self.in_flight = [each for each in self.in_flight if each[:2] != (name, channel)]

    @rule()
    def commit(self) -> None:
        self.core.commit()

    @rule(is_committed=st.booleans())
    def kill(self, is_committed: bool) -> None:  # noqa: FBT001
        before = copy.deepcopy(self.model)
        if is_committed:
            self.core.commit()
        self.core.kill()
        self.core.start()
        self.in_flight.clear()
        if is_committed:
            for topic in self.model.values():
                for name in [name for name in topic.channels if name.endswith("#ephemeral")]:
                    del topic.channels[name]
        else:
            self.model = self.read_model()
            self.compare_with(before)
        self.check_counts()

    def read_model(self) -> dict[str, ModelTopic]:
        """Return what the store has, by reading all of it."""
        found: dict[str, ModelTopic] = {}
        for name, topic in self.core.registry.topics.items():
            model = found[name] = ModelTopic(is_paused=topic.is_paused)
            model.held = self.read(name, topic.depth)
            for key, channel in topic.channels.items():
                log = durable_channel(channel).log
                bodies = self.bodies_of(name)
                model.channels[key] = ModelChannel(
                    {
                        body: log.attempts(seq)
                        for seq, body in bodies.items()
                        if seq < log.end_seq and not log.is_finished(seq)
                    },
                    channel.is_paused,
                )
        return found

    def bodies_of(self, name: str) -> dict[int, bytes]:
        """Return the bodies of the topic that are on disk, by number."""
        log = self.core.topic(name).log
        chunks = self.core.journal.store._read(log.id, 0, 2**40, 2**40)
        assert isinstance(chunks, list)
        return {
            message.seq: message.body
            for first, content in chunks
            for message in decode_chunk(first, content)
        }

    def read(self, name: str, held_count: int) -> list[bytes]:
        bodies = self.bodies_of(name)
        log = self.core.topic(name).log
        held = [body for seq, body in sorted(bodies.items()) if seq >= log.distributed_seq]
        assert len(held) == held_count
        return held

    def compare_with(self, before: dict[str, ModelTopic]) -> None:
        """Nothing is missing that was published, but for what was finished or removed."""
        for name, topic in before.items():
            if name not in self.model:
                continue  # it was created after the last commit
            for key, channel in topic.channels.items():
                found = self.model[name].channels.get(key)
                if found is not None and not key.endswith("#ephemeral"):
                    held = {*self.model[name].held}
                    assert channel.messages.keys() <= found.messages.keys() | held

    @invariant()
    def check_counts(self) -> None:
        """Depths, and the numbers of unfinished messages, are those of the model."""
        topics = self.core.registry.topics
        assert topics.keys() == self.model.keys()
        for name, model in self.model.items():
            topic = self.core.topic(name)
            assert topic.depth == len(model.held)
            assert topic.channels.keys() == model.channels.keys()
            for key, channel in topic.channels.items():
                unfinished = durable_channel(channel).log.unfinished_count
                assert unfinished == len(model.channels[key].messages), (name, key)
                assert channel.depth >= 0


TestDurable = DurableMachine.TestCase
TestDurable.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
