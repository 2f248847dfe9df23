"""What holds for every test: witnesses that must be there, and how hard properties are tried."""

from __future__ import annotations

import os

import hypothesis
import pytest

from tests.support.witnesses import WITNESSES, in_ci, require

# HYPOTHESIS_PROFILE=deep is for a night; neither measures time, for a busy machine is no fault.
hypothesis.settings.register_profile("fast", max_examples=50, deadline=None)
hypothesis.settings.register_profile("deep", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose witness is missing; in CI, fail it."""
    require((marker.name for marker in item.iter_markers()), ci=in_ci())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud, as the last thing, which witness was missing and what that cost."""
    not_run = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for witness in WITNESSES:
        count = sum(witness.complaint in reason for reason in not_run)
        if count:
            terminalreporter.section("WITNESS MISSING", yellow=True, bold=True)
            terminalreporter.line(f"{count} tests skipped; {witness.complaint}", yellow=True)
