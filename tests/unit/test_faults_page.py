"""docs/faults.md: each fault has a row, and tests/traceability.yaml its tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.project import tree_of
from tools.document_traceability import ROOT, promises

PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## The table")[2].splitlines()
    if re.match(r"\| F\d", line)
]
FAULTS = 34
FOREIGN_METRICS = frozenset({"process_start_time_seconds", "process_resident_memory_bytes"})

WALL_CLOCK: Mapping[str, str] = {
    "access/control.py": "whether a token has ended, and when the access file was read",
    "access/jwks.py": "when the keys of an issuer were fetched, for a metric",
    "broker/broker.py": "when the broker was started, for /info",
    "broker/http.py": "for how long the broker has run, for /stats",
    "broker/server.py": "the timestamp of a message",
    "cli/access.py": "for how long a token is still valid",
    "cli/pub.py": "a Retry-After that names a date",
    "pipeline/jobs/compact.py": "which hours of an archive are over",
    "pipeline/schema.py": "when a message came, a column of its row",
    "pipeline/jobs/vacuum.py": "how long ago a file was written",
    "server/gateway.py": "when the gateway was started, for /info",
    "telemetry/metrics.py": "the time of an exemplar",
    "telemetry/process.py": "when the process was started, for its metric",
    "telemetry/tracing.py": "the begin of a span",
    "web/subscribe/endpoint.py": "when a lease ends, for the text of a refusal",
    "web/subscribe/pull.py": "when a lease ends, for the text of a refusal",
    "web/metrics.py": "the age of a message, whose timestamp is nsqd's",
}
"""Files that may ask for it, and what for; everything that waits asks the event loop's clock."""


def table_id(row: list[str]) -> str:
    return row[0]


def test_there_is_a_row_for_each_fault() -> None:
    """In order, and none without a cell too many or too few."""
    assert [f"F{number}" for number in range(1, FAULTS + 1)] == [row[0] for row in ROWS]
    assert {5} == {len(row) for row in ROWS}


def test_each_fault_has_tests_or_a_reason() -> None:
    """With a test, the row says what happens, what is seen, and what is lost."""
    tests = promises()["docs/faults.md"]["The table"]

    assert [f"{row[0]}: {row[1]}" for row in ROWS] == list(tests)
    for row in ROWS:
        shown = tests[f"{row[0]}: {row[1]}"]
        if isinstance(shown, list):
            assert all(row), row
            assert all("::" in reference for reference in shown)


@pytest.mark.parametrize("row", ROWS, ids=table_id)
def test_every_metric_log_line_and_alert_that_a_row_names_is_there(row: list[str]) -> None:
    """Under this name, in the code or in the chart."""
    code = "".join(path.read_text() for path in sorted((ROOT / "gateway").rglob("*.py")))
    alerts = (ROOT / "helm" / "files" / "alerts.yaml").read_text()
    for quoted in re.findall(r"`([^`]+)`", row[3]):
        name = quoted.partition("{")[0]
        if re.fullmatch(r"[a-z]+(_[a-z]+)+|state", name) and name not in FOREIGN_METRICS:
            assert f'"{name}"' in code, name
        elif re.fullmatch(r"[a-z]+ [a-z, ]+", name):
            assert name in code, name
    for name in re.findall(r"\b[A-Z][a-z]+[A-Z][A-Za-z]+\b", row[3]):
        assert f"alert: {name}\n" in alerts, name


def wall_clock_calls(path: Path) -> Iterator[str]:
    text = r"(time\.)?(time|time_ns|localtime|gmtime)|(\w+\.)*(now|utcnow|today)"
    if not re.search(rf"\b({text})\(", path.read_text()):
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if re.fullmatch(text, called):
                yield called


def test_the_wall_clock_is_read_for_people_only() -> None:
    """It may jump: what is written down for somebody may, a deadline may not."""
    folder = ROOT / "gateway"
    found = {
        str(path.relative_to(folder)): sorted(calls)
        for path in sorted(folder.rglob("*.py"))
        if (calls := set(wall_clock_calls(path)))
    }

    assert sorted(WALL_CLOCK) == sorted(found), found
