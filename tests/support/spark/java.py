"""Find Java, which Spark needs."""

from __future__ import annotations

import shutil
from pathlib import Path


def java_binary() -> Path | None:
    """Return the path of Java; None if it is not installed."""
    found = shutil.which("java")
    return Path(found) if found else None
