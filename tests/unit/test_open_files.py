"""The limit of open files: as high as it may be, and told where that is too low."""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway.errors import StartError
from gateway.open_files import (
    OWN_FILES,
    ClientFiles,
    OpenFilesBudget,
    OpenFilesMonitor,
    raise_open_files_limit,
)
from gateway.telemetry import REGISTRY
from tests.support.manual_clock import ManualClock


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
        raise_open_files_limit({"--max-sockets": hard - OWN_FILES})

    assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert [] == lines


def test_a_limit_that_is_too_low_is_told_with_what_to_do(hard: int) -> None:
    """One line: the limit, the need and what it is made of, `ulimit -n`."""
    with capture_logs() as lines:
        raise_open_files_limit({"--max-sockets": 5, "--more": hard - OWN_FILES - 4})

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
        raise_open_files_limit({"--max-sockets": 1_000, "--max-http-connections": 10})

    assert 1_110 == REGISTRY.get_sample_value("nsq_gateway_open_files_needed")


def test_a_limit_that_lets_nobody_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that answers nobody is no gateway; the limit of this process is not touched."""
    monkeypatch.setattr("resource.getrlimit", lambda _which: (20, 20))

    with pytest.raises(StartError, match="the limit of open files is 20, and at least 50"):
        raise_open_files_limit({"--max-sockets": 1})


def test_clients_leave_files_for_nsqd_and_the_management_port() -> None:
    """A hundred and those to publish on, or two fifths of a small limit; each kind leaves more."""
    large, small = OpenFilesBudget(1_024, reserved=4), OpenFilesBudget(200)

    assert [920, 690] == [large.clients_limit, large.sockets_limit]
    assert [120, 90] == [small.clients_limit, small.sockets_limit]


@pytest.mark.parametrize(
    "taken,files,fits",
    [
        ((1, 87), 2, True),
        ((1, 88), 2, False),  # of 90 for sockets
        ((79, 40), 1, True),
        ((80, 40), 1, False),  # of 120 for clients
    ],
)
def test_a_socket_has_to_fit_into_both_shares(
    taken: tuple[int, int], files: int, *, fits: bool
) -> None:
    """That of sockets, and that of all clients; its own connection is taken already."""
    budget = OpenFilesBudget(200)
    budget.get_client_files = lambda: ClientFiles(*taken)

    assert fits is budget.has_files_for_socket(files)


@pytest.mark.parametrize(
    "taken,descriptor,fits",
    [
        ((80, 0), 7, True),
        ((81, 0), 7, False),  # a third of 120 is for those who become sockets
        ((30, 90), 7, True),
        ((31, 90), 7, False),  # no more sockets may come: of 120 for clients
        ((1, 0), 179, True),
        ((1, 0), 180, False),  # somebody has all the others
    ],
)
def test_a_connection_has_to_fit_into_the_share_of_clients(
    taken: tuple[int, int], descriptor: int, *, fits: bool
) -> None:
    """Where the system's lowest free number is high, too much is open already."""
    budget = OpenFilesBudget(200)
    budget.get_client_files = lambda: ClientFiles(*taken)

    assert fits is budget.has_file_for_connection(descriptor)


def test_where_there_is_no_limit_everybody_finds_a_file() -> None:
    """Infinity is no number to be surprised by."""
    budget = OpenFilesBudget(math.inf)
    budget.get_client_files = lambda: ClientFiles(1_000_000, 1_000_000)

    assert budget.has_file_for_connection(1_000_000)
    assert budget.has_files_for_socket(1_000)


async def test_that_no_file_is_left_is_counted_and_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop says nothing of it when it accepts."""
    clock = ManualClock()
    watch = OpenFilesMonitor()
    before = exhausted()
    with capture_logs() as lines:
        watch.start()
        await clock.advance(1)
        assert before == exhausted()
        monkeypatch.setattr("os.open", no_file)
        await clock.advance(1)
        await clock.advance(1)
        monkeypatch.undo()
        await clock.advance(1)
        await watch.stop()
    clock.run_on()

    [line] = lines
    assert before + 2 == exhausted()
    assert ("open files exhausted", "Too many open files") == (line["event"], line["reason"])
    assert "ulimit -n" in line["advice"]


def no_file(*_arguments: object) -> int:
    """Fail as open(2) does without a descriptor."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def exhausted() -> float:
    """Return how often it was counted."""
    return REGISTRY.get_sample_value("nsq_gateway_open_files_exhausted_total") or 0.0
