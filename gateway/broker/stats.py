"""
Render the response to /stats: topics, channels and clients, in nsqd's JSON and text formats.

Thousands of topics take many turns of the event loop, so channels are shown as of different times;
so does nsqd, which locks them one after the other. Source of the keys, their order and null lists:
nsqd/stats.go, nsqd/http.go. Keys that nsqd omits when empty default to UNSET.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gateway.broker.channel import Channel
from gateway.broker.client import Client
from gateway.broker.latency import LatencyOptions, percentiles
from gateway.broker.topics import Topic, TopicRegistry
from gateway.protocol.wire import NSQD_VERSION

STEP_BYTES = 65_536
"""Output of one step: about half a millisecond of work."""
_ENTRY_BYTES = 64
"""Cost of an entry in addition to its output."""


class Percentile(msgspec.Struct, frozen=True):
    """One percentile of the times from publish to FIN; *value* in ns."""

    quantile: float
    """Above 0; 1 is written as an integer, as by Go."""
    value: int


class Latency(msgspec.Struct, frozen=True):
    """e2e_processing_latency; the percentiles are null if times are not measured."""

    count: int = 0
    percentiles: list[Percentile] | None = None

    def __str__(self) -> str:
        """Return the percentiles as in nsqd's text format."""
        return ", ".join(_nanoseconds(each.value) for each in self.percentiles or ())


class PublishCount(msgspec.Struct, frozen=True):
    """The number of messages that a client published to one topic."""

    topic: str
    count: int


class ClientStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a client: a consumer, listed under its channel, or a producer, at top level."""

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
    authed: bool | UnsetType = UNSET
    auth_identity: str | UnsetType = UNSET
    auth_identity_url: str | UnsetType = UNSET
    pub_counts: list[PublishCount] | UnsetType = UNSET
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelStats(msgspec.Struct, kw_only=True):
    """
    Statistics of one channel.

    *clients* is a list that `StatsEncoder` has encoded already; None if the query excludes clients.
    """

    channel_name: str
    depth: int
    backend_depth: int = 0
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: Raw | None = None
    paused: bool
    e2e_processing_latency: Latency = Latency()


class TopicStats(msgspec.Struct, kw_only=True):
    """Statistics of one topic; *channels* is a list that `StatsEncoder` has encoded already."""

    topic_name: str
    channels: Raw = Raw(b"[]")
    depth: int
    backend_depth: int = 0
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency = Latency()


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Memory usage: in nsqd Go's heap, here the memory of messages; the other values are 0."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


class Stats(msgspec.Struct, kw_only=True):
    """
    The whole response except its lists, which `StatsEncoder.encode_document` inserts.

    *topics* and *producers* say only whether a list belongs there: None is null, as in nsqd.
    """

    version: str = NSQD_VERSION
    health: str = "OK"
    start_time: int
    """Seconds since 1970."""
    topics: Raw | None = None
    memory: MemoryStats | UnsetType = UNSET
    producers: Raw | None = None


class StatsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query parameters of /stats; an empty name selects all topics or channels."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True
    include_mem: bool = True


Parts: TypeAlias = Sequence[bytes]


class StatsEncoder(Protocol):
    """
    An output format: `JsonStats` or `TextStats`.

    Entries are encoded before their list: a method that takes a list gets its entries as bytes.
    """

    def encode_consumer(self, client: ClientStats) -> bytes:
        """Encode a client for the list under its channel."""

    def encode_producer(self, client: ClientStats) -> bytes:
        """Encode a client for the list of producers, which is at the top level."""

    def encode_channel(self, channel: ChannelStats, clients: Parts | None) -> bytes:
        """Encode a channel; *clients* is None if the query excludes them."""

    def encode_topic(self, topic: TopicStats, channels: Parts) -> bytes:
        """Encode a topic."""

    def encode_document(
        self, stats: Stats, topics: Parts | None, producers: Parts | None
    ) -> list[bytes]:
        """Encode the whole response, in pieces; None in place of a list is null in JSON."""


def collect(
    registry: TopicRegistry,
    query: StatsQuery,
    format_: StatsEncoder,
    *,
    start_time: int,
    health: str = "OK",
) -> Generator[None, None, list[bytes]]:
    """
    Generator: collect the statistics, a step per `next()`; return the response in small pieces.

    Topics and channels are sorted by name. The pieces are not joined, because joining megabytes
    would also block the event loop.
    """
    return _StatsCollector(registry, query, format_).collect(start_time, health)


class _StatsCollector:
    """Collect the statistics of a registry that may change between the steps."""

    def __init__(self, registry: TopicRegistry, query: StatsQuery, format_: StatsEncoder) -> None:
        self._registry = registry
        self._query = query
        self._format = format_
        self._left_bytes = STEP_BYTES
        self._latency = registry.context.limits.latency

    def collect(self, start_time: int, health: str) -> Generator[None, None, list[bytes]]:
        """Generator: collect the statistics, a step per `next()`; return the response in pieces."""
        memory = MemoryStats(heap_in_use_bytes=self._registry.context.memory.used_bytes)
        mem = memory if self._query.include_mem else UNSET
        stats = Stats(start_time=start_time, health=health, memory=mem)
        name = self._query.topic
        # As in nsqd, an unknown topic leaves both lists null.
        if name and name not in self._registry.topics:
            return self._format.encode_document(stats, None, None)
        topics = yield from self._topics([name] if name else sorted(self._registry.topics))
        producers: list[bytes] = []
        if self._query.include_clients:
            producers = yield from self._producers()
        # An empty list of producers is null in nsqd, an empty list of clients is not.
        return self._format.encode_document(stats, topics, producers or None)

    def _topics(self, names: Sequence[str]) -> Generator[None, None, list[bytes]]:
        parts: list[bytes] = []
        channel = self._query.channel
        for name in names:
            # None if the topic was deleted after *names* were collected, in another step.
            topic = self._registry.topics.get(name)
            if topic is None or (channel and channel not in topic.channels):
                continue
            stats = _topic_stats(topic, _latency(topic.channels.values(), self._latency))
            channels = yield from self._channels(topic)
            parts.append(self._format.encode_topic(stats, channels))
            if self._is_step_done(parts):
                yield
        return parts

    def _channels(self, topic: Topic) -> Generator[None, None, list[bytes]]:
        parts: list[bytes] = []
        wanted = self._query.channel
        for name in [wanted] if wanted else sorted(topic.channels):
            channel = topic.channels.get(name)
            if channel is None:
                continue
            stats = _channel_stats(channel, _latency([channel], self._latency))
            clients = None
            if self._query.include_clients:
                # Snapshot of the clients, so that the list agrees with client_count.
                consumers = [self._registry.clients[number] for number in channel.consumers]
                clients = yield from self._clients(consumers, self._format.encode_consumer)
            parts.append(self._format.encode_channel(stats, clients))
            if self._is_step_done(parts):
                yield
        return parts

    def _producers(self) -> Generator[None, None, list[bytes]]:
        producers = [client for client in self._registry.clients.values() if client.publish_counts]
        return self._clients(producers, self._format.encode_producer)

    def _clients(
        self, clients: Sequence[Client], encode: Callable[[ClientStats], bytes]
    ) -> Generator[None, None, list[bytes]]:
        parts: list[bytes] = []
        for client in clients:
            parts.append(encode(_client_stats(client, self._query.topic)))
            if self._is_step_done(parts):
                yield
        return parts

    def _is_step_done(self, parts: Parts) -> bool:
        """Charge the last of *parts* to this step; return True if the step must end."""
        self._left_bytes -= _ENTRY_BYTES + len(parts[-1])
        if self._left_bytes > 0:
            return False
        self._left_bytes = STEP_BYTES
        return True


def _latency(channels: Iterable[Channel], options: LatencyOptions) -> Latency:
    """Return the percentiles over all *channels*."""
    counts = [each.latency.counts() for each in channels if each.latency is not None]
    if not counts:
        return Latency()
    count, found = percentiles(counts, options.percentiles)
    return Latency(
        count,
        [
            Percentile(int(quantile) if quantile == 1 else quantile, round(value))
            for quantile, value in found
        ],
    )


def _nanoseconds(value: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value > size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}ns"


def _topic_stats(topic: Topic, latency: Latency) -> TopicStats:
    return TopicStats(
        topic_name=topic.name,
        depth=topic.depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.is_paused,
        e2e_processing_latency=latency,
    )


def _channel_stats(channel: Channel, latency: Latency) -> ChannelStats:
    return ChannelStats(
        channel_name=channel.name,
        depth=channel.depth,
        in_flight_count=channel.in_flight_count,
        deferred_count=channel.deferred_count,
        message_count=channel.message_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(channel.consumers),
        paused=channel.is_paused,
        e2e_processing_latency=latency,
    )


def _client_stats(client: Client, topic: str) -> ClientStats:
    consumer = client.consumer
    # One topic only: nsqd's loop stops after the first match (nsqd/client_v2.go, Stats).
    published = [
        PublishCount(name, count)
        for name, count in client.publish_counts.items()
        if topic in ("", name)
    ][:1]
    tls, granted = client.tls, client.authorization
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
        sample_rate=client.options.sample_rate,
        deflate=client.is_deflate,
        snappy=client.is_snappy,
        user_agent=client.user_agent,
        authed=bool(granted and granted.grants) or UNSET,
        auth_identity=(granted and granted.identity) or UNSET,
        auth_identity_url=(granted and granted.identity_url) or UNSET,
        pub_counts=published or UNSET,
        tls=tls is not None,
        tls_cipher_suite=tls.cipher_suite if tls else "",
        tls_version=tls.version if tls else "",
        # No protocol is negotiated, and Go calls that mutual.
        tls_negotiated_protocol_is_mutual=tls is not None,
    )


class JsonStats:
    """nsqd's JSON format."""

    def encode_consumer(self, client: ClientStats) -> bytes:
        """Return a client as a JSON object."""
        return msgspec.json.encode(client)

    encode_producer = encode_consumer

    def encode_channel(self, channel: ChannelStats, clients: Parts | None) -> bytes:
        """Return a channel as a JSON object; ``clients`` is null if the query excludes them."""
        channel.clients = None if clients is None else Raw(_joined(clients))
        return msgspec.json.encode(channel)

    def encode_topic(self, topic: TopicStats, channels: Parts) -> bytes:
        """Return a topic as a JSON object."""
        topic.channels = Raw(_joined(channels))
        return msgspec.json.encode(topic)

    def encode_document(
        self, stats: Stats, topics: Parts | None, producers: Parts | None
    ) -> list[bytes]:
        """Encode the document, with a placeholder for each list, and insert the lists there."""
        lists = [parts for parts in (topics, producers) if parts is not None]
        stats.topics = None if topics is None else _LIST_PLACEHOLDER
        stats.producers = None if producers is None else _LIST_PLACEHOLDER
        pieces: list[bytes] = []
        # Each piece but the last ends where a list belongs.
        for before, parts in zip(
            msgspec.json.encode(stats).split(b"\0"), [*lists, ()], strict=True
        ):
            pieces.append(before)
            if parts:
                pieces += _separated(parts, b",")
        return pieces


# JSON escapes NUL in strings, so this byte occurs nowhere else in the document.
_LIST_PLACEHOLDER = Raw(b"[\0]")


def _joined(parts: Parts) -> bytes:
    return b"[%b]" % b",".join(parts)


def _separated(parts: Parts, separator: bytes) -> list[bytes]:
    """Return *parts* with *separator* between them."""
    separated = [separator] * (2 * len(parts) - 1)
    separated[::2] = parts
    return separated


class TextStats:
    """
    The text format, with nsqd's layout (nsqd/http.go, printStats; nsqd/client_v2.go, String).

    *now* is in seconds since 1970, and *started* the time of the start as a text.
    """

    def __init__(self, *, now: float, started: str) -> None:
        self._now = now
        self._started = started

    def encode_consumer(self, client: ClientStats) -> bytes:
        """Return the line of a consumer; one that also publishes is shown as a producer."""
        return f"        {self._client_line(client)}".encode()

    def encode_producer(self, client: ClientStats) -> bytes:
        """Return the line of a producer."""
        return f"   {self._client_line(client)}".encode()

    def encode_channel(self, channel: ChannelStats, clients: Parts | None) -> bytes:
        """Return the line of a channel, followed by the lines of its clients."""
        line = (
            f"   {_paused(paused=channel.paused)}[{channel.channel_name:<25}] "
            f"depth: {channel.depth:<5} be-depth: {channel.backend_depth:<5} "
            f"inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4} "
            f"re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5} "
            f"msgs: {channel.message_count:<8} e2e%: {channel.e2e_processing_latency}"
        )
        return b"\n".join([line.encode(), *(clients or ())])

    def encode_topic(self, topic: TopicStats, channels: Parts) -> bytes:
        """Return the line of a topic, and the lines of its channels."""
        line = (
            f"{_paused(paused=topic.paused)}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
            f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
            f"e2e%: {topic.e2e_processing_latency}"
        )
        return b"\n".join([line.encode(), *channels])

    def encode_document(
        self, stats: Stats, topics: Parts | None, producers: Parts | None
    ) -> list[bytes]:
        """Return the whole text, in pieces."""
        lines = [
            f"nsqd v{stats.version} (embedded in nsq-gateway)",
            f"start_time {self._started}",
            f"uptime {_duration(self._now - stats.start_time)}",
            "",
            f"Health: {stats.health}",
        ]
        if stats.memory is not UNSET:
            memory: dict[str, Any] = msgspec.structs.asdict(stats.memory)
            lines += ["", "Memory:", *(f"   {key:<25}\t{value}" for key, value in memory.items())]
        lines += ["", "Topics:" if topics else "Topics: None"]
        # Empty lines between topics, and before the producers.
        spaced = _separated(topics, b"") if topics else []
        parts = ["\n".join(lines).encode(), *spaced]
        parts += [b"", b"Producers:" if producers else b"Producers: None", *(producers or ())]
        return [*_separated(parts, b"\n"), b"\n"]

    def _client_line(self, client: ClientStats) -> str:
        # The address of a Unix socket has no port.
        port = client.remote_address.rpartition(":")[2].replace("@", "")
        name = f"[{client.version} {f'{client.hostname}:{port} {client.user_agent}':<21}]"
        connected = _duration(max(0, int(self._now) - client.connect_ts))
        if client.pub_counts is not UNSET:
            topics = ",".join(f"{each.topic}={each.count}" for each in client.pub_counts)
            total = sum(each.count for each in client.pub_counts)
            return f"{name} msgs: {total:<8} topics: {topics} connected: {connected}"
        return (
            f"{name} state: {client.state} inflt: {client.in_flight_count:<4} "
            f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} "
            f"re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} "
            f"connected: {connected}"
        )


def _duration(seconds: float) -> str:
    """Return a duration of whole seconds or more, as Go writes it; a part of a second follows."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:.9f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _paused(*, paused: bool) -> str:
    return "*P " if paused else "   "
