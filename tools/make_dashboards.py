"""
Write helm/dashboards/ from tools/dashboards/: python tools/make_dashboards.py.

Change panels in tools/dashboards/, not in Grafana: its exported JSON is hard to review.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.dashboards.brokers import BROKERS  # noqa: E402 - the path comes first
from tools.dashboards.operations import OPERATIONS  # noqa: E402
from tools.dashboards.overview import OVERVIEW  # noqa: E402
from tools.dashboards.panels import Dashboard, grafana  # noqa: E402

FOLDER = ROOT / "helm" / "dashboards"
DASHBOARDS = (OVERVIEW, OPERATIONS, BROKERS)


def path_of(dashboard: Dashboard) -> Path:
    """Return the file of *dashboard*, named after its uid."""
    return FOLDER / f"{dashboard.uid}.json"


def text_of(dashboard: Dashboard) -> str:
    """Return the content of the file of *dashboard*."""
    return json.dumps(grafana(dashboard), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files of all dashboards."""
    for dashboard in DASHBOARDS:
        path_of(dashboard).write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
