"""
The one table from an error to what a caller sees of it: status, token, close code.

A body is RFC 9457 ``application/problem+json`` with nsqd's ``message`` beside it, so that a program
that reads nsqd's errors reads these too. 4xx and 503 mean: not published. Only 504 means: unknown.
"""

from __future__ import annotations

import enum
import math

import msgspec

from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    Forbidden,
    Full,
    HeadTooBig,
    InvalidRequest,
    NoBroker,
    NoKnownNsqd,
    OutcomeUnknown,
    Overloaded,
    PartlyDone,
    RateLimited,
    RequestTimeout,
)
from gateway.protocol.http_api import NSQ_HEADER, status_of
from gateway.web.answers import TITLES, Answer


class CloseCode(enum.IntEnum):
    """Why a WebSocket is closed; from 4500 on it means: do not come back."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    WRONG_KIND = 1003
    NOT_UTF8 = 1007
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    FULL = 1013
    NO_BROKER = 1014
    MISSED_PONG = 4000
    SLOW = 4001
    SECRET_REFUSED = 4003
    CHANNEL_GONE = 4004
    BAD_REQUEST = 4500
    NO_AUTH = 4501
    FORBIDDEN = 4503
    TOO_MANY_ERRORS = 4508


class Fault(msgspec.Struct, frozen=True, gc=False):
    """What a caller sees of an error."""

    status: int
    token: str
    close: CloseCode
    detail: str | None = None
    """What is said in place of the error's own text, which names addresses; None keeps it."""
    retryable: bool = False
    """Whether the same request may succeed later, without a doubled message."""
    retry_after_s: int | None = None


INTERNAL_ERROR = Fault(
    500,
    "INTERNAL_ERROR",
    CloseCode.INTERNAL,
    "the gateway failed; its log tells more under this request id",
)
NO_BROKER = Fault(
    503,
    "NO_BROKER",
    CloseCode.NO_BROKER,
    "no nsqd can be reached; nothing was done, try again later",
    retryable=True,
    retry_after_s=5,
)
OUTCOME_UNKNOWN = Fault(
    504,
    "OUTCOME_UNKNOWN",
    CloseCode.INTERNAL,
    "nsqd was asked and has not answered; the message may or may not be published, "
    "and trying again may publish it twice",
)
EXITING = Fault(
    503,
    "EXITING",
    CloseCode.NO_BROKER,
    "nsqd is shutting down; nothing was published, try again later",
    retryable=True,
    retry_after_s=1,
)
DRAINING = Fault(503, "EXITING", CloseCode.RESTART, retryable=True, retry_after_s=1)
"""The gateway itself is shutting down."""
AUTH_REQUIRED = Fault(
    401,
    "AUTH_REQUIRED",
    CloseCode.NO_AUTH,
    "a secret is asked for and none was brought; nothing was done, send it as "
    "Authorization: Bearer SECRET",
)
NOT_FOUND = Fault(404, "NOT_FOUND", CloseCode.BAD_REQUEST)
METHOD_NOT_ALLOWED = Fault(405, "METHOD_NOT_ALLOWED", CloseCode.BAD_REQUEST)
UPGRADE_REQUIRED = Fault(426, "UPGRADE_REQUIRED", CloseCode.BAD_REQUEST)

FAULTS: dict[type[Exception], Fault] = {
    Forbidden: Fault(403, "FORBIDDEN", CloseCode.FORBIDDEN),
    AuthRequired: AUTH_REQUIRED,
    Full: Fault(503, "FULL", CloseCode.FULL, retryable=True, retry_after_s=5),
    Overloaded: Fault(503, "OVERLOADED", CloseCode.FULL, retryable=True, retry_after_s=1),
    NoBroker: NO_BROKER,
    NoKnownNsqd: msgspec.structs.replace(NO_BROKER, detail=None),
    BrokerUnreachable: NO_BROKER,
    OutcomeUnknown: OUTCOME_UNKNOWN,
    # Each node is left as it was asked to be, however often it is asked.
    PartlyDone: Fault(502, "PARTLY_DONE", CloseCode.INTERNAL, retryable=True),
    RequestTimeout: Fault(408, "REQUEST_TIMEOUT", CloseCode.BAD_REQUEST, retryable=True),
    HeadTooBig: Fault(431, "HEAD_TOO_BIG", CloseCode.BAD_REQUEST),
    RateLimited: Fault(429, "RATE_LIMITED", CloseCode.FULL, retryable=True),
}
"""Fault by class; InvalidRequest and BrokerRefused carry a word of their own, see `fault_of`."""


def _invalid(token: str) -> Fault:
    return Fault(status_of(token), token, CloseCode.BAD_REQUEST)


REFUSALS: dict[tuple[str, str], Fault] = {
    ("E_BAD_TOPIC", ""): _invalid("INVALID_TOPIC"),
    ("E_BAD_CHANNEL", ""): _invalid("INVALID_ARG_CHANNEL"),
    ("E_BAD_MESSAGE", "too big"): _invalid("MSG_TOO_BIG"),
    ("E_BAD_MESSAGE", "invalid message body size"): _invalid("MSG_EMPTY"),
    ("E_BAD_MESSAGE", ""): _invalid("BAD_MESSAGE"),
    ("E_BAD_BODY", "too big"): _invalid("BODY_TOO_BIG"),
    ("E_BAD_BODY", ""): _invalid("BAD_BODY"),
    ("E_INVALID", "DPUB"): _invalid("INVALID_DEFER"),
    ("E_SUB_FAILED", ""): Fault(503, "SUB_FAILED", CloseCode.FULL, retryable=True, retry_after_s=5),
    ("E_PUB_FAILED", ""): EXITING,
    ("E_DPUB_FAILED", ""): EXITING,
    # nsqd stores the messages of an MPUB one by one: a disk error leaves a part published.
    ("E_MPUB_FAILED", "exiting"): EXITING,
    ("E_MPUB_FAILED", ""): OUTCOME_UNKNOWN,
    ("E_AUTH_FIRST", ""): AUTH_REQUIRED,
    ("E_AUTH_FAILED", ""): Fault(403, "AUTH_FAILED", CloseCode.FORBIDDEN),
    ("E_UNAUTHORIZED", ""): Fault(403, "UNAUTHORIZED", CloseCode.FORBIDDEN),
}
"""
What nsqd's own HTTP says to the same request, by the code and a part of the description.

The first row that fits counts. Source: nsqd/http.go beside nsqd/protocol_v2.go; SUB and the AUTH
codes have no twin in HTTP.
"""


def fault_of(error: BaseException) -> Fault:
    """Return what a caller sees of *error*: the row of its nearest class, or INTERNAL_ERROR."""
    if isinstance(error, InvalidRequest):
        return _invalid(error.token)
    if isinstance(error, BrokerRefused):
        for (code, part), fault in REFUSALS.items():
            if code == error.code and part in error.description:
                return fault
    for kind in type(error).__mro__:
        if kind in FAULTS:
            return FAULTS[kind]
    return INTERNAL_ERROR


def naming(error: BrokerRefused, topic: str, channel: str | None = None) -> BrokerRefused:
    """
    Return *error* with the names that it was about, where they are not in it.

    nsqd names them when a secret is not good enough, and not when it is not known.
    """
    if not error.is_about_access or f'"{topic}"' in error.description:
        return error
    names = f'topic "{topic}"' if channel is None else f'topic "{topic}", channel "{channel}"'
    return BrokerRefused(error.code, f"{error.description}; {names}")


def problem(error: BaseException, request_id: str) -> Answer:
    """Return the answer to a request that ended in *error*; inner detail is left out."""
    fault = fault_of(error)
    if isinstance(error, RateLimited):
        fault = msgspec.structs.replace(fault, retry_after_s=math.ceil(error.retry_after_s))
    return render(fault, str(error) if fault.detail is None else fault.detail, request_id)


def render(fault: Fault, detail: str, request_id: str) -> Answer:
    """Return the answer that shows *fault* to a caller, with *detail* for a person."""
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": TITLES[fault.status],
            "status": fault.status,
            # What came in may hold bytes that are not UTF-8, as lone surrogates.
            "detail": detail.encode("utf-8", "replace").decode(),
            "message": fault.token,
            "retryable": fault.retryable,
            "request_id": request_id,
        }
    )
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        # It may repeat what came in: no browser is to take it for a page.
        (b"x-content-type-options", b"nosniff"),
        NSQ_HEADER,
        (b"x-request-id", request_id.encode()),
    ]
    if fault.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % fault.retry_after_s))
    if fault.status == 401:  # noqa: PLR2004 - RFC 9110 asks for it beside this status
        headers.append((b"www-authenticate", b"Bearer"))
    return fault.status, headers, body
