"""
PURE. Sum the statistics of a cluster over its nsqds, and write them as tables.

The numbers are those of nsqadmin: a channel's is the sum over all nsqds that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from gateway.client.nsqd_answers import ChannelCounts, TopicCounts
from gateway.errors import GatewayError
from gateway.protocol.peek import PeekResponse
from gateway.terminal import pluralize, printable

Row: TypeAlias = Mapping[str, Any]
"""A line of a table, or an object of --json: values by the name of the column."""


class InvalidStatistics(GatewayError):
    """The answer is not in the form of nsqd's /stats."""


class _Topic(TopicCounts, kw_only=True):
    """A topic at one nsqd, whose HTTP address is *node*; nsqd has null for no channels."""

    node: str
    channels: list[ChannelCounts] | None = None


class _Node(msgspec.Struct):
    """An nsqd; *error* if it did not answer."""

    node: str
    error: str | None = None


class _Stats(msgspec.Struct):
    """The merged statistics."""

    nodes: list[_Node]
    topics: list[_Topic] | None = None


_stats = msgspec.json.Decoder(_Stats)


@dataclass(kw_only=True)
class ChannelSum:
    """A channel, summed over nsqds. Counts are of messages, if their name does not say else."""

    topic: str
    channel: str
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    messages: int = 0
    consumers: int = 0
    paused: bool = False
    """True if it is paused on any nsqd."""
    nodes: int = 0

    @property
    def waiting(self) -> int:
        """All messages of the channel, in flight and deferred ones included."""
        return self.depth + self.in_flight + self.deferred

    def add(self, found: ChannelCounts) -> None:
        """Add the channel at one more nsqd."""
        self.depth += found.depth
        self.in_flight += found.in_flight_count
        self.deferred += found.deferred_count
        self.requeued += found.requeue_count
        self.timed_out += found.timeout_count
        self.messages += found.message_count
        self.consumers += found.client_count
        self.paused = self.paused or found.paused
        self.nodes += 1


@dataclass(kw_only=True)
class TopicSum:
    """A topic, summed over nsqds."""

    topic: str
    depth: int = 0
    """Messages that wait in the topic itself, for its first channel or for the end of a pause."""
    messages: int = 0
    paused: bool = False
    nodes: int = 0
    channels: dict[str, ChannelSum] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """All messages of the topic and its channels, in flight and deferred ones included."""
        return self.depth + sum(each.waiting for each in self.channels.values())


@dataclass(kw_only=True)
class NodeSum:
    """The messages of one nsqd; *error* if it did not answer."""

    node: str
    error: str | None = None
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0


@dataclass(frozen=True, kw_only=True)
class ClusterStats:
    """The statistics of a cluster, summed; topics by name."""

    topics: Mapping[str, TopicSum]
    nodes: Sequence[NodeSum]

    @property
    def lost(self) -> list[NodeSum]:
        """The nsqds that did not answer; the sums are without them."""
        return [node for node in self.nodes if node.error is not None]

    @property
    def channels(self) -> list[ChannelSum]:
        """All channels of all topics."""
        return [channel for topic in self.topics.values() for channel in topic.channels.values()]


def parse_cluster_stats(body: bytes, *, node: str | None = None) -> ClusterStats:
    """
    Return the sums of the merged statistics *body*; with *node*, only what this nsqd has.

    Raises:
        InvalidStatistics: *body* is not in the form of the gateway's /stats.
    """
    try:
        stats = _stats.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidStatistics(
            f"the answer is not the statistics of a gateway: {error}; check --url"
        ) from error
    topics: dict[str, TopicSum] = {}
    nodes = {
        each.node: NodeSum(node=each.node, error=each.error)
        for each in stats.nodes
        if node in {None, each.node}
    }
    for found in stats.topics or ():
        if node in {None, found.node}:
            of_node = nodes.setdefault(found.node, NodeSum(node=found.node))
            topic = topics.setdefault(found.topic_name, TopicSum(topic=found.topic_name))
            _add_topic(topic, of_node, found)
    return ClusterStats(topics=topics, nodes=sorted(nodes.values(), key=lambda each: each.node))


def _add_topic(topic: TopicSum, node: NodeSum, found: _Topic) -> None:
    topic.depth += found.depth
    topic.messages += found.message_count
    topic.paused = topic.paused or found.paused
    topic.nodes += 1
    node.depth += found.depth
    for channel in found.channels or ():
        name = channel.channel_name
        topic.channels.setdefault(name, ChannelSum(topic=topic.topic, channel=name)).add(channel)
        node.depth += channel.depth
        node.in_flight += channel.in_flight_count
        node.deferred += channel.deferred_count


def channel_row(channel: ChannelSum) -> dict[str, Any]:
    """Return the row of *channel*."""
    return {
        "topic": channel.topic,
        "channel": channel.channel,
        "depth": channel.depth,
        "in_flight": channel.in_flight,
        "deferred": channel.deferred,
        "requeued": channel.requeued,
        "timed_out": channel.timed_out,
        "messages": channel.messages,
        "consumers": channel.consumers,
        "nodes": channel.nodes,
        "paused": channel.paused,
    }


def topic_row(topic: TopicSum) -> dict[str, Any]:
    """Return the row of *topic*; its depth, in flight and deferred include its channels."""
    channels = topic.channels.values()
    return {
        "topic": topic.topic,
        "depth": topic.depth + sum(each.depth for each in channels),
        "in_flight": sum(each.in_flight for each in channels),
        "deferred": sum(each.deferred for each in channels),
        "messages": topic.messages,
        "channels": len(topic.channels),
        "nodes": topic.nodes,
        "paused": topic.paused,
    }


# Nodes


class _PublishedTopic(msgspec.Struct):
    topic: str
    messages: int


class ProducerReport(msgspec.Struct):
    """A client, but no gateway, that has published to an nsqd over TCP."""

    remote_address: str
    hostname: str
    user_agent: str
    topics: list[_PublishedTopic]

    @property
    def text(self) -> str:
        """Who it is, and how many messages of each topic it has published there."""
        topics = ", ".join(f"{each.topic} ({each.messages})" for each in self.topics)
        return f"{self.remote_address} ({self.hostname}, {self.user_agent}): {topics}"


class NodeReport(msgspec.Struct):
    """An nsqd in the response to GET /nodes; without counts if it has an *error*."""

    node: str
    state: str
    error: str | None = None
    version: str = ""
    health: str = ""
    topics: int = 0
    channels: int = 0
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    consumers: int = 0
    producers: list[ProducerReport] = []

    @property
    def waiting(self) -> int:
        """All messages there, in flight and deferred ones included."""
        return self.depth + self.in_flight + self.deferred


class _Registration(msgspec.Struct):
    """An nsqd that an nsqlookupd knows."""

    tcp_address: str
    http_address: str | None
    tombstones: list[str]


class LookupdReport(msgspec.Struct):
    """An nsqlookupd in the response to GET /nodes."""

    lookupd: str
    error: str | None = None
    nodes: list[_Registration] = []
    missing: list[str] = []

    @property
    def problems(self) -> list[str]:
        """A line for each problem."""
        name = f"nsqlookupd {self.lookupd}"
        if self.error is not None:
            return [f"{name} did not answer: {self.error}"]
        return [f"{name} does not know nsqd {address}, which others do" for address in self.missing]


class NodesReport(msgspec.Struct):
    """The response to GET /nodes."""

    nodes: list[NodeReport]
    lookupds: list[LookupdReport]


_nodes = msgspec.json.Decoder(NodesReport)


def parse_nodes(body: bytes) -> NodesReport:
    """
    Return the decoded response to GET /nodes.

    Raises:
        InvalidStatistics: *body* is not in the form of the gateway's /nodes.
    """
    try:
        return _nodes.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidStatistics(
            f"the answer does not describe the nsqds of a gateway: {error}; check --url"
        ) from error


def node_row(node: NodeReport) -> dict[str, Any]:
    """Return the row of *node*."""
    return {
        "node": node.node,
        "state": node.state,
        "version": node.version,
        "health": node.error or node.health,
        "topics": node.topics,
        "channels": node.channels,
        "depth": node.depth,
        "in_flight": node.in_flight,
        "deferred": node.deferred,
        "consumers": node.consumers,
    }


# Messages


_peeked = msgspec.json.Decoder(PeekResponse)


def parse_peek(body: bytes) -> PeekResponse:
    """
    Return the decoded response to /channel/peek.

    Raises:
        InvalidStatistics: *body* is not in the form of the gateway's.
    """
    try:
        return _peeked.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidStatistics(f"the answer is not that of a gateway: {error}") from error


# Rows


_COUNTERS = ("messages", "requeued", "timed_out")


def with_rates(row: Row, before: Row | None, elapsed_s: float) -> dict[str, Any]:
    """
    Return *row* with the increase of its counters a second since *before*, *elapsed_s* earlier.

    A rate is None without *before*, or if a counter has fallen, because an nsqd restarted or is
    gone.
    """
    rates: dict[str, float | None] = {f"{name}_per_s": None for name in _COUNTERS}
    if before is not None and elapsed_s > 0:
        for name in _COUNTERS:
            increase = row[name] - before[name]
            if increase >= 0:
                rates[f"{name}_per_s"] = round(increase / elapsed_s, 1)
    return {**row, **rates}


def most_trouble_first(row: Row) -> tuple[Any, ...]:
    """Return a key that sorts rows: nobody consumes, then by what waits, then by name."""
    is_left = row.get("consumers", 1) == 0 and row["depth"] > 0 and not row["paused"]
    return (not is_left, -row["depth"], -row["in_flight"], row["topic"], row.get("channel", ""))


def ordered(rows: Iterable[Row], column: str | None) -> list[Row]:
    """Return *rows* by *column*: numbers from the largest, names from a; None: trouble first."""
    if column is None:
        return sorted(rows, key=most_trouble_first)

    def key(row: Row) -> tuple[Any, ...]:
        value = row[column]
        return value if isinstance(value, str) else -value, most_trouble_first(row)

    return sorted(rows, key=key)


def describe_subject(topic: str, channel: str | None) -> str:
    """Return ``topic t``, or ``channel c of topic t``."""
    return f"topic {topic}" if channel is None else f"channel {channel} of topic {topic}"


def describe_loss(action: str, stats: ClusterStats, topic: str, channel: str | None) -> str:
    """
    Return what *action*, empty or delete, does to *topic*, or to a *channel* of it, in numbers.

    nsqds that did not answer are named, for they may have messages that are lost as well.
    """
    lost = ", ".join(node.node for node in stats.lost)
    found = stats.topics.get(topic)
    if found is None or (channel is not None and channel not in found.channels):
        what = "no nsqd that answered has it" if lost else "no nsqd has it"
    else:
        at_least = "at least " if lost else ""
        what = f"{at_least}{_loss(action, found, channel)}, which cannot be brought back"
    text = f"{action} {describe_subject(topic, channel)}: {what}"
    return f"{text}; not counted, because they did not answer: {lost}" if lost else text


def _loss(action: str, topic: TopicSum, channel: str | None) -> str:
    if channel is not None:
        found = topic.channels[channel]
        return f"{pluralize(found.waiting, 'message')} on {pluralize(found.nodes, 'nsqd')}"
    nodes = pluralize(topic.nodes, "nsqd")
    if action == "empty":
        # nsqd empties only the topic's own queue: its channels keep their messages.
        return f"{pluralize(topic.depth, 'message')} on {nodes}"
    channels = pluralize(len(topic.channels), "channel")
    return f"{channels} and {pluralize(topic.waiting, 'message')} on {nodes}"


# Tables


def table(rows: Sequence[Row], columns: Sequence[str], *, width: int | None = None) -> list[str]:
    """
    Return *rows* as aligned lines, after one with the names of the *columns*.

    Numbers are on the right, with spaces between thousands. Names that are too long for a terminal
    of *width* columns are shortened in the middle; None: nothing is shortened.
    """
    cells = [[column.replace("_per_s", "/s").replace("_", " ") for column in columns]]
    cells += [[_cell(row[column]) for column in columns] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_text = [
        any(isinstance(row[column], str) for row in rows) or column in _TEXTS for column in columns
    ]
    if width is not None:
        sizes = _within(sizes, is_text, width - 2 * (len(columns) - 1))
    return [
        "  ".join(
            _shortened(cell, size).ljust(size) if left else cell.rjust(size)
            for cell, size, left in zip(line, sizes, is_text, strict=True)
        ).rstrip()
        for line in cells
    ]


_TEXTS = {"topic", "channel", "node", "state", "version", "health", "paused"}
_MIN_TEXT = 12
"""Characters of a shortened name at least."""


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "paused" if value else ""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}".replace(",", " ")
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    # Names, versions and errors of other programs; a row is one line.
    return printable(str(value)).replace("\n", " ")


def _within(sizes: Sequence[int], is_text: Sequence[bool], width: int) -> list[int]:
    """Return *sizes* with columns of text made smaller, the largest first, to fit *width*."""
    fitted = list(sizes)
    while sum(fitted) > width:
        place = max(
            (place for place, text in enumerate(is_text) if text),
            key=lambda each: fitted[each],
            default=None,
        )
        if place is None or fitted[place] <= _MIN_TEXT:
            break
        fitted[place] -= 1
    return fitted


def _shortened(text: str, size: int) -> str:
    """Return *text* in *size* characters, with … in place of its middle."""
    if len(text) <= size:
        return text
    kept = size - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def matching(rows: Iterable[Row], is_match: Callable[[str], bool]) -> list[Row]:
    """Return the rows of which any name (topic, channel or node) is a match."""
    names = ("topic", "channel", "node")
    return [row for row in rows if any(is_match(row[name]) for name in names if name in row)]
