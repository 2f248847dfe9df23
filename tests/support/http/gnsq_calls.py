"""
A program that makes every call of gnsq's HTTP client and prints the results as JSON.

It is a separate program because gnsq depends on gevent:
``python -m tests.support.http.gnsq_calls HOST:PORT``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gnsq import NsqdHTTPClient
from gnsq.errors import NSQException

from tests.support.http.response_summaries import Outcomes, info_summary, topics_summary


def calls(client: Any) -> Iterator[tuple[str, Callable[[], Any]]]:  # noqa: ANN401 - untyped
    """Yield the name of each call and the call, in a sensible order."""
    yield "ping", client.ping
    yield "info", lambda: info_summary(client.info())
    yield "create_topic", lambda: client.create_topic("t")
    yield "create_channel", lambda: client.create_channel("t", "c")
    yield "pause_topic", lambda: client.pause_topic("t")
    yield "publish", lambda: client.publish("t", b"hello")
    yield "publish bytes", lambda: client.publish("t", b"\0\xff\n")
    yield "publish later", lambda: client.publish("t", b"later", defer=60_000)
    yield "publish far too late", lambda: client.publish("t", b"x", defer=99_999_999)
    yield "publish nothing", lambda: client.publish("t", b"")
    yield "multipublish", lambda: client.multipublish("t", [b"a", b"b"])
    yield "multipublish binary", lambda: client.multipublish("t", [b"a\n", b"\0"], binary=True)
    yield "stats", lambda: topics_summary(client.stats())
    yield "stats of a channel", lambda: topics_summary(client.stats("t", "c"))
    yield "stats of what is not there", lambda: topics_summary(client.stats("other"))
    yield "stats as text", lambda: b"[t " in client.stats(text=True)
    yield "pause_channel", lambda: client.pause_channel("t", "c")
    yield "stats of what is paused", lambda: topics_summary(client.stats("t"))
    yield "unpause_channel", lambda: client.unpause_channel("t", "c")
    yield "empty_topic", lambda: client.empty_topic("t")
    yield "unpause_topic", lambda: client.unpause_topic("t")
    yield "empty_channel", lambda: client.empty_channel("t", "c")
    yield "stats of what is empty", lambda: topics_summary(client.stats("t"))
    yield "delete_channel", lambda: client.delete_channel("t", "c")
    yield "delete_channel again", lambda: client.delete_channel("t", "c")
    yield "delete_topic", lambda: client.delete_topic("t")
    yield "delete_topic again", lambda: client.delete_topic("t")
    yield "publish to an ephemeral topic", lambda: client.publish("e#ephemeral", b"x")


def outcomes(address: str) -> Outcomes:
    """Make each call to the server at *address*."""
    host, _, port = address.rpartition(":")
    made: Outcomes = []
    for name, call in calls(NsqdHTTPClient(host, int(port))):
        try:
            made.append((name, repr(call())))
        except NSQException as error:
            made.append((name, f"{type(error).__name__}: {error}"))
    return made


if __name__ == "__main__":
    json.dump(outcomes(sys.argv[1]), sys.stdout)
