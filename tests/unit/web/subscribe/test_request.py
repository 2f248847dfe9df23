"""What the address of a subscription may ask for."""

import re

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.wire import Limits
from gateway.web.subscribe.request import (
    SubscribeRequest,
    choose_subprotocol,
    new_channel_name,
    parse_subscribe_request,
)


def parse(query: str, *, max_in_flight_limit: int = 2_500) -> SubscribeRequest:
    """Read a query with nsqd's limits."""
    return parse_subscribe_request(
        query.encode(), max_in_flight_limit=max_in_flight_limit, limits=Limits()
    )


def test_a_channel_is_answered_by_the_client() -> None:
    """The defaults of a socket with a channel of its choice."""
    expected = SubscribeRequest(
        topic="t",
        channel="c",
        max_in_flight=10,
        msg_timeout_ms=0,
        is_auto_ack=False,
        requeue_on_close_ms=0,
        max_attempts=0,
        sample_rate=0,
    )

    assert expected == parse("topic=t&channel=c")
    assert not expected.is_viewer


@pytest.mark.parametrize(
    "query,is_viewer",
    [
        ("topic=t", True),
        ("topic=t&ack=auto", True),
        ("topic=t&ack=client", False),
        ("topic=t&channel=c&ack=auto", False),
    ],
)
def test_who_names_no_channel_and_finishes_nothing_is_a_viewer(
    query: str, *, is_viewer: bool
) -> None:
    """It only looks, and shares a consumer with others."""
    assert is_viewer == parse(query).is_viewer


def test_a_name_that_nobody_else_has_is_ephemeral() -> None:
    """26 digits of base32 between a prefix and NSQ's suffix, new each time."""
    assert re.fullmatch(r"gw\.[a-z2-7]{26}#ephemeral", new_channel_name())
    assert new_channel_name() != new_channel_name()


@pytest.mark.parametrize(
    "query,field,expected",
    [
        ("topic=t&channel=c&ack=auto", "is_auto_ack", True),
        ("topic=t&ack=client", "is_auto_ack", False),
        ("topic=t&channel=c&max_in_flight=1", "max_in_flight", 1),
        ("topic=t&channel=c&max_in_flight=2500", "max_in_flight", 2_500),
        ("topic=t&channel=c&msg_timeout_ms=1000", "msg_timeout_ms", 1_000),
        ("topic=t&channel=c&msg_timeout_ms=900000", "msg_timeout_ms", 900_000),
        ("topic=t&channel=c&requeue_on_close_ms=3600000", "requeue_on_close_ms", 3_600_000),
        ("topic=t&sample_rate=99", "sample_rate", 99),
        ("topic=t&channel=c%23ephemeral&sample_rate=1", "sample_rate", 1),
        ("topic=t%23ephemeral&channel=c", "topic", "t#ephemeral"),
        ("topic=t", "channel", None),
        ("topic=t&channel=c&max_attempts=0", "max_attempts", 0),
        ("topic=t&channel=c&max_attempts=65535", "max_attempts", 65_535),
        ("topic=t&topic=u&channel=c", "topic", "t"),
    ],
)
def test_a_value_within_its_range_is_taken(query: str, field: str, expected: object) -> None:
    """Both ends of each range are allowed; of a name given twice the first holds."""
    assert expected == getattr(parse(query), field)


@pytest.mark.parametrize(
    "query,token,words",
    [
        ("", "MISSING_ARG_TOPIC", "topic is missing"),
        ("topic=", "INVALID_TOPIC", "0 bytes"),
        ("topic=a%0A", "INVALID_TOPIC", "1 to 64 bytes"),
        ("topic=t&channel=", "INVALID_ARG_CHANNEL", "0 bytes"),
        ("topic=t&channel=a%00", "INVALID_ARG_CHANNEL", "1 to 64 bytes"),
        ("channel=c", "MISSING_ARG_TOPIC", "topic is missing"),
        ("topic=t;channel=c", "INVALID_REQUEST", ";"),
        ("topic=%zz", "INVALID_REQUEST", "hexadecimal"),
        (
            "topic=t&max_in_flight=0",
            "INVALID_ARG_MAX_IN_FLIGHT",
            "'0'; allowed: 1 to 2500 messages",
        ),
        ("topic=t&max_in_flight=2501", "INVALID_ARG_MAX_IN_FLIGHT", "'2501'"),
        ("topic=t&max_in_flight=", "INVALID_ARG_MAX_IN_FLIGHT", "''"),
        ("topic=t&max_in_flight=1_0", "INVALID_ARG_MAX_IN_FLIGHT", "'1_0'"),
        ("topic=t&max_in_flight=%EF%BC%91", "INVALID_ARG_MAX_IN_FLIGHT", "1 to 2500"),
        ("topic=t&msg_timeout_ms=999", "INVALID_ARG_MSG_TIMEOUT_MS", "1000 to 900000 ms"),
        ("topic=t&msg_timeout_ms=0", "INVALID_ARG_MSG_TIMEOUT_MS", "1000 to 900000 ms"),
        ("topic=t&requeue_on_close_ms=-1", "INVALID_ARG_REQUEUE_ON_CLOSE_MS", "0 to 3600000 ms"),
        ("topic=t&sample_rate=100", "INVALID_ARG_SAMPLE_RATE", "0 to 99"),
        ("topic=t&channel=c&sample_rate=5", "INVALID_ARG_SAMPLE_RATE", "#ephemeral"),
        ("topic=t&ack=maybe", "INVALID_ARG_ACK", "'maybe'; allowed: client"),
        ("topic=t&max_attempts=65536", "INVALID_ARG_MAX_ATTEMPTS", "'65536'; allowed: 0 to 65535"),
    ],
)
def test_what_is_wrong_names_value_and_range(query: str, token: str, words: str) -> None:
    """The token is short, the text says what would be right."""
    with pytest.raises(InvalidRequest) as caught:
        parse(query)

    assert token == caught.value.token
    assert words in caught.value.detail


@pytest.mark.parametrize(
    "query,shown,near",
    [
        ("topic=t&chanel=c", "chanel", "channel"),
        ("topic=t&Channel=c", "Channel", "channel"),
        ("topic=t&max_inflight=5", "max_inflight", "max_in_flight"),
        ("topic=t&msg_timeout=5", "msg_timeout", "msg_timeout_ms"),
        ("topics=t", "topics", "topic"),
        ("topic=t&ac%6B+=auto", "ack ", "ack"),
        ("topic=t&=c", "", None),
        ("topic=t&%ff=c", "\xff", None),
        ("topic=t&token=abc", "token", None),
    ],
)
def test_an_unknown_parameter_is_refused(query: str, shown: str, near: str | None) -> None:
    """A slip in a name would quietly change what is meant; one that is near is named."""
    with pytest.raises(InvalidRequest) as caught:
        parse(query)

    assert "INVALID_ARG" == caught.value.token
    hint = f" did you mean {near}?" if near else ""
    assert f"unknown parameter {shown!r};{hint} allowed: topic, channel, " in caught.value.detail
    assert "abc" not in caught.value.detail


def test_of_a_long_unknown_parameter_the_beginning_is_shown() -> None:
    """An answer is no copy of what came."""
    with pytest.raises(InvalidRequest) as caught:
        parse("topic=t&" + "x" * 10_000)

    assert len(caught.value.detail) < 250


def test_the_ceiling_of_the_window_is_a_setting() -> None:
    assert 5 == parse("topic=t", max_in_flight_limit=5).max_in_flight


@pytest.mark.parametrize(
    "offered,chosen",
    [
        ((), None),
        (("nsq.json.v1",), "nsq.json.v1"),
        (("mqtt", "nsq.json.v1"), "nsq.json.v1"),
    ],
)
def test_the_subprotocol_is_named_only_when_it_was_offered(
    offered: tuple[str, ...], chosen: str | None
) -> None:
    """A browser refuses an answer that it did not offer."""
    assert chosen == choose_subprotocol(offered)


@pytest.mark.parametrize("offered", [("nsq.v2",), ("mqtt", "stomp")])
def test_another_subprotocol_alone_is_refused(offered: tuple[str, ...]) -> None:
    """The text says which one to offer."""
    with pytest.raises(InvalidRequest, match=r"offer nsq\.json\.v1, or none"):
        choose_subprotocol(offered)
