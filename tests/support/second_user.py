"""Run part of a test as an unprivileged user: root may read every file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Switch to an unprivileged user when the test runs as root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@contextmanager
def world_readable_folder() -> Iterator[Path]:
    """Yield a folder that every user may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
