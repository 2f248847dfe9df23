"""Who was not let in, and who was told to be slower: counted by a word for the reason."""

from __future__ import annotations

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
)
from gateway.telemetry import tally

SOCKETS_REFUSED = tally(
    "sockets_refused_total", "Requests for a WebSocket that were refused, by reason.", ["reason"]
)
RATE_LIMITED = tally(
    "rate_limited_total",
    "Times that a caller was told to be slower: publishes, commands of a socket that ended by it, "
    "sockets above what one caller may have.",
    ["scope"],
)
PUBLISH, COMMAND, SOCKET = "publish", "command", "socket"

BAD_REQUEST, DRAINING = "bad_request", "draining"
_REASONS: dict[type[Exception], str] = {
    Forbidden: "origin",
    AuthRequired: "auth",
    HeadTooBig: BAD_REQUEST,
    InvalidRequest: BAD_REQUEST,
    NoBroker: "no_broker",
    NoKnownNsqd: "no_broker",
    BrokerUnreachable: "no_broker",
}
_FAILED = "failed"
_OF_ONE_CALLER = {"address_full", "secret_full"}


def count_refused_socket(error: BaseException) -> None:
    """Count that a WebSocket was refused because of *error*."""
    count_refused(_reason_of(error))
    count_crowded(error)


def count_crowded(error: BaseException) -> None:
    """Count, where *error* says so, that a socket is one too many for its caller."""
    if isinstance(error, Full) and error.reason in _OF_ONE_CALLER:
        RATE_LIMITED.counts[SOCKET,] += 1


def count_refused(reason: str) -> None:
    """Count that a WebSocket was refused for *reason*."""
    SOCKETS_REFUSED.counts[reason,] += 1


def _reason_of(error: BaseException) -> str:
    if isinstance(error, Full):
        return error.reason
    if isinstance(error, BrokerRefused):
        return "auth" if error.is_about_access else "nsqd"
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), _FAILED)
