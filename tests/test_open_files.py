"""The limit of open files: as high as it may be, and told where that is too low."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway.open_files import allow_open_files


@pytest.fixture
def hard() -> Iterator[int]:
    """Return the hard limit, while the soft one is below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_becomes_the_hard_one(hard: int) -> None:
    """What is needed is there then, and nothing is said."""
    with capture_logs() as lines:
        allow_open_files(hard)

    assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert [] == lines


def test_a_limit_that_is_too_low_is_told_with_what_to_do(hard: int) -> None:
    """One line: the limit, the need, `ulimit -n`."""
    with capture_logs() as lines:
        allow_open_files(hard + 1)

    [line] = lines
    assert ("warning", hard, hard + 1) == (line["log_level"], line["limit"], line["needed"])
    assert "ulimit -n" in line["advice"]
