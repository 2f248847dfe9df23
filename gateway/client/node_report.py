"""
PURE. Describe every nsqd, and what each nsqlookupd knows of them: the response to GET /nodes.

Source of the numbers: nsqd/stats.go and nsqlookupd/http.go (doNodes).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import msgspec

from gateway.client.lookupd import RegisteredNsqd, parse_registered
from gateway.client.nsqd_answers import (
    NodeAnswer,
    NodeUnreachable,
    NsqdCounts,
    NsqdTopicStats,
    ProducerClient,
    TopicCounts,
    TopicWithChannels,
    describe_failure,
    is_ok,
    parse_counts,
)
from gateway.errors import LookupFailed

DRAIN_TOPIC = "gw.draining"
"""The topic that marks an nsqd as draining, while it is paused there; see `node_drains`."""

_STEP_TOPICS = 1_000
"""Topics summed in one step, which takes half a millisecond or less."""


def is_drain_mark(topic: TopicCounts | NsqdTopicStats) -> bool:
    """Return whether *topic* says that the nsqd drains: an unpaused one does not."""
    return topic.topic_name == DRAIN_TOPIC and topic.paused


def describe_nodes(
    stats: Sequence[NodeAnswer],
    lookupds: Sequence[NodeAnswer],
    *,
    is_shown: Callable[[str], bool] | None = None,
    own_user_agent: str | None = None,
) -> Generator[None, None, bytes]:
    """
    Return the document in JSON; a generator, to run in steps.

    *stats* are the answers of the nsqds to /stats, *lookupds* those of the nsqlookupds to /nodes.
    Only topics for which *is_shown* returns True count, but for the state. With *own_user_agent*,
    each nsqd has the member ``producers``: the clients with another user agent that have published
    over TCP.
    """
    nodes = []
    for answer in stats:
        counts = yield from parse_counts(answer)
        if counts is None:
            why = describe_failure(answer) if not is_ok(answer) else "its response is invalid"
            nodes.append({"node": answer.node, "state": "unreachable", "error": why})
            continue
        node = yield from _node(answer.node, counts, is_shown)
        if own_user_agent is not None:
            others = (each for each in counts.producers if each.user_agent != own_user_agent)
            producers = [_producer(each, is_shown) for each in others]
            # A client is only shown with a topic that may be seen.
            node["producers"] = [each for each in producers if each["topics"]]
        nodes.append(node)
    nodes.sort(key=lambda node: str(node["node"]))
    return msgspec.json.encode({"nodes": nodes, "lookupds": _lookupds(lookupds, is_shown)})


def _node(
    address: str,
    counts: NsqdCounts,
    is_shown: Callable[[str], bool] | None,
) -> Generator[None, None, dict[str, Any]]:
    shown: list[TopicWithChannels] = []
    waiting = 0
    is_draining = False
    for number, each in enumerate(counts.topics):
        if number % _STEP_TOPICS == 0:
            yield
        name = each.topic.topic_name
        waiting += _waiting(each)
        is_draining = is_draining or is_drain_mark(each.topic)
        if is_shown is None or is_shown(name):
            shown.append(each)
    channels = [channel for each in shown for channel in each.channels]
    state = "active"
    if is_draining:
        state = "draining" if waiting else "drained"
    return {
        "node": address,
        "state": state,
        "version": counts.version,
        "health": counts.health,
        "start_time": counts.start_time,
        "topics": len(shown),
        "channels": len(channels),
        "depth": sum(each.topic.depth for each in shown) + sum(each.depth for each in channels),
        "in_flight": sum(channel.in_flight_count for channel in channels),
        "deferred": sum(channel.deferred_count for channel in channels),
        "consumers": sum(channel.client_count for channel in channels),
    }


def _waiting(each: TopicWithChannels) -> int:
    """Return how many messages the nsqd still has of a topic."""
    return each.topic.depth + sum(
        channel.depth + channel.in_flight_count + channel.deferred_count
        for channel in each.channels
    )


def _producer(client: ProducerClient, is_shown: Callable[[str], bool] | None) -> dict[str, Any]:
    published = client.pub_counts or ()
    return {
        "remote_address": client.remote_address,
        "hostname": client.hostname,
        "user_agent": client.user_agent,
        "topics": [
            {"topic": each.topic, "messages": each.count}
            for each in published
            if is_shown is None or is_shown(each.topic)
        ],
    }


def _lookupds(
    answers: Iterable[NodeAnswer], is_shown: Callable[[str], bool] | None
) -> list[dict[str, Any]]:
    """Describe each nsqlookupd, with the nsqds that only others know as ``missing``."""
    registered: dict[str, list[RegisteredNsqd]] = {}
    errors: dict[str, str] = {}
    for answer in answers:
        if isinstance(answer, NodeUnreachable):
            errors[answer.node] = answer.reason
            continue
        try:
            registered[answer.node] = parse_registered(answer.node, answer.status, answer.body)
        except LookupFailed as error:
            errors[answer.node] = error.detail
    everywhere = {nsqd.tcp_address for nsqds in registered.values() for nsqd in nsqds}
    entries: list[dict[str, Any]] = [{"lookupd": each, "error": errors[each]} for each in errors]
    for lookupd, nsqds in registered.items():
        nodes = [_registration(nsqd, is_shown) for nsqd in nsqds]
        entries.append(
            {
                "lookupd": lookupd,
                "nodes": sorted(nodes, key=lambda node: str(node["tcp_address"])),
                "missing": sorted(everywhere - {nsqd.tcp_address for nsqd in nsqds}),
            }
        )
    return sorted(entries, key=lambda entry: str(entry["lookupd"]))


def _registration(nsqd: RegisteredNsqd, is_shown: Callable[[str], bool] | None) -> dict[str, Any]:
    return {
        "tcp_address": nsqd.tcp_address,
        "http_address": nsqd.http_address,
        "tombstones": [
            topic for topic in nsqd.tombstoned_topics if is_shown is None or is_shown(topic)
        ],
    }
