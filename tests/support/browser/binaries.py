"""Find the browsers of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path


def chromium_binary() -> Path | None:
    """Return the path of Chromium, or None if it is not installed."""
    found = shutil.which("chromium")
    return Path(found) if found else None


def firefox_binary() -> Path | None:
    """Return the path of Firefox ESR, or None if it is not installed."""
    found = shutil.which("firefox-esr")
    return Path(found) if found else None
