"""Java, which Spark runs on."""

from __future__ import annotations

import shutil
from pathlib import Path


def java_binary() -> Path | None:
    """Return where Java is; None: it is not installed."""
    found = shutil.which("java")
    return Path(found) if found else None
