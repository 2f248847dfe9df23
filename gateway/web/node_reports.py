"""
PURE. The reports of several nsqds as one: /stats and /info in nsqd's own shape, nodes named.

What a program that reads nsqd's answer looks for is there, with the same meaning as far as it has
one for several nodes; each node's own values stand in ``nodes``. Members that we do not know pass
through. Shapes: nsqd/http.go, nsqd/stats.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from gateway.client.node_answers import NodeAnswer, Reached, is_done, why_not
from gateway.errors import PartlyDone

_Fields: TypeAlias = dict[str, msgspec.Raw]
"""The members of an object, as they came."""

_OF_A_NODE = ("version", "health", "start_time", "memory")
"""What /stats tells of the node itself."""
_SMALLEST = (
    "max_heartbeat_interval",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "max_deflate_level",
)
_NUMBERS = re.compile(r"\d+")
_HEALTHY = "OK"


_Version: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]


class _Stats(msgspec.Struct):
    """What is looked at of /stats; nsqd says null where it has none."""

    version: _Version
    health: str
    start_time: int
    topics: list[_Fields] | None
    producers: list[_Fields] | None = None


class _Info(msgspec.Struct):
    """What is looked at of /info; an nsqd of another version may have less."""

    version: _Version
    max_heartbeat_interval: int | None = None
    max_output_buffer_size: int | None = None
    max_output_buffer_timeout: int | None = None
    max_deflate_level: int | None = None


_fields = msgspec.json.Decoder(_Fields)
_names = msgspec.json.Decoder(str)


class Identity(NamedTuple):
    """What the gateway says of itself in /info."""

    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    start_time: int
    """Seconds since 1970."""


class _Report(NamedTuple):
    """A node's answer that could be read."""

    node: str
    fields: _Fields
    read: Any


def merge_stats(answers: Sequence[NodeAnswer]) -> bytes:
    """
    Return /stats in JSON: all topics, by name and then by node, with ``node`` on each.

    Of one node that is its own answer, with ``node`` and ``nodes`` beside. Of several: the lowest
    version, the earliest start, what is wrong with any as health, and no memory.

    Raises:
        PartlyDone: Not one answer can be used.
    """
    reports, errors = _read(answers, msgspec.json.Decoder(_Stats))
    topics = _tagged(reports, "topics")
    if topics is not None:
        topics.sort(key=_name_and_node)
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
    merged["topics"] = topics
    merged["producers"] = _tagged(reports, "producers")
    merged["nodes"] = _nodes(of_nodes, errors)
    return msgspec.json.encode(merged)


def merge_texts(answers: Sequence[NodeAnswer]) -> bytes:
    """
    Return /stats for a person: a node's own text, of several each below a line that names it.

    Raises:
        PartlyDone: Not one node answered.
    """
    _require_one(
        answers, {answer.node: why_not(answer) for answer in answers if not is_done(answer)}
    )
    texts = []
    for answer in answers:
        if isinstance(answer, Reached) and is_done(answer):
            if len(answers) == 1:
                return answer.body
            texts.append(f"node {answer.node}\n".encode() + answer.body)
        else:
            texts.append(f"node {answer.node}\nerror: {why_not(answer)}\n".encode())
    return b"\n".join(texts)


def merge_infos(answers: Sequence[NodeAnswer], identity: Identity) -> bytes:
    """
    Return /info of the gateway: what holds on every node, so the lowest version and limits.

    Raises:
        PartlyDone: Not one answer can be used.
    """
    reports, errors = _read(answers, msgspec.json.Decoder(_Info))
    merged: dict[str, Any] = {
        "version": _lowest_version(reports),
        "broadcast_address": identity.broadcast_address,
        "hostname": identity.hostname,
        "http_port": identity.http_port,
        "tcp_port": -1,  # as nsqd says it where nobody can connect
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


def _read(
    answers: Sequence[NodeAnswer], decoder: msgspec.json.Decoder[Any]
) -> tuple[list[_Report], dict[str, str]]:
    """Return the reports, at least one, and why each other node has none; raises PartlyDone."""
    reports = []
    errors = {}
    for answer in answers:
        if not isinstance(answer, Reached) or not is_done(answer):
            errors[answer.node] = why_not(answer)
            continue
        try:
            answer.body.decode()  # what is handed on unread is text at least
            read = decoder.decode(answer.body)
            for topic in getattr(read, "topics", None) or ():
                _name_of(topic)
            reports.append(_Report(answer.node, _fields.decode(answer.body), read))
        except (ValueError, RecursionError) as error:
            errors[answer.node] = f"its answer cannot be read: {error}"
    _require_one(answers, errors)
    return reports, errors


def _require_one(answers: Sequence[NodeAnswer], errors: Mapping[str, str]) -> None:
    if len(errors) == len(answers):
        raise PartlyDone([f"nsqd {node}: {error}" for node, error in errors.items()])


def _tagged(reports: Sequence[_Report], key: str) -> list[dict[str, Any]] | None:
    """Return what each report lists under *key*, its node added; None where all say null."""
    lists = [(report.node, getattr(report.read, key)) for report in reports]
    if all(entries is None for _, entries in lists):
        return None
    return [{**entry, "node": node} for node, entries in lists for entry in entries or ()]


def _name_and_node(topic: dict[str, Any]) -> tuple[str, str]:
    return _name_of(topic), topic["node"]


def _name_of(topic: Mapping[str, Any]) -> str:
    name = topic.get("topic_name")
    return "" if name is None else _names.decode(name)


def _nodes(reports: Mapping[str, _Fields], errors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return an entry for each node, in order of address: what it says, or why it does not."""
    entries: list[dict[str, Any]] = [{**fields, "node": node} for node, fields in reports.items()]
    entries += [{"error": error, "node": node} for node, error in errors.items()]
    return sorted(entries, key=lambda entry: entry["node"])


def _lowest_version(reports: Sequence[_Report]) -> str:
    versions: list[str] = [report.read.version for report in reports]
    return min(versions, key=lambda version: [int(part) for part in _NUMBERS.findall(version)])


def _health(reports: Sequence[_Report], errors: Mapping[str, str]) -> str:
    """Return what a monitor looks for: OK, or what is wrong where."""
    wrong = {report.node: report.read.health for report in reports}
    wrong = {node: health for node, health in wrong.items() if health != _HEALTHY} | dict(errors)
    if not wrong:
        return _HEALTHY
    return "NOK - " + "; ".join(f"{node}: {wrong[node]}" for node in sorted(wrong))
