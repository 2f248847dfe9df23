"""Requests to nsqd's admin API: topics, channels, statistics."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.http.http_requests import Talk, chunked, get, mpub, post, pub

_CREATE = post("/topic/create?topic=<topic>")
_CREATE_CHANNEL = post("/channel/create?topic=<topic>&channel=c")
_STATS = "/stats?format=json&include_mem=false&include_clients=false&topic=<topic>"

_WRONG = {
    "nothing": "",
    "an empty topic": "topic=",
    "a bad topic": "topic=a+b",
    "a topic too long": "topic=" + "t" * 65,
    "a bad escape": "topic=%zz",
    "a semicolon": "topic=<topic>;x",
    "a topic that is not there": "topic=<topic>",
    "a channel and no topic": "channel=c",
    "a channel of a bad topic": "topic=a+b&channel=c",
    "a channel of a topic that is not there": "topic=<topic>&channel=c",
    "an empty channel": "topic=<topic>&channel=",
    "a bad channel": "topic=<topic>&channel=a+b",
    "a channel too long": "topic=<topic>&channel=" + "c" * 65,
}

_ACTIONS = ("create", "delete", "empty", "pause", "unpause")

TOPICS: Mapping[str, Talk] = {
    **{
        f"/topic/{action} of {name}": post(f"/topic/{action}?{query}")
        for action in _ACTIONS
        for name, query in _WRONG.items()
        if "channel" not in query
    },
    "a topic is created": _CREATE,
    "a topic is created twice": (_CREATE, _CREATE),
    "a topic is created with a body": post("/topic/create?topic=<topic>", b"{}"),
    "a topic is created with chunks": chunked("/topic/create?topic=<topic>", b"x"),
    "an ephemeral topic is created": post("/topic/create?topic=<topic>%23ephemeral"),
    "a topic is deleted": (_CREATE, post("/topic/delete?topic=<topic>")),
    "a topic is deleted twice": (_CREATE, *[post("/topic/delete?topic=<topic>")] * 2),
    "a topic with messages is deleted": (pub(), post("/topic/delete?topic=<topic>"), get(_STATS)),
    "a topic is emptied": (mpub(body=b"a\nb\nc"), post("/topic/empty?topic=<topic>")),
    "a topic is paused": (_CREATE, post("/topic/pause?topic=<topic>")),
    "a topic is paused twice": (_CREATE, *[post("/topic/pause?topic=<topic>")] * 2),
    "a topic is paused and filled": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/topic/pause?topic=<topic>"),
        mpub(body=b"a\nb"),
    ),
    "a topic is unpaused": (
        _CREATE,
        post("/topic/pause?topic=<topic>"),
        post("/topic/unpause?topic=<topic>"),
    ),
    "a topic that was not paused is unpaused": (_CREATE, post("/topic/unpause?topic=<topic>")),
}

CHANNELS: Mapping[str, Talk] = {
    **{
        f"/channel/{action} of {name}": post(f"/channel/{action}?{query}")
        for action in _ACTIONS
        for name, query in _WRONG.items()
    },
    **{
        f"/channel/{action} of a channel that is not there": (
            _CREATE,
            post(f"/channel/{action}?topic=<topic>&channel=c"),
        )
        for action in _ACTIONS
    },
    "a channel is created twice": (_CREATE, _CREATE_CHANNEL, _CREATE_CHANNEL),
    "an ephemeral channel is created": (
        _CREATE,
        post("/channel/create?topic=<topic>&channel=c%23ephemeral"),
    ),
    "a channel gets messages": (_CREATE, _CREATE_CHANNEL, mpub(body=b"a\nb")),
    "a channel is deleted": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/channel/delete?topic=<topic>&channel=c"),
    ),
    "a channel is deleted twice": (
        _CREATE,
        _CREATE_CHANNEL,
        *[post("/channel/delete?topic=<topic>&channel=c")] * 2,
    ),
    "a channel is emptied": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/channel/empty?topic=<topic>&channel=c"),
    ),
    "a channel is paused": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/channel/pause?topic=<topic>&channel=c"),
    ),
    "a channel is unpaused": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/channel/pause?topic=<topic>&channel=c"),
        post("/channel/unpause?topic=<topic>&channel=c"),
    ),
}

STATISTICS: Mapping[str, Talk] = {
    "/ping": get("/ping"),
    "/info": get("/info"),
    "/stats of a topic that is not there": get(_STATS),
    "/stats of an empty topic": (_CREATE, get(_STATS)),
    "/stats of a full topic": (mpub(body=b"a\nbc"), get(_STATS)),
    "/stats of an empty channel": (_CREATE, _CREATE_CHANNEL, get(_STATS)),
    "/stats of a paused topic": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/topic/pause?topic=<topic>"),
        mpub(body=b"a\nbc"),
        get(_STATS),
    ),
    "/stats of one channel": (
        _CREATE,
        _CREATE_CHANNEL,
        post("/channel/create?topic=<topic>&channel=d"),
        get(f"{_STATS}&channel=d"),
    ),
    "/stats of a channel that is not there": (_CREATE, get(f"{_STATS}&channel=c")),
    "/stats of an empty filter": get(
        "/stats?format=json&include_mem=0&include_clients=0&topic=%20&channel="
    ),
    "/stats with a bad escape": get("/stats?format=json&topic=%zz"),
    "/stats with a semicolon": get("/stats?format=json;topic=<topic>"),
    "/stats with flags in other words": (
        _CREATE,
        get("/stats?format=json&include_mem=0&include_clients=false&topic=<topic>"),
        get("/stats?format=json&include_mem=false&include_clients=0&topic=<topic>"),
    ),
    "/stats as text": (
        _CREATE,
        get("/stats?include_mem=false&include_clients=false&topic=<topic>"),
    ),
    "/stats as text of a topic that is not there": get(
        "/stats?include_mem=false&include_clients=false&topic=<topic>"
    ),
    "/stats as something else": (
        _CREATE,
        get("/stats?format=JSON&include_mem=false&include_clients=false&topic=<topic>"),
    ),
    "/stats as text of a channel": (
        _CREATE,
        _CREATE_CHANNEL,
        get("/stats?format=text&include_mem=false&include_clients=false&topic=<topic>&channel=c"),
    ),
}
