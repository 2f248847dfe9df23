"""Metrics of connections to nsqd."""

from __future__ import annotations

import time
from functools import lru_cache
from itertools import product

from gateway.errors import BrokerUnreachable
from gateway.telemetry import OTHER, LabelLimiter, fast_counter, fast_gauge, get_logger

logger = get_logger()

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"
ROLES = (PUBLISHER, SUBSCRIBER)
_UNKNOWN = (PUBLISHER, OTHER)

NSQDS = LabelLimiter(100)
"""
nsqds (host:port) with their own metric label.

Their number is limited, because each new pod of nsqd has another address.
"""

_OPEN = fast_gauge(
    "nsqd_connections",
    "Open connections to nsqd, by role and nsqd.",
    ("role", "nsqd"),
    zeros=product(ROLES, (OTHER,)),
)
_OPENED = fast_counter(
    "nsqd_connections_opened_total",
    "Connections to nsqd opened, by role and nsqd.",
    ("role", "nsqd"),
    zeros=product(ROLES, (OTHER,)),
)
_LOST = fast_counter(
    "nsqd_connections_lost_total",
    "Connections to nsqd that ended without being closed by the gateway, by role and nsqd.",
    ("role", "nsqd"),
    zeros=product(ROLES, (OTHER,)),
)
_READY = fast_gauge("ready_messages", "Sum of the RDY counts of all connections.")
_AUTH = fast_counter(
    "auth_total",
    "Responses of nsqd to AUTH, by result; missing: callers refused because they had no secret.",
    ("result",),
    zeros=[("ok",), ("refused",), ("missing",), ("unanswered",)],
)
_CODES = frozenset(
    {
        *("E_AUTH_DISABLED", "E_AUTH_FAILED", "E_AUTH_FIRST", "E_UNAUTHORIZED"),
        *("E_BAD_BODY", "E_BAD_CHANNEL", "E_BAD_MESSAGE", "E_BAD_PROTOCOL", "E_BAD_TOPIC"),
        *("E_PUB_FAILED", "E_DPUB_FAILED", "E_MPUB_FAILED", "E_SUB_FAILED", "E_IDENTIFY_FAILED"),
        *("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED", "E_INVALID"),
    }
)
"""Error codes of nsqd (nsqd/protocol_v2.go); any other code is counted under one label."""

_ERRORS = fast_counter(
    "nsqd_errors_total",
    "Error frames from nsqd, by code.",
    ("code",),
    zeros=product(sorted(_CODES | {OTHER})),
)


def nsqd_label(address: str) -> str:
    """Return the metric label of the nsqd at *address*, and create its series at 0."""
    label = NSQDS.label_of(address)
    # From 0 on, so that `increase()` sees the first connection and the first loss.
    for metric in (_OPEN, _OPENED, _LOST):
        metric.init_series(product(ROLES, (label,)))
    return label


@lru_cache(maxsize=1_024)
def _key_of(role: str, address: str) -> tuple[str, str]:
    """Return the label values for connections to *address*; they share one tuple."""
    return role, nsqd_label(address)


class ConnectionMetrics:
    """Count what one connection transfers. Call `opened` first and `ended` last, or neither."""

    __slots__ = ("_key", "_opened_at", "_ready", "bytes_in", "bytes_out", "messages", "was_ready")

    def __init__(self) -> None:
        self.messages = 0
        """Messages delivered by nsqd, or published to it."""
        self.bytes_in = 0
        """Bytes read, before decompression."""
        self.bytes_out = 0
        """Bytes written, after compression and before TLS."""
        self.was_ready = False
        """True if RDY was ever above 0."""
        self._ready = 0
        self._key = _UNKNOWN
        """Role and nsqd label."""
        self._opened_at = 0.0

    def opened(self, role: str, nsqd: str) -> None:
        """Count and log a new connection; *role* is `PUBLISHER` or `SUBSCRIBER`."""
        self._key = _key_of(role, nsqd)
        self._opened_at = time.monotonic()
        _OPEN.counts[self._key] += 1
        _OPENED.counts[self._key] += 1
        if role == SUBSCRIBER:
            logger.info("nsqd connected", role=role, nsqd=nsqd)
        else:
            # The pool logs one line for all its connections to an nsqd.
            logger.debug("publisher connection opened", nsqd=nsqd)

    def ready(self, count: int) -> None:
        """Record that RDY *count* was written; the metric is the sum over all connections."""
        self.was_ready = self.was_ready or count > 0
        _READY.counts[()] += count - self._ready
        self._ready = count

    def ended(self, error: BrokerUnreachable) -> None:
        """Count the connection as ended, as lost if nsqd or a fault ended it; log its totals."""
        # Its RDY leaves the sum with the connection.
        self.ready(0)
        _OPEN.counts[self._key] -= 1
        if not error.is_local:
            _LOST.counts[self._key] += 1
        totals: dict[str, object] = {
            "nsqd": error.address,
            "reason": error.reason,
            "messages": self.messages,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "seconds": round(time.monotonic() - self._opened_at, 3),
        }
        if self._key[0] == SUBSCRIBER:
            logger.info("nsqd disconnected", role=SUBSCRIBER, **totals)
        else:
            logger.debug("publisher connection closed", **totals)


def connection_closed_error(address: str, reason: str | None) -> BrokerUnreachable:
    """Return the error of a closed connection; None as *reason*: this side closed it."""
    if reason is None:
        return BrokerUnreachable(address, "closed from this side", is_local=True)
    return BrokerUnreachable(address, reason)


def count_auth(result: str) -> None:
    """Count one AUTH; *result* is ok, refused, unanswered, or missing (caller without secret)."""
    _AUTH.counts[result,] += 1


def count_error(code: str) -> None:
    """Count an error frame of nsqd."""
    _ERRORS.counts[code if code in _CODES else OTHER,] += 1
