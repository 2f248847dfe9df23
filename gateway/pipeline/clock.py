"""The time as rows have it: us since 1970."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """Return the time as us since 1970."""
    return time.time_ns() // 1_000


def moment_of(moment_us: int, timespec: str = "auto") -> str:
    """
    Return *moment_us* (us since 1970) as RFC 3339 has it, in UTC, with a Z.

    *timespec* is what `datetime.isoformat` takes: how many digits a second has.
    """
    moment = _EPOCH + timedelta(microseconds=moment_us)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")
