"""
PURE. What nsqd's /stats and /info say about a process and its channels.

Source: nsqd/http.go, doStats and doInfo; nsqd/stats.go.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gateway.client.node_answers import NodeAnswer, Question, Reached, is_done

T = TypeVar("T")

INFO = Question(method="GET", path="/info")


class NodeInfo(msgspec.Struct, frozen=True):
    """Of /info: where a process listens, and since when it runs."""

    tcp_port: int
    start_time: int
    """Seconds since 1970 on its own clock."""


class ChannelStats(msgspec.Struct, frozen=True):
    """One channel in /stats."""

    channel_name: str
    paused: bool = False


class TopicStats(msgspec.Struct, frozen=True):
    """One topic in /stats; Go writes an empty list as null where nobody made the list."""

    topic_name: str
    channels: list[ChannelStats] | None = None
    paused: bool = False


class NodeStats(msgspec.Struct, frozen=True):
    """Of /stats: one process, and what it has."""

    start_time: int
    """Seconds since 1970 on its own clock."""
    topics: list[TopicStats] | None = None

    def channels(self) -> dict[tuple[str, str], bool]:
        """Return by topic and channel whether its messages are held back, by either's pause."""
        return {
            (topic.topic_name, channel.channel_name): topic.paused or channel.paused
            for topic in self.topics or ()
            for channel in topic.channels or ()
        }


_infos = msgspec.json.Decoder(NodeInfo)
_stats = msgspec.json.Decoder(NodeStats)


def stats_question(topic: str | None = None) -> Question:
    """Return what asks for all channels, or those of *topic*; without those who consume them."""
    query = [("format", b"json"), ("include_clients", b"false"), ("include_mem", b"false")]
    if topic is not None:
        query.append(("topic", topic.encode()))
    return Question(method="GET", path="/stats", query=query)


def read_info(answer: NodeAnswer) -> NodeInfo | None:
    """Return what an answer to `INFO` says; None where it is none, or cannot be read."""
    return _read(_infos, answer)


def read_stats(answer: NodeAnswer) -> NodeStats | None:
    """Return what an answer to a `stats_question` says; None where it is none of nsqd's."""
    return _read(_stats, answer)


def _read(decoder: msgspec.json.Decoder[T], answer: NodeAnswer) -> T | None:
    if not isinstance(answer, Reached) or not is_done(answer):
        return None
    try:
        return decoder.decode(answer.body)
    except (ValueError, RecursionError):
        return None
