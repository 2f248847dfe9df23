"""Why sockets end: the close code of each reason, and the reason where there is no subscription."""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import BrokerRefused
from gateway.session.actions import EndReason
from gateway.web.faults import CloseCode, fault_of

CLOSE_CODES: dict[EndReason, CloseCode] = {
    EndReason.DONE: CloseCode.NORMAL,
    EndReason.DRAINED: CloseCode.RESTART,
    EndReason.AGED: CloseCode.RESTART,
    EndReason.SLOW: CloseCode.SLOW,
    EndReason.NO_BROKER: CloseCode.NO_BROKER,
    EndReason.TOO_MANY_ERRORS: CloseCode.TOO_MANY_ERRORS,
    EndReason.TOO_FAST: CloseCode.TOO_MANY_ERRORS,
    EndReason.CHANNEL_GONE: CloseCode.CHANNEL_GONE,
    EndReason.FULL: CloseCode.FULL,
    EndReason.NO_AUTH: CloseCode.NO_AUTH,
    EndReason.FORBIDDEN: CloseCode.FORBIDDEN,
    EndReason.SECRET_REFUSED: CloseCode.SECRET_REFUSED,
    EndReason.FAILED: CloseCode.INTERNAL,
}
_NOT_SUBSCRIBED = {
    CloseCode.FORBIDDEN: EndReason.FORBIDDEN,
    CloseCode.NO_BROKER: EndReason.NO_BROKER,
    CloseCode.FULL: EndReason.FULL,
}


class NoSubscription(NamedTuple):
    """What a client is told that could not be subscribed with its AUTH."""

    code: str
    message: str
    reason: EndReason
    is_retryable: bool


def why_not_subscribed(error: Exception) -> NoSubscription:
    """Return what a client is told of *error*; what only the log should know is left out."""
    fault = fault_of(error)
    reason = _NOT_SUBSCRIBED.get(fault.close, EndReason.FAILED)
    if isinstance(error, BrokerRefused):
        return NoSubscription(error.code, error.description, reason, fault.retryable)
    return NoSubscription(fault.token, fault.detail or str(error), reason, fault.retryable)
