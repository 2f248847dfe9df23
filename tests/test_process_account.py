"""What a process tells of itself: whether traces can be sent is seen before anything runs."""

from __future__ import annotations

import sys

import pytest

from gateway.errors import SettingRefused
from gateway.process_account import check_tracing
from gateway.settings import ServeSettings
from tests.support.gateway import ON_FREE_PORTS
from tests.support.programs import nsq_gateway

WRONG = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "many"}


def test_traces_that_nobody_wants_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables may be there for others."""
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "many")

    check_tracing(ServeSettings())


def test_a_variable_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry reads it, and its error says which value it is."""
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "many")

    with pytest.raises(SettingRefused, match=r"^--tracing: .*OTEL_.*many"):
        check_tracing(ServeSettings(tracing=True))


def test_an_extra_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(SettingRefused, match=r"pip install '\.\[tracing\]'"):
        check_tracing(ServeSettings(tracing=True))


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_is_wrong_use(workers: int) -> None:
    """The program ends with 2 before anything listens."""
    arguments = ("serve", *ON_FREE_PORTS, "--nsqd-tcp-address=127.0.0.1:1", "--tracing")
    async with nsq_gateway(*arguments, f"--workers={workers}", environment=WRONG) as program:
        await program.said("--tracing: .*OTEL_")

        assert 2 == await program.ended()
