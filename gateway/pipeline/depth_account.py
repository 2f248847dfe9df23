"""PURE. What nsqd's /stats says of one channel of a topic, summed up. Source: nsqd/stats.go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gateway.client.node_answers import NodeAnswer, Question, Reached, is_done


class Account(NamedTuple):
    """Messages of some channels at some nsqds."""

    waiting: int
    """In queues, those of the topic that are on their way to the channel among them."""
    in_flight: int
    """With consumers, whoever they are."""
    deferred: int

    @property
    def total(self) -> int:
        """All that are not finished."""
        return self.waiting + self.in_flight + self.deferred


class _Channel(msgspec.Struct):
    channel_name: str
    depth: int
    in_flight_count: int
    deferred_count: int


class _Topic(msgspec.Struct):
    topic_name: str
    depth: int
    channels: list[_Channel] | None = None


class _Stats(msgspec.Struct):
    topics: list[_Topic] | None = None


_stats = msgspec.json.Decoder(_Stats)


def depth_question(topic: str) -> Question:
    """Return what asks for a topic: asked for a channel that is not there, nsqd leaves it out."""
    return Question(
        method="GET",
        path="/stats",
        query=[
            ("format", b"json"),
            ("topic", topic.encode()),
            ("include_clients", b"false"),
            ("include_mem", b"false"),
        ],
    )


def read_depth(answers: Iterable[NodeAnswer], topic: str, channel: str) -> Account | None:
    """
    Return what all *answers* to `depth_question` come to; None where one of them cannot be read.

    A channel that is not there yet will begin with what waits in its topic.
    """
    waiting = in_flight = deferred = 0
    for answer in answers:
        if not isinstance(answer, Reached) or not is_done(answer):
            return None
        try:
            stats = _stats.decode(answer.body)
        except (ValueError, RecursionError):
            return None
        for each in stats.topics or ():
            if each.topic_name != topic:
                continue
            waiting += each.depth
            for of_channel in each.channels or ():
                if of_channel.channel_name == channel:
                    waiting += of_channel.depth
                    in_flight += of_channel.in_flight_count
                    deferred += of_channel.deferred_count
    return Account(waiting, in_flight, deferred)
