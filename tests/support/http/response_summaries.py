"""Results of HTTP client libraries as text, comparable between two servers."""

from __future__ import annotations

from typing import Any

Outcomes = list[tuple[str, str]]
"""Result or exception of each call, by its name."""


def topics_summary(stats: dict[str, Any]) -> list[Any]:
    """Return names, counts and pause states of the topics and channels in *stats*."""
    return [
        [
            [topic[key] for key in ("topic_name", "message_count", "depth", "paused")],
            [
                [channel[key] for key in ("channel_name", "paused", "client_count")]
                for channel in topic["channels"]
            ],
        ]
        for topic in stats["topics"] or []
    ]


def info_summary(info: dict[str, Any]) -> list[str]:
    """Return the part of *info* that is equal for all servers: version and keys."""
    known = {"version", "broadcast_address", "hostname", "http_port", "tcp_port", "start_time"}
    return [str(info["version"]), *sorted(known & info.keys())]
