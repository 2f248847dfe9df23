"""The limit of open files: as high as it may be, and told where that is too low."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway.errors import StartError
from gateway.open_files import OWN_FILES, allow_open_files
from gateway.telemetry import REGISTRY


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
        allow_open_files({"--max-sockets": hard - OWN_FILES})

    assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert [] == lines


def test_a_limit_that_is_too_low_is_told_with_what_to_do(hard: int) -> None:
    """One line: the limit, the need and what it is made of, `ulimit -n`."""
    with capture_logs() as lines:
        allow_open_files({"--max-sockets": 5, "--more": hard - OWN_FILES - 4})

    [line] = lines
    assert ("warning", hard, hard + 1) == (line["log_level"], line["limit"], line["needed"])
    assert "ulimit -n" in line["advice"]
    assert (
        f"5 for --max-sockets, {hard - OWN_FILES - 4} for --more, 100 for the rest" == line["parts"]
    )


@pytest.mark.usefixtures("hard")
def test_what_is_needed_is_a_metric() -> None:
    """It stands beside what the system gives, and an alert compares them."""
    with capture_logs():
        allow_open_files({"--max-sockets": 1_000, "--max-http-connections": 10})

    assert 1_110 == REGISTRY.get_sample_value("nsq_gateway_open_files_needed")


def test_a_limit_that_lets_nobody_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that answers nobody is no gateway; the limit of this process is not touched."""
    monkeypatch.setattr("resource.getrlimit", lambda _which: (20, 20))

    with pytest.raises(StartError, match="may have 20 files open and needs 50"):
        allow_open_files({"--max-sockets": 1})
