"""The metrics of the nsqds, which are in no registry, from statistics like nsqd's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.client.nsqd_answers import NodeAnswer, NodeResponse
from gateway.telemetry import TextFamily
from gateway.web.broker_metrics import broker_families, statistics_age


def channel_stats(name: str, **counts: int) -> dict[str, Any]:
    """Return a channel as in /stats; *counts* are its members that are not 0."""
    members = ("depth", "backend_depth", "message_count", "requeue_count", "timeout_count")
    others = ("in_flight_count", "deferred_count", "client_count")
    return {"channel_name": name, "paused": False, **dict.fromkeys(members + others, 0), **counts}


def topic_stats(name: str, *channels: dict[str, Any], **counts: int) -> dict[str, Any]:
    """Return a topic with *channels* as in /stats; nsqd has null for none."""
    members = dict.fromkeys(("depth", "backend_depth", "message_count"), 0)
    return {
        "topic_name": name,
        "channels": list(channels) or None,
        "paused": False,
        **members,
        **counts,
    }


def stats_answer(node: str, *topics: dict[str, Any]) -> NodeAnswer:
    """Return the answer of the nsqd at *node*."""
    body = {"version": "1.3.0", "health": "OK", "start_time": 1_790_000_000, "topics": topics}
    return NodeResponse(node=node, status=200, body=json.dumps(body).encode())


def families_of(answers: Sequence[NodeAnswer], *, max_rows: int = 10_000) -> list[TextFamily]:
    """Return the metrics made of *answers*, all steps done."""
    steps = broker_families(answers, max_rows=max_rows)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[TextFamily] = end.value
            return found


def parsed(families: Sequence[TextFamily]) -> list[Metric]:
    """Return *families* as Prometheus' own parser reads them."""
    text = b"".join(family.encode(is_openmetrics=False) for family in families)
    return list(text_string_to_metric_families(text.decode()))


def broker_metrics() -> list[Metric]:
    """Return every metric of the nsqds, each with a sample."""
    topic = topic_stats("t", channel_stats("c"))
    # The age is added to a scrape, not to what was read.
    return parsed([*families_of([stats_answer("nsqd:4151", topic)]), statistics_age(0.0)])
