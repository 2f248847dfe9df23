"""Tests of `raise_for_results` and `NodeRequest`."""

from __future__ import annotations

import pytest

from gateway.client.nsqd_answers import (
    NodeAnswer,
    NodeRequest,
    NodeResponse,
    NodeUnreachable,
    raise_for_results,
)
from gateway.errors import InvalidRequest, PartialFailure

DONE = NodeResponse(node="a:1", status=200, body=b"")
NO_TOPIC = NodeResponse(node="b:1", status=404, body=b'{"message":"TOPIC_NOT_FOUND"}')
NO_CHANNEL = NodeResponse(node="c:1", status=404, body=b'{"message":"CHANNEL_NOT_FOUND"}')
GONE = NodeUnreachable(node="d:1", reason="Connection refused")
BROKEN = NodeResponse(node="e:1", status=500, body=b'{"message":"INTERNAL_ERROR"}')
NO_NSQD = NodeResponse(node="f:1", status=404, body=b"<html>404</html>")
WANTS_TLS = NodeResponse(
    node="g:1", status=403, body=b'{"message": "TLS_REQUIRED", "https_port": 1}'
)
MOVED = NodeResponse(node="h:1", status=307, body=b"")
ODD = NodeResponse(node="i:1", status=404, body=b'{"message":' + b"[" * 100_000)
LIAR = NodeResponse(node="j:1", status=502, body=b'{"message":"TOPIC_NOT_FOUND"}')


@pytest.mark.parametrize(
    "answers", [[DONE], [DONE, DONE], [NO_TOPIC, DONE], [DONE, NO_CHANNEL, NO_TOPIC]]
)
def test_one_that_did_it_is_enough_where_the_others_have_nothing_to_do(
    answers: list[NodeAnswer],
) -> None:
    """A topic need not exist on every nsqd."""
    raise_for_results(answers)


@pytest.mark.parametrize(
    "answers,token,detail",
    [
        ([NO_TOPIC], "TOPIC_NOT_FOUND", "no nsqd has the topic; 1 nsqd was asked"),
        ([NO_TOPIC] * 2, "TOPIC_NOT_FOUND", "no nsqd has the topic; 2 nsqds were asked"),
        ([NO_CHANNEL], "CHANNEL_NOT_FOUND", "no nsqd has the channel; 1 nsqd was asked"),
        (
            [NO_TOPIC, NO_CHANNEL],
            "CHANNEL_NOT_FOUND",
            "no nsqd has the channel; 2 nsqds were asked",
        ),
    ],
)
def test_what_no_nsqd_has_is_not_found(answers: list[NodeAnswer], token: str, detail: str) -> None:
    """If any nsqd has the topic, the channel is missing."""
    with pytest.raises(InvalidRequest) as caught:
        raise_for_results(answers)

    assert (token, detail) == (caught.value.token, caught.value.detail)


@pytest.mark.parametrize(
    "answer,line",
    [
        (GONE, "nsqd d:1: Connection refused"),
        (BROKEN, "nsqd e:1: answered 500 INTERNAL_ERROR"),
        (NO_NSQD, "nsqd f:1: answered 404"),
        (WANTS_TLS, "nsqd g:1: answered 403 TLS_REQUIRED"),
        (MOVED, "nsqd h:1: answered 307"),
        (ODD, "nsqd i:1: answered 404"),
        (LIAR, "nsqd j:1: answered 502 TOPIC_NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("others", [[], [DONE], [NO_TOPIC], [DONE, NO_CHANNEL]])
def test_a_node_that_failed_is_named_whatever_the_others_say(
    answer: NodeAnswer, line: str, others: list[NodeAnswer]
) -> None:
    """A 404 without nsqd's error code is a failure."""
    with pytest.raises(PartialFailure) as caught:
        raise_for_results([*others, answer])

    assert (line,) == caught.value.lines
    assert str(caught.value).endswith(f":\n{line}")


def test_each_that_failed_has_a_line() -> None:
    """The nsqds come first, then the nsqlookupds."""
    with pytest.raises(PartialFailure) as caught:
        raise_for_results([BROKEN, DONE, GONE], [GONE, DONE])

    assert (
        "nsqd e:1: answered 500 INTERNAL_ERROR",
        "nsqd d:1: Connection refused",
        "nsqlookupd d:1: Connection refused",
    ) == caught.value.lines


def test_that_an_nsqlookupd_did_it_does_not_count() -> None:
    """It answers 200 to the deletion of an unknown topic."""
    with pytest.raises(InvalidRequest):
        raise_for_results([NO_TOPIC], [DONE])


def test_that_an_nsqlookupd_never_knew_it_is_no_failure() -> None:
    """It answers 404 to the deletion of an unknown channel."""
    raise_for_results([DONE], [NO_CHANNEL])


def test_a_value_goes_out_as_the_bytes_that_came_in() -> None:
    """Values are not checked here, because nsqd checks them."""
    question = NodeRequest(method="POST", path="/topic/pause", query=[("topic", b"a b\xff#&=\n")])

    assert "/topic/pause?topic=a+b%FF%23%26%3D%0A" == question.target
    assert "/info" == NodeRequest(method="GET", path="/info").target
