"""
What /stats shows: a snapshot of the catalog in nsqd's JSON shape, and as text.

Keys, their order and where null stands for a list: nsqd/stats.go, nsqd/http.go. Keys that nsqd
leaves out when they are empty are the ones with an UNSET default.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.broker.catalog import Catalog
from gateway.broker.channel import Channel
from gateway.broker.client import Client
from gateway.broker.topic import Topic
from gateway.protocol.wire import NSQD_VERSION


class Latency(msgspec.Struct, frozen=True):
    """e2e_processing_latency of an nsqd that was not asked to measure it."""

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


class PublishCount(msgspec.Struct, frozen=True):
    """How many messages a client published to one topic."""

    topic: str
    count: int


class ClientStats(msgspec.Struct, frozen=True, kw_only=True):
    """A connection: a consumer under its channel, a producer at top level."""

    client_id: str
    hostname: str
    version: str = "V2"
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool = False
    snappy: bool = False
    user_agent: str
    pub_counts: list[PublishCount] | UnsetType = UNSET
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelStats(msgspec.Struct, frozen=True, kw_only=True):
    """A channel; *clients* is None when clients were not asked for."""

    channel_name: str
    depth: int
    backend_depth: int = 0
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: Latency = Latency()


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its channels, or with the one that was asked for."""

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int = 0
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency = Latency()


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Go's heap in nsqd; here only what the messages take is known, the rest is 0."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer; None where nsqd says null."""

    version: str = NSQD_VERSION
    health: str = "OK"
    start_time: int
    """Seconds since 1970."""
    topics: list[TopicStats] | None
    memory: MemoryStats | UnsetType = UNSET
    producers: list[ClientStats] | None = None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; an empty name is every topic or channel."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True
    include_mem: bool = True


def snapshot(catalog: Catalog, selection: Selection, *, start_time: int) -> Stats:
    """Return what the catalog holds now, topics and channels in order of name."""
    memory = catalog.common.memory.used_bytes
    mem = MemoryStats(heap_in_use_bytes=memory) if selection.include_mem else UNSET
    if selection.topic and selection.topic not in catalog.topics:
        return Stats(start_time=start_time, topics=None, memory=mem)
    topics = [
        _topic_stats(catalog, catalog.topics[name], selection)
        for name in sorted(catalog.topics)
        if selection.topic in ("", name)
        if not selection.channel or selection.channel in catalog.topics[name].channels
    ]
    producers = None
    if selection.include_clients:
        # An empty list of producers is null in nsqd, an empty list of clients is not.
        producers = [
            _client_stats(client, selection.topic)
            for client in catalog.clients.values()
            if client.publish_counts
        ] or None
    return Stats(start_time=start_time, topics=topics, memory=mem, producers=producers)


def _topic_stats(catalog: Catalog, topic: Topic, selection: Selection) -> TopicStats:
    return TopicStats(
        topic_name=topic.name,
        channels=[
            _channel_stats(catalog, topic.channels[name], selection)
            for name in sorted(topic.channels)
            if selection.channel in ("", name)
        ],
        depth=topic.depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.is_paused,
    )


def _channel_stats(catalog: Catalog, channel: Channel, selection: Selection) -> ChannelStats:
    clients = None
    if selection.include_clients:
        clients = [
            _client_stats(catalog.clients[number], selection.topic) for number in channel.consumers
        ]
    return ChannelStats(
        channel_name=channel.name,
        depth=channel.depth,
        in_flight_count=channel.in_flight_count,
        deferred_count=channel.deferred_count,
        message_count=channel.message_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(channel.consumers),
        clients=clients,
        paused=channel.is_paused,
    )


def _client_stats(client: Client, topic: str) -> ClientStats:
    consumer = client.consumer
    # One topic only: nsqd's loop stops after the first that fits (nsqd/client_v2.go, Stats).
    published = [
        PublishCount(name, count)
        for name, count in client.publish_counts.items()
        if topic in ("", name)
    ][:1]
    return ClientStats(
        client_id=client.client_id,
        hostname=client.hostname,
        remote_address=client.remote_address,
        state=client.state,
        ready_count=consumer.ready_count,
        in_flight_count=consumer.in_flight_count,
        message_count=consumer.message_count,
        finish_count=consumer.finish_count,
        requeue_count=consumer.requeue_count,
        connect_ts=client.connect_ts,
        sample_rate=client.holds.sample_rate,
        user_agent=client.user_agent,
        pub_counts=published or UNSET,
    )


def to_text(stats: Stats, *, uptime_s: int) -> str:
    """Return *stats* for a person, laid out as nsqd does (nsqd/http.go, printStats)."""
    lines = [
        f"nsqd v{stats.version} (embedded in nsq-gateway)",
        f"start_time {stats.start_time}",
        f"uptime {uptime_s}s",
        "",
        f"Health: {stats.health}",
    ]
    if stats.memory is not UNSET:
        memory: dict[str, Any] = msgspec.structs.asdict(stats.memory)
        lines += ["", "Memory:", *(f"   {key:<25}\t{value}" for key, value in memory.items())]
    lines += ["", "Topics:" if stats.topics else "Topics: None"]
    for topic in stats.topics or ():
        lines += _topic_lines(topic)
    lines += ["", "Producers:" if stats.producers else "Producers: None"]
    lines += [f"   {_producer_line(producer)}" for producer in stats.producers or ()]
    return "\n".join(lines) + "\n"


def _topic_lines(topic: TopicStats) -> list[str]:
    head = (
        f"{_paused(paused=topic.paused)}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} e2e%: "
    )
    lines = ["", head]
    for channel in topic.channels:
        lines.append(
            f"   {_paused(paused=channel.paused)}[{channel.channel_name:<25}] "
            f"depth: {channel.depth:<5} be-depth: {channel.backend_depth:<5} "
            f"inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4} "
            f"re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5} "
            f"msgs: {channel.message_count:<8} e2e%: "
        )
        lines += [f"        {_consumer_line(client)}" for client in channel.clients or ()]
    return lines


def _paused(*, paused: bool) -> str:
    return "*P " if paused else "   "


def _name(client: ClientStats) -> str:
    port = client.remote_address.rpartition(":")[2]
    return f"[{client.version} {f'{client.hostname}:{port} {client.user_agent}':<21}]"


def _consumer_line(client: ClientStats) -> str:
    return (
        f"{_name(client)} state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} "
        f"re-q: {client.requeue_count:<8} msgs: {client.message_count:<8}"
    )


def _producer_line(client: ClientStats) -> str:
    counts = [] if client.pub_counts is UNSET else client.pub_counts
    topics = ",".join(f"{each.topic}={each.count}" for each in counts)
    return f"{_name(client)} msgs: {sum(each.count for each in counts):<8} topics: {topics}"
