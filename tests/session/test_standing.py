"""What a client is told of its subscription."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.session.outbox import Outbox
from gateway.session.standing import Standing
from gateway.session.window import Window


def told(outbox: Outbox) -> list[Any]:
    """Return what waits for the client, without its envelopes."""
    lines, _ = outbox.take(Window(1), 0.0)
    return [msgspec.to_builtins(line)["data"] for line in lines]


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_client_hears_first_that_it_is_subscribed(is_paused: bool) -> None:  # noqa: FBT001
    """A pause from before is told behind it, and is news to nobody until then."""
    outbox = Outbox("t", "c")
    standing = Standing(outbox, [1, 2])

    is_news = standing.pause(is_paused)
    before = told(outbox)
    standing.tell_subscribed(7, 60_000)
    first, *others = told(outbox)

    assert (False, [], True) == (is_news, before, standing.is_told)
    assert ("t", "c", 7, 60_000) == (*first.values(),)
    assert ["channel_paused"] * is_paused == [each["state"] for each in others]


def test_a_pause_is_news_once() -> None:
    """And so is its end."""
    standing = Standing(Outbox("t", "c"), [])
    standing.tell_subscribed(1, 1)

    assert [True, False, True, False] == [
        standing.pause(is_paused) for is_paused in (True, True, False, False)
    ]


def test_what_went_with_a_source_is_told_with_how_many_are_left() -> None:
    """The sources are those of the session, as they are then."""
    outbox = Outbox("t", "c")
    sources = {1: "one"}
    standing = Standing(outbox, sources)

    standing.tell_state(["a"])
    sources.clear()
    standing.tell_state(["b"])

    assert [("connected", 1, ["a"]), ("disconnected", 0, ["b"])] == [
        (each["state"], each["nsqds"], each["lost_ids"]) for each in told(outbox)
    ]
