"""Files that may not be read: root may read everything, so a test is somebody else for a while."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534


@contextmanager
def being_nobody() -> Iterator[None]:
    """Be a user who may read only what everybody may, where the test runs as root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Give a folder that every user may enter; pytest's own are for one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
