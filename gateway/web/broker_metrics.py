"""
Metrics of the nsqds for /metrics: depth, in flight, requeued and so on by topic, channel and node.

The statistics of every nsqd are read at an interval while somebody scrapes, and kept as text: a
scrape never waits for an nsqd, except for the first one. Reading and writing the text run in steps,
because a cluster has thousands of channels. Source of the numbers: nsqd/stats.go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from gateway.access.rights import VIEWER_CHANNELS
from gateway.aio import spawn
from gateway.client.nsqd_answers import (
    ChannelCounts,
    NodeAnswer,
    TopicCounts,
    parse_counts,
    stats_request,
)
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import GatewayError, NoNsqdHttpAddress
from gateway.telemetry import METRIC_PREFIX, TextFamily, get_logger

logger = get_logger()

_viewer_channel = re.compile(VIEWER_CHANNELS)
"""Channels of viewers have no series, for each reconnect would leave some behind."""

_Head: TypeAlias = tuple[str, str, Literal["counter", "gauge"]]
"""Name, help and type of a metric family."""

_NODE_FAMILIES: tuple[_Head, ...] = (
    ("broker_up", "1 if the nsqd answered with its statistics, else 0.", "gauge"),
    ("broker_info", "1; labels: version of the nsqd.", "gauge"),
    ("broker_start_time_seconds", "Start of the nsqd, in seconds since 1970.", "gauge"),
)
_TOPIC_FAMILIES: tuple[_Head, ...] = (
    ("broker_topic_depth", "Messages that wait in the topic for its channels.", "gauge"),
    ("broker_topic_backend_depth", "The part of the depth that is on disk.", "gauge"),
    ("broker_topic_paused", "1 if the topic is paused, else 0.", "gauge"),
    ("broker_topic_messages", "Messages published to the topic since nsqd's start.", "counter"),
)
_CHANNEL_FAMILIES: tuple[_Head, ...] = (
    ("broker_channel_depth", "Messages that wait in the channel for a consumer.", "gauge"),
    ("broker_channel_backend_depth", "The part of the depth that is on disk.", "gauge"),
    ("broker_channel_in_flight", "Messages delivered and not yet finished or requeued.", "gauge"),
    ("broker_channel_deferred", "Messages that wait until their time of delivery.", "gauge"),
    ("broker_channel_clients", "Consumers of the channel.", "gauge"),
    ("broker_channel_paused", "1 if the channel is paused, else 0.", "gauge"),
    ("broker_channel_messages", "Messages put into the channel since nsqd's start.", "counter"),
    ("broker_channel_requeued", "Messages requeued since nsqd's start.", "counter"),
    ("broker_channel_timed_out", "Message timeouts since nsqd's start.", "counter"),
)
_AGE: _Head = ("broker_statistics_age_seconds", "Age of the metrics of all nsqds.", "gauge")
_LEFT_OUT: _Head = (
    "broker_topics_left_out",
    "Topics without series, because of --broker-metrics-limit.",
    "gauge",
)

_STEP_ROWS = 64
"""Topics and channels written in one step, which takes a millisecond or less."""


class _Part(NamedTuple):
    """One topic at one nsqd."""

    node: str
    topic: TopicCounts
    channels: list[ChannelCounts]


class _Family:
    """The lines of one metric family, while they are written."""

    def __init__(self, head: _Head) -> None:
        self._name, self._doc, self._kind = head
        self._sample = METRIC_PREFIX + self._name + ("_total" if self._kind == "counter" else "")
        self._lines: list[str] = []

    def add(self, labels: str, value: float) -> None:
        """Add a sample; *labels* is text with braces, or empty."""
        self._lines.append(f"{self._sample}{labels} {value}\n")

    def done(self) -> TextFamily:
        """Return the family as text."""
        return TextFamily(self._name, self._doc, self._kind, "".join(self._lines).encode())


def broker_families(
    answers: Sequence[NodeAnswer], *, max_rows: int
) -> Generator[None, None, list[TextFamily]]:
    """
    Return the metrics of the nsqds from their *answers* to /stats; a generator, to run in steps.

    *max_rows* limits the topics and channels, each counted for every nsqd that has it. Beyond it
    topics are left out, the last by name first, with all their channels, so that no topic has only
    a part of its series.
    """
    nodes = [_Family(family) for family in _NODE_FAMILIES]
    parts: dict[str, list[_Part]] = {}
    for answer in answers:
        counts = yield from parse_counts(answer)
        labels = _labels(node=answer.node)
        nodes[0].add(labels, int(counts is not None))
        if counts is None:
            continue
        nodes[1].add(_labels(node=answer.node, version=counts.version), 1)
        nodes[2].add(labels, counts.start_time)
        for topic, channels_of_topic in counts.topics:
            part = _Part(answer.node, topic, channels_of_topic)
            parts.setdefault(topic.topic_name, []).append(part)
    shown, left_out = _within_limit(parts, max_rows)
    topics, channels = yield from _rows(shown)
    last = _Family(_LEFT_OUT)
    last.add("", left_out)
    written = []
    for family in (*nodes, *topics, *channels, last):
        yield
        written.append(family.done())
    return written


def _within_limit(parts: dict[str, list[_Part]], max_rows: int) -> tuple[list[list[_Part]], int]:
    """Return the parts of each topic, by name, within *max_rows*, and how many are left out."""
    shown: list[list[_Part]] = []
    rows = 0
    for name in sorted(parts):
        rows += sum(1 + len(part.channels) for part in parts[name])
        if rows > max_rows:
            break
        shown.append(parts[name])
    return shown, len(parts) - len(shown)


def _rows(
    shown: Iterable[list[_Part]],
) -> Generator[None, None, tuple[list[_Family], list[_Family]]]:
    """Write the samples of all topics and channels."""
    topics = [_Family(family) for family in _TOPIC_FAMILIES]
    channels = [_Family(family) for family in _CHANNEL_FAMILIES]
    rows = 0
    for part in (part for of_topic in shown for part in of_topic):
        topic = part.topic
        labels = _labels(topic=topic.topic_name, node=part.node)
        _add_row(topics, labels, _topic_counts(topic))
        for channel in part.channels:
            rows += 1
            if rows % _STEP_ROWS == 0:
                yield
            if _viewer_channel.match(channel.channel_name):
                continue
            labels = _labels(topic=topic.topic_name, channel=channel.channel_name, node=part.node)
            _add_row(channels, labels, _channel_counts(channel))
        rows += 1
        if rows % _STEP_ROWS == 0:
            yield
    return topics, channels


def _topic_counts(topic: TopicCounts) -> tuple[int, ...]:
    """Return the values of `_TOPIC_FAMILIES`."""
    return topic.depth, topic.backend_depth, int(topic.paused), topic.message_count


def _channel_counts(channel: ChannelCounts) -> tuple[int, ...]:
    """Return the values of `_CHANNEL_FAMILIES`."""
    return (
        channel.depth,
        channel.backend_depth,
        channel.in_flight_count,
        channel.deferred_count,
        channel.client_count,
        int(channel.paused),
        channel.message_count,
        channel.requeue_count,
        channel.timeout_count,
    )


def _add_row(families: Iterable[_Family], labels: str, counts: Iterable[int]) -> None:
    for family, value in zip(families, counts, strict=True):
        family.add(labels, value)


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _labels(**values: str) -> str:
    """Return labels with braces, as in both text formats."""
    each = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())
    return "{" + ",".join(each) + "}"


def statistics_age(age_s: float) -> TextFamily:
    """Return the metric that tells the age of all others."""
    family = _Family(_AGE)
    family.add("", round(age_s, 3))
    return family.done()


@dataclass(frozen=True, kw_only=True)
class BrokerMetricsOptions:
    """How often to read the statistics of the nsqds, and how much to export."""

    interval_s: float = 15.0
    """Time from one reading to the next."""
    max_rows: int = 10_000
    """See `broker_families`."""
    idle_s: float = 300.0
    """Without a scrape for this time, the nsqds are not asked until the next one."""
    first_wait_s: float = 2.0
    """Maximum time that a scrape waits for the first reading; then it has no metrics of nsqds."""


class BrokerMetrics:
    """The metrics of all nsqds. Call `start` first, and `stop` last."""

    def __init__(self, options: BrokerMetricsOptions) -> None:
        self._options = options
        self._families: Sequence[TextFamily] = ()
        self._read_at = 0.0
        self._scraped_at = 0.0
        self._scraped = asyncio.Event()
        """Set by a scrape, to end a pause."""
        self._is_read = asyncio.Event()
        """Set once `_families` is of a reading since the last pause."""
        self._task: asyncio.Task[None] | None = None

    def start(self, http: NsqdHttp) -> None:
        """Read the statistics of the nsqds known to *http* from now on; stop before it."""
        self._task = spawn("read the statistics of the nsqds", self._read_forever(http))

    async def stop(self) -> None:
        """Stop reading; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def families(self) -> Sequence[TextFamily]:
        """Return the metrics of the last reading, for a scrape, and continue to read."""
        if self._task is None:
            return ()
        loop = asyncio.get_running_loop()
        self._scraped_at = loop.time()
        self._scraped.set()
        try:
            async with asyncio.timeout(self._options.first_wait_s):
                await self._is_read.wait()
        except TimeoutError:
            return ()
        return [*self._families, statistics_age(loop.time() - self._read_at)]

    async def _read_forever(self, http: NsqdHttp) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - self._scraped_at > self._options.idle_s or not self._scraped.is_set():
                # Old numbers would look like new ones to the scrape that ends the pause.
                self._families = ()
                self._is_read.clear()
                self._scraped.clear()
                await self._scraped.wait()
            began_at = loop.time()
            try:
                self._families = await self._read(http)
            except Exception:
                # A bug: without a next reading, the numbers would stay as they are for ever.
                logger.exception("metrics of the nsqds failed")
                self._families = ()
            self._read_at = began_at
            self._is_read.set()
            await asyncio.sleep(began_at + self._options.interval_s - loop.time())

    async def _read(self, http: NsqdHttp) -> Sequence[TextFamily]:
        try:
            return await http.request_and_parse(stats_request(), self._parse)
        except NoNsqdHttpAddress:
            return ()
        except GatewayError as error:
            logger.warning("statistics of the nsqds not read", reason=str(error))
            return ()

    def _parse(self, answers: Sequence[NodeAnswer]) -> Generator[None, None, list[TextFamily]]:
        return broker_families(answers, max_rows=self._options.max_rows)
