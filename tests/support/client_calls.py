"""What a client library made of its calls, as text that two runs can be compared by."""

from __future__ import annotations

from typing import Any

Outcomes = list[tuple[str, str]]
"""Each call by its name, and what it returned or raised."""


def of_topics(stats: dict[str, Any]) -> list[Any]:
    """Return what a caller reads of *stats*: names, counts and paused, of topics and channels."""
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


def node(info: dict[str, Any]) -> list[str]:
    """Return what is the same in *info* of any server: its version, and which keys there are."""
    known = {"version", "broadcast_address", "hostname", "http_port", "tcp_port", "start_time"}
    return [str(info["version"]), *sorted(known & info.keys())]
