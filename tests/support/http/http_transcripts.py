"""Run HTTP requests against nsqd or the gateway; return the results as comparable text."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.support.http.http_requests import END, Talk, topic_of, with_topic
from tests.support.http.raw_http import Conversation, RawAnswer, exchange, send_pieces

_AT_A_TIME = 8
_WAIT_S = 60.0
_PATIENCE_S = 10.0

_SHOWN = {"text/plain", "application/json"}
_OF_THE_PROCESS = re.compile(
    rb'("(?:start_time|tcp_port|http_port|hostname|broadcast_address|gateway|node)":)'
    rb'(?:-?\d+|"[^"]*")|((?:start_time|uptime) )\S+'
)
"""Values that differ between any two processes."""


async def transcripts(address: str, talks: Mapping[str, Talk]) -> dict[str, str]:
    """Send each of *talks* to the server at *address*; return its responses, by name."""
    places = asyncio.Semaphore(_AT_A_TIME)

    async def transcript(name: str) -> str:
        pieces = with_topic(name, talks[name])
        ends = pieces[-1] == END
        async with places:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    talk = await send_pieces(address, pieces[:-1] if ends else pieces, ends=ends)
            except TimeoutError:
                return "silent"
        return shown(talk)

    return dict(zip(talks, await asyncio.gather(*map(transcript, talks)), strict=True))


def shown(talk: Conversation) -> str:
    """Return the responses to *talk* in order, and "open" if the connection stays open."""
    return ", ".join([*map(shown_answer, talk.answers), "open" if talk.stays_open else "closed"])


def shown_answer(answer: RawAnswer) -> str:
    """
    Return the parts that clients depend on: status, body or error token, Allow, Location.

    A missing version header of nsqd is shown; interim responses never have it.
    """
    parts = [str(answer.status), _word(answer)]
    parts += [
        f"{name}={answer.headers[name]}" for name in ("allow", "location") if name in answer.headers
    ]
    if answer.status >= 200 and "x-nsq-content-type" not in answer.headers:
        parts.append("unversioned")
    return " ".join(filter(None, parts))


def _word(answer: RawAnswer) -> str:
    if answer.status >= 400:
        return answer.message or ("text" if answer.body else "")
    if answer.status != 200:
        return ""  # Go has a page behind each redirect
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind not in _SHOWN:
        return kind
    return _OF_THE_PROCESS.sub(rb"\1\2<own>", answer.body).decode("latin-1")


async def outcomes(talks: Mapping[str, Talk], *, asked: str, behind: str) -> dict[str, str]:
    """
    Return the result of each of *talks* at *asked*: responses, then stored messages.

    *behind* is the HTTP address of the nsqd with the topics. Messages in a topic of no talk are
    listed under "other topics".
    """
    before = await stored(behind)
    came = await transcripts(asked, talks)
    after = await stored(behind)
    names = {topic_of(name): name for name in talks}
    for topic in sorted(after):
        if after[topic] != before.get(topic):
            prefix, dot, rest = topic.partition(".")
            name = names.get(prefix + dot, "other topics")
            shown_name = rest if name in talks else topic
            came[name] = f"{came.get(name, '')} [{shown_name}: {after[topic]}]"
    return came


async def stored(address: str) -> dict[str, str]:
    """Return the messages of each topic at the nsqd with this HTTP address, once it is idle."""
    target = "/stats?format=json&include_mem=false&include_clients=false"
    async with asyncio.timeout(_WAIT_S):
        while True:
            answer = await exchange(address, "GET", target)
            topics = json.loads(answer.body)["topics"] or []
            if all(map(_rests, topics)):
                return {topic["topic_name"]: _shown_topic(topic) for topic in topics}


def _rests(topic: dict[str, Any]) -> bool:
    """Return whether no message is between a topic and its channels."""
    return bool(topic["paused"] or not topic["channels"] or not topic["depth"])


def _shown_topic(topic: dict[str, Any]) -> str:
    count, size_bytes = topic["message_count"], topic["message_bytes"]
    parts = [f"{count} messages of {size_bytes} bytes, {topic['depth']} waiting"]
    parts += ["paused"] if topic["paused"] else []
    for channel in topic["channels"]:
        counts = f"{channel['depth']} waiting, {channel['deferred_count']} deferred"
        paused = ", paused" if channel["paused"] else ""
        parts.append(f"channel {channel['channel_name']}: {counts}{paused}")
    return "; ".join(parts)
