"""Settings of all tests: external programs, scheduling, and Hypothesis' profiles."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.logging_state import restored_logging
from tests.support.project import ROOT
from tests.support.witnesses import WITNESSES, in_ci, require_witnesses

# HYPOTHESIS_PROFILE=deep is for a night; neither measures time, for a busy machine is no fault.
hypothesis.settings.register_profile("fast", max_examples=50, deadline=None)
hypothesis.settings.register_profile("deep", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """
    Give all browsers to one worker and all of Spark to another: each is started once.

    Other tests go out one by one where they talk through sockets, file by file elsewhere. Stands in
    for ``--dist loadgroup``, which pytest-xdist 3.8 does not apply under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        group = group_of(path)
        return group or (path if path.startswith("tests/unit/") else nodeid)


@functools.cache
def group_of(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.startswith("tests/browser/test_") or re.search(r"mark\.chromium\b", text):
        return "browser"
    return "spark" if re.search(r"mark\.java\b", text) else ""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Schedule groups in the order of the collection."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.fixture(autouse=True)
def _logging_is_restored() -> Iterator[None]:
    """Undo what the test configures: `caplog` of a later test would see lines in another form."""
    with restored_logging():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options with which `make test` and `make verify` share two tiers."""
    parser.addoption(
        "--brokers",
        choices=("embedded", "nsqd", "all"),
        default="embedded",
        help="the brokers that tests/e2e runs with (default: embedded)",
    )
    parser.addoption(
        "--witnesses",
        choices=("nsqd", "others", "all"),
        default="all",
        help="the tests of tests/witness: those that need nsqd only, the others, or all (default)",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen brokers, and start the groups first: they take longest."""
    brokers, witnesses = config.getoption("--brokers"), config.getoption("--witnesses")
    unwanted = {item for item in items if not _is_wanted(item, brokers, witnesses)}
    config.hook.pytest_deselected(items=list(unwanted))
    items[:] = [item for item in items if item not in unwanted]
    items.sort(key=lambda item: not group_of(item.nodeid.partition("::")[0]))


def _is_wanted(item: pytest.Item, brokers: str, witnesses: str) -> bool:
    needed = {witness.name for witness in WITNESSES} & {mark.name for mark in item.iter_markers()}
    if item.nodeid.startswith("tests/e2e/") and brokers != "all":
        return ("nsqd" in needed) == (brokers == "nsqd")
    if item.nodeid.startswith("tests/witness/") and witnesses != "all":
        return (needed <= {"nsqd"}) == (witnesses == "nsqd")
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose witness is missing; in CI, fail it."""
    require_witnesses((marker.name for marker in item.iter_markers()), ci=in_ci())


class ImmediateFailures:
    """Print a failure when it happens: a run that is ended from outside has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name, how long it took and the last lines."""
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.line(
                f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True
            )
            self._terminal.line("\n".join(report.longreprtext.splitlines()[-30:]))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Report failures at once, in the process that has the terminal."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(ImmediateFailures(terminal))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at the end which witness was missing, and how many tests were skipped for it."""
    not_run = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for witness in WITNESSES:
        count = sum(witness.complaint in reason for reason in not_run)
        if count:
            terminalreporter.section("WITNESS MISSING", yellow=True, bold=True)
            terminalreporter.line(f"{count} tests skipped; {witness.complaint}", yellow=True)
