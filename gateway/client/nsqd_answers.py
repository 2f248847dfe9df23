"""
PURE. Interpret the HTTP answers of nsqd and nsqlookupd.

A status is not enough: only a 404 with nsqd's error code means that a topic or a channel does not
exist, because a proxy may answer 404 as well.

Source: nsqd/http.go, doStats and doInfo; nsqd/stats.go.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec

from gateway.errors import InvalidRequest, PartialFailure
from gateway.protocol.http_api import status_of

HTTP_OK = 200
_NOT_FOUND = ("CHANNEL_NOT_FOUND", "TOPIC_NOT_FOUND")
"""By precedence: if one nsqd has the topic, it is the channel that is missing."""
_MAX_TOKEN_LENGTH = 100


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """An HTTP request to a node, nsqd or nsqlookupd."""

    method: str
    path: str
    query: Sequence[tuple[str, bytes]] = ()
    """Names and values before percent-encoding; values may contain any byte."""

    @property
    def target(self) -> str:
        """Request target: path and encoded query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


@dataclass(frozen=True, kw_only=True)
class NodeResponse:
    """HTTP answer of a node."""

    node: str
    """HTTP host:port."""
    status: int
    body: bytes = field(repr=False)
    date: str = field(default="", compare=False, repr=False)
    """Date header: when the node answered, by its own clock."""

    @property
    def error_code(self) -> str:
        """Error code in ``message``, such as TOPIC_NOT_FOUND; empty without one."""
        try:
            return _error_bodies.decode(self.body).message
        except (ValueError, RecursionError):
            return ""


@dataclass(frozen=True, kw_only=True)
class NodeUnreachable:
    """A node without a usable answer: no connection, no answer in time, or too many bytes."""

    node: str
    reason: str


NodeAnswer: TypeAlias = NodeResponse | NodeUnreachable


class _ErrorBody(msgspec.Struct):
    message: str


_error_bodies = msgspec.json.Decoder(_ErrorBody)


def is_ok(answer: NodeAnswer) -> bool:
    """Return whether the node answered 200."""
    return isinstance(answer, NodeResponse) and answer.status == HTTP_OK


def describe_failure(answer: NodeAnswer) -> str:
    """Describe why a request to a node failed, without the node's name."""
    if isinstance(answer, NodeUnreachable):
        return answer.reason
    return f"answered {answer.status} {answer.error_code[:_MAX_TOKEN_LENGTH]}".rstrip()


def raise_for_results(nsqds: Sequence[NodeAnswer], lookupds: Sequence[NodeAnswer] = ()) -> None:
    """
    Raise an error if an nsqd or nsqlookupd failed, or if no nsqd has the topic or channel.

    Only nsqds show the latter: nsqlookupd answers 200 even to the deletion of an unknown topic.

    Raises:
        PartialFailure: At least one nsqd or nsqlookupd failed or was not reached.
        InvalidRequest: All nsqds answered TOPIC_NOT_FOUND or CHANNEL_NOT_FOUND.
    """
    failures = [
        *_failures("nsqd", nsqds),
        *_failures("nsqlookupd", lookupds),
    ]
    if failures:
        raise PartialFailure(failures)
    if any(map(is_ok, nsqds)):
        return
    # All nsqds lack the topic or the channel: any other answer is a failure, raised above.
    tokens = {answer.error_code for answer in nsqds if isinstance(answer, NodeResponse)}
    token = next(each for each in _NOT_FOUND if each in tokens)
    what = "the channel" if token == _NOT_FOUND[0] else "the topic"
    asked = "1 nsqd was" if len(nsqds) == 1 else f"{len(nsqds)} nsqds were"
    raise InvalidRequest(token, f"no nsqd has {what}; {asked} asked")


def _failures(kind: str, answers: Iterable[NodeAnswer]) -> Iterable[str]:
    """Yield a line for each failure; a missing topic or channel is none."""
    for answer in answers:
        if not (is_ok(answer) or _is_missing(answer)):
            yield f"{kind} {answer.node}: {describe_failure(answer)}"


def _is_missing(answer: NodeAnswer) -> bool:
    # Both code and status: a proxy may answer 404 without knowing the topic.
    if not isinstance(answer, NodeResponse) or answer.error_code not in _NOT_FOUND:
        return False
    return answer.status == status_of(answer.error_code)


T = TypeVar("T")

INFO = NodeRequest(method="GET", path="/info")


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A count as nsqd has it, 64 bits; a damaged disk queue may report a negative depth."""
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
"""The name of a topic or a channel."""

_FREE_VALUES = 10_000
_VALUE_BYTES = 8
"""Average size of a value in an answer at least; in nsqd's it is above 12."""


def check_density(body: bytes, value_bytes: int = _VALUE_BYTES) -> None:
    """
    Check that *body*, which is JSON, does not consist of tiny values; raises ValueError.

    32 MB of ``0,`` would become a gigabyte of objects in one step.
    """
    values = body.count(b",")
    if values > _FREE_VALUES + len(body) // value_bytes:
        raise ValueError(f"it has {values} values in {len(body)} bytes, which nsqd never sends")


class NsqdInfo(msgspec.Struct, frozen=True):
    """The fields of /info that the gateway uses."""

    tcp_port: int
    start_time: int
    """Seconds since 1970, by nsqd's clock."""


class NsqdChannelStats(msgspec.Struct, frozen=True):
    """One channel in /stats."""

    channel_name: str
    paused: bool = False


class NsqdTopicStats(msgspec.Struct, frozen=True):
    """One topic in /stats; Go encodes a nil list as null."""

    topic_name: str
    channels: list[NsqdChannelStats] | None = None
    paused: bool = False


class ChannelCounts(msgspec.Struct, gc=False, kw_only=True):
    """The counts of one channel in /stats: messages, but for *client_count*."""

    channel_name: Name
    depth: Count
    backend_depth: Count
    in_flight_count: Count
    deferred_count: Count
    message_count: Count
    requeue_count: Count
    timeout_count: Count
    client_count: Count = 0
    paused: bool = False


class TopicCounts(msgspec.Struct, gc=False, kw_only=True):
    """The counts of one topic in /stats, in messages, without its channels."""

    topic_name: Name
    depth: Count
    backend_depth: Count
    message_count: Count
    paused: bool = False


class _TopicEntry(TopicCounts, kw_only=True):
    """A topic with undecoded channels; Go encodes a nil list as null."""

    channels: list[msgspec.Raw] | None


class ProducerCount(msgspec.Struct):
    """How many messages a client has published to one topic."""

    topic: str
    count: Count


class ProducerClient(msgspec.Struct, kw_only=True):
    """A client in /stats that has published over its connection."""

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    pub_counts: list[ProducerCount] | None = None


class _CountsAnswer(msgspec.Struct):
    """The statistics of one nsqd, with undecoded topics; *producers* only with clients."""

    version: str
    start_time: int
    topics: list[msgspec.Raw] | None
    health: str = ""
    producers: list[ProducerClient] | None = None


class TopicWithChannels(NamedTuple):
    """The counts of a topic and its channels at one nsqd."""

    topic: TopicCounts
    channels: list[ChannelCounts]


class NsqdCounts(NamedTuple):
    """The statistics of one nsqd."""

    version: str
    health: str
    """OK, or nsqd's text of the problem."""
    start_time: int
    """Seconds since 1970, by nsqd's clock."""
    topics: list[TopicWithChannels]
    producers: list[ProducerClient]
    """Clients that have published; empty without include_clients."""


Channel: TypeAlias = tuple[str, str]
"""Topic and channel."""


class NsqdStats(msgspec.Struct, frozen=True):
    """The fields of /stats that the gateway uses."""

    start_time: int
    """Seconds since 1970, by nsqd's clock."""
    topics: list[NsqdTopicStats] | None = None

    def channels(self) -> dict[Channel, bool]:
        """Return for each (topic, channel) whether the channel or its topic is paused."""
        return {
            (topic.topic_name, channel.channel_name): topic.paused or channel.paused
            for topic in self.topics or ()
            for channel in topic.channels or ()
        }


class _UndecodedStats(msgspec.Struct, frozen=True):
    """`NsqdStats` with undecoded topics, so that they can be decoded in steps."""

    start_time: int
    topics: list[msgspec.Raw] | None = None


_STEP_ENTRIES = 256
"""Topics and channels decoded in one step, which takes half a millisecond or less."""
_infos = msgspec.json.Decoder(NsqdInfo)
_undecoded_stats = msgspec.json.Decoder(_UndecodedStats)
_topics = msgspec.json.Decoder(NsqdTopicStats)
_stats = msgspec.json.Decoder(NsqdStats)
_counts = msgspec.json.Decoder(_CountsAnswer)
_topic_entries = msgspec.json.Decoder(_TopicEntry)
_channel_counts = msgspec.json.Decoder(ChannelCounts)


def stats_request(topic: str | None = None, *, include_clients: bool = False) -> NodeRequest:
    """Return the /stats request for all channels, or those of *topic*."""
    clients = b"true" if include_clients else b"false"
    query = [("format", b"json"), ("include_clients", clients), ("include_mem", b"false")]
    if topic is not None:
        query.append(("topic", topic.encode()))
    return NodeRequest(method="GET", path="/stats", query=query)


def parse_info(answer: NodeAnswer) -> NsqdInfo | None:
    """Decode the answer to `INFO`; return None if it is no 200, or not a document of nsqd."""
    return _decode(_infos, answer)


def parse_stats(answer: NodeAnswer) -> NsqdStats | None:
    """Decode the answer to a `stats_request`; return None as `parse_info` does."""
    return _decode(_stats, answer)


def parse_pauses(
    answer: NodeAnswer, channels: Container[Channel]
) -> Generator[None, None, dict[Channel, bool] | None]:
    """
    Decode the pauses of *channels* from the answer to a `stats_request`; yield between steps.

    Returns what `NsqdStats.channels` returns, only for *channels*; None as `parse_info` does.
    """
    # In steps: the answer of an nsqd with thousands of topics would block the event loop.
    stats = _decode(_undecoded_stats, answer)
    if stats is None:
        return None
    pauses: dict[Channel, bool] = {}
    for number, raw in enumerate(stats.topics or ()):
        if number % _STEP_ENTRIES == 0:
            yield
        try:
            topic = _topics.decode(raw)
        except (ValueError, RecursionError):
            return None
        of_topic = NsqdStats(stats.start_time, [topic]).channels()
        pauses |= {
            channel: is_paused for channel, is_paused in of_topic.items() if channel in channels
        }
    return pauses


def parse_counts(answer: NodeAnswer) -> Generator[None, None, NsqdCounts | None]:
    """Decode the answer to a `stats_request`, yield between steps; None as `parse_info` does."""
    found = _decode(_counts, answer)
    if found is None:
        return None
    topics: list[TopicWithChannels] = []
    entries = 0
    try:
        for raw_topic in found.topics or ():
            topic = _topic_entries.decode(raw_topic)
            channels: list[ChannelCounts] = []
            topics.append(TopicWithChannels(topic, channels))
            entries += 1
            for raw_channel in topic.channels or ():
                channels.append(_channel_counts.decode(raw_channel))
                entries += 1
                if entries % _STEP_ENTRIES == 0:
                    yield
            topic.channels = None  # so that the text of the answer need not stay in memory
            if entries % _STEP_ENTRIES == 0:
                yield
    except (ValueError, RecursionError):
        return None
    return NsqdCounts(
        found.version[:_MAX_TOKEN_LENGTH],
        found.health,
        found.start_time,
        topics,
        found.producers or [],
    )


def _decode(decoder: msgspec.json.Decoder[T], answer: NodeAnswer) -> T | None:
    if not isinstance(answer, NodeResponse) or not is_ok(answer):
        return None
    try:
        check_density(answer.body)
        return decoder.decode(answer.body)
    except (ValueError, RecursionError):  # RecursionError: too deeply nested
        return None
