"""Find the browsers of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path


def chromium_binary() -> Path | None:
    found = shutil.which("chromium")
    return Path(found) if found else None


def firefox_binary() -> Path | None:
    found = shutil.which("firefox-esr")
    return Path(found) if found else None
