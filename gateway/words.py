"""Counts, sizes and durations as a person reads them."""

from __future__ import annotations

_KIB = 1_024


def counted(count: int, what: str) -> str:
    """Return ``1 message``, ``2 messages``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def in_words(size_bytes: float) -> str:
    """Return a number of bytes as a person reads it."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < _KIB:
            return f"{size_bytes:.{0 if unit == 'B' else 1}f} {unit}"
        size_bytes /= _KIB
    return f"{size_bytes:.1f} GiB"


def as_clock(elapsed_s: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
