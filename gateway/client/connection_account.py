"""What connections to nsqd come to: counted over all of them, and a line in the log for each."""

from __future__ import annotations

import time

from gateway.client.batch import Batch
from gateway.errors import BrokerUnreachable
from gateway.telemetry import OTHER, get_logger, level, tally

logger = get_logger()

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"

_OPEN = level("nsqd_connections", "Connections to nsqd that are open.", ("role",))
_OPENED = tally("nsqd_connections_opened_total", "Connections to nsqd that began.", ("role",))
_LOST = tally(
    "nsqd_connections_lost_total",
    "Connections to nsqd that ended, and not because the gateway closed them.",
    ("role",),
)
_READY = level(
    "ready_messages", "The sum of the RDY that nsqd was told last, over all connections."
)
_ERRORS = tally("nsqd_errors_total", "Error frames from nsqd, by NSQ's code.", ("code",))
_AUTH = tally("auth_total", "AUTHs that nsqd asked for, by what came of it.", ("result",))
_CODES = frozenset(
    {
        *("E_AUTH_DISABLED", "E_AUTH_FAILED", "E_AUTH_FIRST", "E_UNAUTHORIZED"),
        *("E_BAD_BODY", "E_BAD_CHANNEL", "E_BAD_MESSAGE", "E_BAD_PROTOCOL", "E_BAD_TOPIC"),
        *("E_PUB_FAILED", "E_DPUB_FAILED", "E_MPUB_FAILED", "E_SUB_FAILED", "E_IDENTIFY_FAILED"),
        *("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED", "E_INVALID"),
    }
)
"""nsqd's (nsqd/protocol_v2.go): what another broker says besides is counted as one."""

for _role in (PUBLISHER, SUBSCRIBER):
    _OPEN.counts[_role,] = _OPENED.counts[_role,] = _LOST.counts[_role,] = 0


class ConnectionAccount:
    """What one connection came to; `opened` first, `ended` last, or neither."""

    __slots__ = ("_opened_at", "_ready", "_role", "bytes_in", "bytes_out", "messages", "was_ready")

    def __init__(self) -> None:
        self.messages = 0
        """What nsqd has delivered, or has taken."""
        self.bytes_in = 0
        """What was read, before it was decompressed."""
        self.bytes_out = 0
        """What nsqd has taken of messages, as MPUB counts them."""
        self.was_ready = False
        """Whether messages have been asked for."""
        self._ready = 0
        self._role = ""
        self._opened_at = 0.0

    def opened(self, role: str, nsqd: str) -> None:
        """Count it as open, and log it; *role* is `PUBLISHER` or `SUBSCRIBER`."""
        self._role = role
        self._opened_at = time.monotonic()
        _OPEN.counts[role,] += 1
        _OPENED.counts[role,] += 1
        logger.info("nsqd connected", role=role, nsqd=nsqd)

    def ready(self, count: int) -> None:
        """Know that *count* is its RDY from now on."""
        self.was_ready = self.was_ready or count > 0
        _READY.counts[()] += count - self._ready
        self._ready = count

    def published(self, batch: Batch) -> None:
        """Count what nsqd has taken."""
        self.messages += batch.message_count
        self.bytes_out += batch.size_bytes

    def ended(self, error: BrokerUnreachable) -> None:
        """Count it as closed, which *error* tells of, and log how it was."""
        role = self._role
        self.ready(0)
        _OPEN.counts[role,] -= 1
        if not error.is_own:
            _LOST.counts[role,] += 1
        logger.info(
            "nsqd disconnected",
            role=role,
            nsqd=error.address,
            reason=error.reason,
            messages=self.messages,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            seconds=round(time.monotonic() - self._opened_at, 3),
        )


def end_of(address: str, reason: str | None) -> BrokerUnreachable:
    """Return how a connection to *address* ended; None for *reason*: this side was done with it."""
    if reason is None:
        return BrokerUnreachable(address, "closed from this side", is_own=True)
    return BrokerUnreachable(address, reason)


def count_auth(result: str) -> None:
    """Count an AUTH that nsqd asked for; *result* is ok, refused, missing or unanswered."""
    _AUTH.counts[result,] += 1


def count_error(code: str) -> None:
    """Count an error frame."""
    _ERRORS.counts[code if code in _CODES else OTHER,] += 1
