"""What tells that a file has changed, or that another stands in its place."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int, int]
"""Device, inode, time of the last change in ns, and size of a file; zeros where none is."""


def stamp_of(path: str | None) -> Stamp:
    """Return the stamp of what *path* leads to, symbolic links followed; None leads nowhere."""
    try:
        found = Path(path).stat() if path else None
    except (OSError, ValueError):
        found = None
    if found is None:
        return 0, 0, 0, 0
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
