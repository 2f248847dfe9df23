"""
Write helm/dashboards/ from tools/dashboards/: python tools/make_dashboards.py.

Who changes a panel changes it there: a line of JSON that Grafana wrote is hard to read in a review.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.dashboards.operations import OPERATIONS  # noqa: E402 - the path comes first
from tools.dashboards.overview import OVERVIEW  # noqa: E402
from tools.dashboards.panels import Dashboard, grafana  # noqa: E402

FOLDER = ROOT / "helm" / "dashboards"
DASHBOARDS = (OVERVIEW, OPERATIONS)


def path_of(dashboard: Dashboard) -> Path:
    """Return the file of a dashboard: its uid is its name."""
    return FOLDER / f"{dashboard.uid}.json"


def text_of(dashboard: Dashboard) -> str:
    """Return what stands in that file."""
    return json.dumps(grafana(dashboard), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every file."""
    for dashboard in DASHBOARDS:
        path_of(dashboard).write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
