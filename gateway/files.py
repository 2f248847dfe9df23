"""Small files that are read again when they change, such as certificates and the access file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeAlias

MAX_FILE_BYTES = 1_048_576

FileFingerprint: TypeAlias = tuple[int, int, int, int]
"""Device, inode, modification time in ns, and size of a file; zeros if there is none."""


class FileUnusable(Exception):
    """A file cannot be read; the text says why, without its path."""


def file_fingerprint(path: str | None) -> FileFingerprint:
    """
    Return the fingerprint of the file at *path*, following symbolic links.

    It changes whether the file is overwritten, replaced, or behind a symbolic link to another
    folder, as for Secrets and ConfigMaps in Kubernetes.
    """
    try:
        found = Path(path).stat() if path else None
    except (OSError, ValueError):
        found = None
    if found is None:
        return 0, 0, 0, 0
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_small_file(path: str) -> bytes:
    """
    Return the contents of the file at *path*.

    Raises:
        FileUnusable: The file is unreadable, not a regular file, or too large: a FIFO or a huge
            file would block the event loop.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - follows symbolic links
        if not stat.S_ISREG(found.st_mode):
            raise FileUnusable("it is not a regular file")
        with Path(path).open("rb") as file:
            # One byte more than allowed shows that a file is too large, and grew meanwhile.
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise FileUnusable(getattr(error, "strerror", None) or str(error)) from error
    if len(content) > MAX_FILE_BYTES:
        size = max(found.st_size, len(content))
        raise FileUnusable(f"it has {size} bytes; limit {MAX_FILE_BYTES} bytes")
    return content
