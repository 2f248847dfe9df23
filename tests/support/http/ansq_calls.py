"""
A program that makes every call of ansq's HTTP client and prints the results as JSON.

As gnsq_calls.py is: ``python -m tests.support.http.ansq_calls HOST:PORT``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Iterator
from typing import Any

from ansq.http import NSQDHTTPWriter
from ansq.http.http_exceptions import NSQHTTPException

from tests.support.http.response_summaries import Outcomes, info_summary, topics_summary


def calls(client: Any) -> Iterator[tuple[str, Awaitable[Any]]]:  # noqa: ANN401 - untyped
    """Yield the name of each call and the call, in a sensible order."""
    yield "ping", client.ping()
    yield "info", _shown(info_summary, client.info())
    yield "create_topic", client.create_topic("t")
    yield "create_topic again", client.create_topic("t")
    yield "create_channel", client.create_channel("t", "c")
    yield "topic_pause", client.topic_pause("t")
    yield "pub", client.pub("t", "hello")
    yield "pub of bytes", client.pub("t", b"hello")
    yield "pub of a number", client.pub("t", 7)
    yield "pub of nothing", client.pub("t", "")
    yield "pub to a bad topic", client.pub("a b", "hello")
    yield "mpub", client.mpub("t", "a", b"b", 3)
    yield "stats", _shown(topics_summary, client.stats())
    yield "pause_channel", client.pause_channel("c", "t")
    yield "stats of what is paused", _shown(topics_summary, client.stats())
    yield "unpause_channel", client.unpause_channel("c", "t")
    yield "empty_topic", client.empty_topic("t")
    yield "topic_unpause", client.topic_unpause("t")
    yield "stats of what is empty", _shown(topics_summary, client.stats())
    yield "delete_channel", client.delete_channel("t", "c")
    yield "delete_channel again", client.delete_channel("t", "c")
    yield "delete_topic", client.delete_topic("t")
    yield "delete_topic again", client.delete_topic("t")


async def _shown(show: Any, call: Awaitable[Any]) -> object:  # noqa: ANN401 - topics_summary or info_summary
    return show(await call)


async def outcomes(address: str) -> Outcomes:
    """Make each call to the server at *address*."""
    client = NSQDHTTPWriter.from_address(address)
    made: Outcomes = []
    for name, call in calls(client):
        try:
            made.append((name, repr(await call)))
        except NSQHTTPException as error:
            # The rest of the error is its body, which has nsqd's word in it.
            word = json.loads(error.args[1])["message"]
            made.append((name, f"{type(error).__name__}: {error.args[0]} {word}"))
    await client.close()
    return made


if __name__ == "__main__":
    json.dump(asyncio.run(outcomes(sys.argv[1])), sys.stdout)
