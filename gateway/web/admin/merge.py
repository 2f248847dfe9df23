"""
PURE. Merge /stats and /info of several nsqds into one response of nsqd's format.

"Node" means one of these nsqds, here and in the response. Members of nsqd's response keep their
meaning as far as several nodes allow; the additional member ``nodes`` has each node's own values.
Members that this module does not know stay as they are. Merging /stats runs in steps, so that it
does not block the event loop: there may be twenty thousand topics.
Formats: nsqd/http.go, nsqd/stats.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from gateway.client.nsqd_answers import (
    Count,
    Name,
    NodeAnswer,
    NodeResponse,
    check_density,
    describe_failure,
    is_ok,
)
from gateway.errors import PartialFailure

T = TypeVar("T")
_Fields: TypeAlias = dict[str, msgspec.Raw]
"""The undecoded members of a JSON object."""

_OF_A_NODE = ("version", "health", "start_time", "memory")
"""Members of /stats that describe the nsqd itself, not its topics."""
_SMALLEST = (
    "max_heartbeat_interval",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "max_deflate_level",
)
"""Limits in /info; the merged response has the lowest value of any node."""
_STEP_BYTES = 131_072
"""Bytes of entries decoded or joined per step, which takes about half a millisecond."""
_EACH_BYTES = 256
"""What an entry counts towards `_STEP_BYTES` in addition to its length: the cost of its objects."""
_NUMBERS = re.compile(r"\d+")
_HEALTHY = "OK"


_Version: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]


class _NsqdStats(msgspec.Struct):
    """The members of an nsqd's /stats that are decoded; nsqd sends null for an empty list."""

    version: _Version
    health: str
    start_time: int
    topics: list[msgspec.Raw] | None
    producers: list[msgspec.Raw] | None = None


class _Info(msgspec.Struct):
    """The members of an nsqd's /info that are decoded; other versions of nsqd may lack some."""

    version: _Version
    max_heartbeat_interval: int | None = None
    max_output_buffer_size: int | None = None
    max_output_buffer_timeout: int | None = None
    max_deflate_level: int | None = None


class _CheckedChannel(msgspec.Struct, gc=False):
    """The members of a channel that others calculate with; versions of nsqd may lack some."""

    channel_name: Name = ""
    depth: Count = 0
    backend_depth: Count = 0
    in_flight_count: Count = 0
    deferred_count: Count = 0
    message_count: Count = 0
    requeue_count: Count = 0
    timeout_count: Count = 0
    client_count: Count = 0


class _CheckedTopic(msgspec.Struct, gc=False):
    """The members of a topic that others calculate with."""

    topic_name: Name = ""
    depth: Count = 0
    backend_depth: Count = 0
    message_count: Count = 0
    channels: list[_CheckedChannel] | None = None


_fields = msgspec.json.Decoder(_Fields)
_topics = msgspec.json.Decoder(_CheckedTopic)
_PLACEHOLDER = msgspec.Raw(b"[\0]")
"""
Stands for a list until `_filled` puts the list in its place.

The NUL marks the place: it occurs nowhere else, since JSON encodes NUL in strings as ``\\u0000``.
"""
_stats = msgspec.json.Decoder(_NsqdStats)


class GatewayIdentity(NamedTuple):
    """The members of /info that describe the gateway."""

    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    start_time: int
    """Seconds since 1970."""


class _Report(NamedTuple):
    """The valid response of one node."""

    node: str
    """The address of the nsqd."""
    fields: _Fields
    """All members of the response, undecoded."""
    read: Any
    """The decoded members, as `_NsqdStats` or `_Info`."""
    topics: list[_Entry] | None = None
    """Only for /stats: sorted by name; None if nsqd sent null."""
    producers: list[_Entry] | None = None


class _Entry(NamedTuple):
    """A topic, or a client that publishes, in the /stats of one node."""

    name: str
    """The name of the topic; empty for a producer."""
    node: str
    text: bytes
    """The entry as JSON, with the member ``node`` added."""


def merge_stats(
    answers: Sequence[NodeAnswer], *, is_shown: Callable[[str], bool] | None = None
) -> Generator[None, None, list[bytes]]:
    """
    Merge the nsqds' responses to /stats, in JSON; a generator that yields between steps.

    It returns the merged JSON in pieces. Topics are sorted by name, then node; each has the member
    ``node``. For one node, the result is its own response plus ``node`` and ``nodes``. For several,
    ``version`` is the lowest, ``start_time`` the earliest, ``health`` lists all problems, and
    ``memory`` is omitted.

    With *is_shown*, only the topics for which it returns True remain, and no producers, which may
    publish to any topic.

    Raises:
        PartialFailure: No node sent a valid response.
    """
    reports, errors = yield from _read_stats(answers, is_shown)
    merged: dict[str, Any] = {
        "version": _lowest_version(reports),
        "health": _health(reports, errors),
        "start_time": min(report.read.start_time for report in reports),
    }
    if len(answers) == 1:
        merged = dict(reports[0].fields)
    of_nodes = {
        report.node: {key: report.fields[key] for key in _OF_A_NODE if key in report.fields}
        for report in reports
    }
    topics = yield from _joined(
        [report.topics for report in reports], partial(merge, key=itemgetter(0, 1))
    )
    producers = yield from _joined([report.producers for report in reports], chain)
    merged["topics"] = None if topics is None else _PLACEHOLDER
    merged["producers"] = None if producers is None else _PLACEHOLDER
    merged["nodes"] = _nodes(of_nodes, errors)
    return _filled(msgspec.json.encode(merged), [topics, producers])


def _filled(document: bytes, lists: Sequence[list[bytes] | None]) -> list[bytes]:
    """
    Return *document* in pieces, with its placeholders replaced by *lists*.

    A list of None has no placeholder.
    """
    # Not one string: joining megabytes would block the event loop.
    filling = [of_list for of_list in lists if of_list is not None]
    pieces: list[bytes] = []
    for before, of_list in zip(document.split(b"\0"), [*filling, []], strict=True):
        pieces += [before, *of_list]
    return pieces


def merge_texts(answers: Sequence[NodeAnswer]) -> bytes:
    """
    Merge the nsqds' responses to /stats, in nsqd's text format.

    The response of a single nsqd stays as it is. Of several, each follows a line with its address.

    Raises:
        PartialFailure: No node responded.
    """
    _require_one(
        answers, {answer.node: describe_failure(answer) for answer in answers if not is_ok(answer)}
    )
    texts = []
    for answer in answers:
        if isinstance(answer, NodeResponse) and is_ok(answer):
            if len(answers) == 1:
                return answer.body
            texts.append(f"node {answer.node}\n".encode() + answer.body)
        else:
            texts.append(f"node {answer.node}\nerror: {describe_failure(answer)}\n".encode())
    return b"\n".join(texts)


def merge_infos(answers: Sequence[NodeAnswer], identity: GatewayIdentity) -> bytes:
    """
    Merge the nsqds' responses to /info, and add what *identity* says about the gateway.

    ``version`` and the limits are the lowest of all nodes, which every node supports.

    Raises:
        PartialFailure: No node sent a valid response.
    """
    reports, errors = _read(answers, msgspec.json.Decoder(_Info))
    merged: dict[str, Any] = {
        "version": _lowest_version(reports),
        "broadcast_address": identity.broadcast_address,
        "hostname": identity.hostname,
        "http_port": identity.http_port,
        "tcp_port": -1,  # as in nsqd without a TCP listener
        "start_time": identity.start_time,
    }
    for key in _SMALLEST:
        values = [getattr(report.read, key) for report in reports]
        known = [value for value in values if value is not None]
        if known:
            merged[key] = min(known)
    merged["gateway"] = identity.version
    merged["nodes"] = _nodes({report.node: report.fields for report in reports}, errors)
    return msgspec.json.encode(merged)


def _read_stats(
    answers: Sequence[NodeAnswer], is_shown: Callable[[str], bool] | None
) -> Generator[None, None, tuple[list[_Report], dict[str, str]]]:
    """Do what `_read` does for /stats, and decode its topics and producers; yield between steps."""
    reports = []
    errors = {}
    for answer in answers:
        if not isinstance(answer, NodeResponse) or not is_ok(answer):
            errors[answer.node] = describe_failure(answer)
            continue
        yield
        try:
            check_density(answer.body)
            answer.body.decode()  # raises ValueError: undecoded members must be UTF-8, too
            read = _stats.decode(answer.body)
            yield
            report = _Report(answer.node, _fields.decode(answer.body), read)
            yield
            # These empty the lists of `read`, so that their memory is freed step by step.
            topics = yield from _entries(report.node, report.read.topics, _name_of)
            producers = yield from _entries(report.node, report.read.producers, _no_name)
            if is_shown is not None:
                topics = topics and [entry for entry in topics if is_shown(entry.name)]
                producers = producers and []
        except (ValueError, RecursionError) as error:
            errors[answer.node] = _unreadable(error)
        else:
            if topics is not None:
                # `merge_stats` merges the sorted lists of all nodes.
                topics.sort(key=itemgetter(0))
            reports.append(report._replace(topics=topics, producers=producers))
    _require_one(answers, errors)
    return reports, errors


def _entries(
    node: str, raws: list[msgspec.Raw] | None, name_of: Callable[[msgspec.Raw], str]
) -> Generator[None, None, list[_Entry] | None]:
    """Decode *raws*, emptying the list, and add the member ``node``; raises ValueError."""
    if raws is None:
        return None
    entries = []
    left_bytes = _STEP_BYTES
    for raw in _consume(raws):
        fields: dict[str, Any] = _fields.decode(raw)
        name = name_of(raw)
        fields["node"] = node
        text = msgspec.json.encode(fields)
        entries.append(_Entry(name, node, text))
        left_bytes -= _EACH_BYTES + len(text)
        if left_bytes <= 0:
            yield
            left_bytes = _STEP_BYTES
    return entries


def _joined(
    lists: Sequence[list[_Entry] | None], in_order: Callable[..., Iterable[_Entry]]
) -> Generator[None, None, list[bytes] | None]:
    """
    Join the entries of all nodes into the JSON of one list, in pieces; None if all *lists* are.

    *in_order* takes an iterator for each list, and returns one of all entries. The lists are
    emptied. Yield between steps.
    """
    if all(entries is None for entries in lists):
        return None
    pieces: list[bytes] = []
    piece: list[bytes] = []
    left_bytes = _STEP_BYTES
    for entry in in_order(*(_consume(entries) for entries in lists if entries is not None)):
        piece.append(entry.text)
        left_bytes -= _EACH_BYTES + len(entry.text)
        if left_bytes <= 0:
            pieces += [b",".join(piece), b","]
            piece = []
            yield
            left_bytes = _STEP_BYTES
    if piece:
        pieces.append(b",".join(piece))
    elif pieces:
        pieces.pop()
    return pieces


def _consume(entries: list[T]) -> Iterator[T]:
    """
    Yield and remove each entry, from the first to the last.

    Freeing all of them at once at the end would block the event loop.
    """
    # pop() is quick only at the end of a list.
    entries.reverse()
    while entries:
        yield entries.pop()


def _read(
    answers: Sequence[NodeAnswer], decoder: msgspec.json.Decoder[Any]
) -> tuple[list[_Report], dict[str, str]]:
    """
    Decode the responses; return the valid ones as reports, and the errors of all other nodes.

    Raises:
        PartialFailure: No node sent a valid response.
    """
    reports = []
    errors = {}
    for answer in answers:
        if not isinstance(answer, NodeResponse) or not is_ok(answer):
            errors[answer.node] = describe_failure(answer)
            continue
        try:
            answer.body.decode()  # as in `_read_stats`
            read = decoder.decode(answer.body)
            reports.append(_Report(answer.node, _fields.decode(answer.body), read))
        except (ValueError, RecursionError) as error:
            errors[answer.node] = _unreadable(error)
    _require_one(answers, errors)
    return reports, errors


def _unreadable(error: Exception) -> str:
    return f"its response is invalid: {error}"


def _require_one(answers: Sequence[NodeAnswer], errors: Mapping[str, str]) -> None:
    if len(errors) == len(answers):
        raise PartialFailure([f"nsqd {node}: {error}" for node, error in errors.items()])


def _name_of(topic: msgspec.Raw) -> str:
    """Return the name of *topic*; raises ValueError if a name or a count in it is invalid."""
    return _topics.decode(topic).topic_name


def _no_name(_producer: msgspec.Raw) -> str:
    return ""


def _nodes(reports: Mapping[str, _Fields], errors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the member ``nodes``: an object per node, by address, with its values or its error."""
    entries: list[dict[str, Any]] = [{**fields, "node": node} for node, fields in reports.items()]
    entries += [{"error": error, "node": node} for node, error in errors.items()]
    return sorted(entries, key=lambda entry: entry["node"])


def _lowest_version(reports: Sequence[_Report]) -> str:
    # By number, since as text 1.10 would be lower than 1.9.
    versions: list[str] = [report.read.version for report in reports]
    return min(versions, key=lambda version: [int(part) for part in _NUMBERS.findall(version)])


def _health(reports: Sequence[_Report], errors: Mapping[str, str]) -> str:
    """Return OK, or the problems of all nodes in the format of nsqd's member ``health``."""
    wrong = {report.node: report.read.health for report in reports}
    wrong = {node: health for node, health in wrong.items() if health != _HEALTHY} | dict(errors)
    if not wrong:
        return _HEALTHY
    return "NOK - " + "; ".join(f"{node}: {wrong[node]}" for node in sorted(wrong))
