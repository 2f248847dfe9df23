"""
List where each test file went since a commit: python tools/list_moved_tests.py COMMIT.

A file has moved if git finds it again, or if one file of its name is left; for the others REASONS
has where their tests are, or why they went. The program fails if a file has no reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import PurePosixPath

REASONS = {
    "tests/broker/test_catalog.py": "tests/unit/broker/test_topics_registry.py",
    "tests/broker/test_topic.py": "tests/unit/broker/test_topics.py",
    "tests/pipeline/test_chatter.py": "tests/spark/jobs/test_spark_log_filter.py",
    "tests/pipeline/test_ledger.py": "tests/unit/pipeline/test_pending_batches.py",
    "tests/pipeline/test_management.py": "tests/spark/jobs/test_monitoring_server.py",
    "tests/pipeline/test_notebook.py": "tests/spark/test_examples_on_spark.py",
    "tests/session/test_endings.py": "tests/unit/session/test_session_close.py",
    "tests/session/test_patience.py": "tests/unit/session/test_command_runner_limits.py",
    "tests/session/test_session_laws.py": "tests/unit/session/test_session_model.py",
    "tests/session/test_standing.py": "tests/unit/session/test_session_states.py",
    "tests/test_docs.py": "tests/unit/test_docs.py",
    "tests/test_open_files.py": "tests/unit/test_open_files.py",
    "tests/telemetry/test_otlp_variables.py": "gone: OpenTelemetry checks its variables",
}


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    done = subprocess.run(  # noqa: S603 - git, with arguments of this program
        ["git", *arguments],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def is_test(path: str) -> bool:
    """Return whether *path* is a file with tests."""
    return PurePosixPath(path).match("test_*.py")


def destinations(commit: str) -> dict[str, str]:
    """Return for each test file of *commit* its path today, or a reason, or an empty string."""
    now = [path for path in git("ls-files", "tests", "verification") if is_test(path)]
    found = {path: path for path in git("ls-tree", "-r", "--name-only", commit, "tests")}
    changes = git(
        "diff", "-M35%", "-l5000", "--name-status", commit, "HEAD", "--", *("tests", "verification")
    )
    for change in changes:
        kind, old, *new = change.split("\t")
        if kind.startswith("R"):
            found[old] = new[0]
        elif kind == "D":
            named = [path for path in now if PurePosixPath(path).name == PurePosixPath(old).name]
            found[old] = REASONS.get(old) or (named[0] if len(named) == 1 else "")
    return {old: new for old, new in sorted(found.items()) if is_test(old)}


def main() -> int:
    """Print the list, then a line for each folder with its numbers of files and lines."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):  # noqa: PLR2004
        print(__doc__)  # noqa: T201
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    moved = destinations(sys.argv[1])
    for old, new in moved.items():
        print(f"{old} -> {new or 'UNKNOWN'}")  # noqa: T201
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in git("ls-files", "tests/*.py", "verification/*.py"):
        parts = PurePosixPath(path).parts
        tier = "/".join(parts[:2]) if parts[0] == "tests" and len(parts) > 2 else parts[0]  # noqa: PLR2004
        files[tier] += 1
        with open(path, encoding="utf-8") as text:  # noqa: PTH123
            lines[tier] += sum(1 for _ in text)
    for tier, count in sorted(files.items()):
        print(f"{tier}: {count} files, {lines[tier]} lines")  # noqa: T201
    return 1 if "" in moved.values() else 0


if __name__ == "__main__":
    sys.exit(main())
