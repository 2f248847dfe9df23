"""What sockets ask for is read once, and shared."""

from __future__ import annotations

import pytest

from gateway.client.subscription import SubscriptionOptions
from gateway.errors import InvalidRequest
from gateway.protocol.wire import Limits
from gateway.session.types import SessionOptions
from gateway.web.subscribe.endpoint import SubscribeParams, SubscribeParamsCache
from gateway.web.subscribe.request import parse_subscribe_request


class Reader:
    """Reads queries, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, raw_query: bytes) -> SubscribeParams:
        """Read one."""
        self.count += 1
        request = parse_subscribe_request(raw_query, max_in_flight_limit=10, limits=Limits())
        session = SessionOptions(topic=request.topic, channel="c")
        subscription = SubscriptionOptions(topic=request.topic, channel="c")
        return SubscribeParams(
            request=request,
            session=session,
            session_with_secret=session,
            subscription=subscription,
        )


def test_the_same_query_is_read_once() -> None:
    """All who ask it share what came of it."""
    read = Reader()
    wishes = SubscribeParamsCache(read)

    first = wishes.find(b"topic=t")

    assert first is wishes.find(b"topic=t")
    assert 1 == read.count


def test_what_is_wrong_is_wrong_again() -> None:
    """Nothing is kept of it."""
    wishes = SubscribeParamsCache(Reader())
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            wishes.find(b"")

    assert 0 == len(wishes)


def test_what_is_kept_is_bounded() -> None:
    """Queries that are all different push each other out, and long ones are not kept at all."""
    wishes = SubscribeParamsCache(Reader())
    for number in range(1_100):
        wishes.find(b"topic=t%d" % number)
    wishes.find(b"topic=t&max_in_flight=" + b"0" * 600 + b"1")

    assert 1_024 == len(wishes)
