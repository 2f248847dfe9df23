"""What a caller sees of each error."""

from __future__ import annotations

import json

import pytest

from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    Forbidden,
    InvalidRequest,
    LimitReached,
    NoBroker,
    NoNsqdHttpAddress,
    OutcomeUnknown,
    Overloaded,
    PartialFailure,
    PublishError,
    RateLimited,
)
from gateway.web.errors import (
    ERROR_RESPONSES,
    NSQD_ERROR_RESPONSES,
    CloseCode,
    error_response,
    problem_response,
)
from gateway.web.responses import TITLES


def test_a_problem_is_rfc_9457_with_the_message_of_nsqd() -> None:
    """The body that openapi.yaml shows, to the letter."""
    status, headers, body = problem_response(
        InvalidRequest("MISSING_ARG_TOPIC", "topic is missing"), "r-1"
    )

    assert 400 == status
    assert {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "topic is missing",
        "message": "MISSING_ARG_TOPIC",
        "retryable": False,
        "request_id": "r-1",
    } == json.loads(body)
    assert [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-nsq-content-type", b"nsq; version=1.0"),
        (b"x-request-id", b"r-1"),
    ] == headers


@pytest.mark.parametrize(
    "error,status,token,close",
    [
        (InvalidRequest("MSG_TOO_BIG", ""), 413, "MSG_TOO_BIG", CloseCode.BAD_REQUEST),
        (InvalidRequest("INVALID_ARG_ACK", ""), 400, "INVALID_ARG_ACK", CloseCode.BAD_REQUEST),
        (Forbidden(), 403, "FORBIDDEN", CloseCode.FORBIDDEN),
        (AuthRequired("nsqd at a:1"), 401, "AUTH_REQUIRED", CloseCode.NO_AUTH),
        (LimitReached("all taken"), 503, "FULL", CloseCode.FULL),
        (
            Overloaded(waiting_bytes=2, size_bytes=1, limit_bytes=2),
            503,
            "OVERLOADED",
            CloseCode.FULL,
        ),
        (RateLimited(limit_per_s=1, retry_after_s=2), 429, "RATE_LIMITED", CloseCode.FULL),
        (NoBroker(), 503, "NO_BROKER", CloseCode.NO_BROKER),
        (NoNsqdHttpAddress(), 503, "NO_BROKER", CloseCode.NO_BROKER),
        (PartialFailure(["nsqd a:1: refused"]), 502, "PARTLY_DONE", CloseCode.INTERNAL),
        (BrokerUnreachable("a:1", "refused"), 503, "NO_BROKER", CloseCode.NO_BROKER),
        (OutcomeUnknown(), 504, "OUTCOME_UNKNOWN", CloseCode.INTERNAL),
        (PublishError(), 500, "INTERNAL_ERROR", CloseCode.INTERNAL),
        (ValueError(), 500, "INTERNAL_ERROR", CloseCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_has_one_row(error: Exception, status: int, token: str, close: CloseCode) -> None:
    """Status, token and close code follow from the class."""
    fault = error_response(error)

    assert (status, token, close) == (fault.status, fault.token, fault.close)


@pytest.mark.parametrize(
    "text,status,token",
    [
        ('E_BAD_TOPIC PUB topic name "a b" is not valid', 400, "INVALID_TOPIC"),
        ('E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a b" is not valid', 400, "INVALID_TOPIC"),
        ('E_BAD_CHANNEL SUB channel name "a b" is not valid', 400, "INVALID_ARG_CHANNEL"),
        ("E_BAD_MESSAGE PUB invalid message body size 0", 400, "MSG_EMPTY"),
        ("E_BAD_MESSAGE PUB message too big 11 > 10", 413, "MSG_TOO_BIG"),
        ("E_BAD_MESSAGE MPUB message too big 11 > 10", 413, "MSG_TOO_BIG"),
        ("E_BAD_MESSAGE MPUB invalid message(0) body size 0", 413, "BAD_MESSAGE"),
        ("E_BAD_BODY MPUB body too big 11 > 10", 413, "BODY_TOO_BIG"),
        ("E_BAD_BODY MPUB invalid message count 0", 413, "BAD_BODY"),
        ("E_INVALID DPUB timeout 9 out of range 0-8", 400, "INVALID_DEFER"),
        ("E_INVALID DPUB could not parse timeout x", 400, "INVALID_DEFER"),
        ("E_INVALID cannot SUB in current state", 500, "INTERNAL_ERROR"),
        ("E_PUB_FAILED PUB failed exiting", 503, "EXITING"),
        ("E_DPUB_FAILED DPUB failed exiting", 503, "EXITING"),
        ("E_MPUB_FAILED MPUB failed exiting", 503, "EXITING"),
        ("E_MPUB_FAILED MPUB failed disk full", 504, "OUTCOME_UNKNOWN"),
        ("E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1", 503, "SUB_FAILED"),
        ("E_AUTH_FIRST AUTH required before PUB", 401, "AUTH_REQUIRED"),
        ("E_AUTH_FAILED AUTH failed", 403, "AUTH_FAILED"),
        ("E_UNAUTHORIZED AUTH failed for PUB on t", 403, "UNAUTHORIZED"),
        ("E_NEW something", 500, "INTERNAL_ERROR"),
    ],
)
def test_a_refusal_has_the_answer_of_nsqds_own_http(text: str, status: int, token: str) -> None:
    """What nsqd says over TCP is what nsqd says over HTTP."""
    code, _, description = text.partition(" ")

    fault = error_response(BrokerRefused(code, description))

    assert (status, token) == (fault.status, fault.token)


@pytest.mark.parametrize("error", [NoBroker("10.0.0.7:4150"), ValueError("10.0.0.7:4150")])
def test_inner_detail_stays_inside(error: Exception) -> None:
    """Addresses and texts of the inside are not shown."""
    _, _, body = problem_response(error, "r")

    assert b"10.0.0.7" not in body


def test_what_may_be_tried_again_says_when() -> None:
    """A retryable fault has Retry-After in seconds."""
    _, headers, body = problem_response(NoBroker(), "r")

    assert json.loads(body)["retryable"]
    assert (b"retry-after", b"5") in headers


@pytest.mark.parametrize("retry_after_s,expected", [(0.001, b"1"), (1, b"1"), (59.01, b"60")])
def test_a_caller_over_its_rate_is_told_when_it_may_again(
    retry_after_s: float, expected: bytes
) -> None:
    """In whole seconds, as HTTP has it, and never too soon."""
    status, headers, body = problem_response(
        RateLimited(limit_per_s=5, retry_after_s=retry_after_s), "r"
    )

    assert (429, expected) == (status, dict(headers)[b"retry-after"])
    assert json.loads(body)["retryable"]


def test_an_unknown_outcome_is_not_called_retryable() -> None:
    """Trying again could publish twice."""
    _, headers, body = problem_response(OutcomeUnknown(), "r")

    assert not json.loads(body)["retryable"]
    assert "retry-after" not in {name.decode() for name, _ in headers}


def test_a_missing_secret_is_asked_for() -> None:
    """401 names the scheme."""
    _, headers, _ = problem_response(BrokerRefused("E_AUTH_FIRST", ""), "r")

    assert (b"www-authenticate", b"Bearer") in headers


def test_a_detail_that_is_no_text_is_shown_all_the_same() -> None:
    """Bytes of the caller that are not UTF-8 do not break the answer."""
    _, _, body = problem_response(InvalidRequest("INVALID_REQUEST", "a\udcffb"), "r")

    assert "a?b" == json.loads(body)["detail"]


def test_every_fault_is_retryable_exactly_when_nothing_was_done_and_time_may_help() -> None:
    """Every 503 says when, and a 429 by itself; the other two may be mended at once."""
    faults = [*ERROR_RESPONSES.values(), *NSQD_ERROR_RESPONSES.values()]

    retryable = {408, 429, 502, 503}
    assert [fault.status in retryable for fault in faults] == [fault.retryable for fault in faults]
    assert [fault.status == 503 for fault in faults] == [
        fault.retry_after_s is not None for fault in faults
    ]


def test_every_status_has_a_title() -> None:
    """No row names a status without its phrase."""
    statuses = {
        fault.status for fault in [*ERROR_RESPONSES.values(), *NSQD_ERROR_RESPONSES.values()]
    }

    assert set() == statuses - set(TITLES)
