"""Tracing is checked before the process starts anything else."""

from __future__ import annotations

import sys

import pytest

from gateway.errors import SettingRefused
from gateway.server.metrics import check_tracing
from gateway.settings.serve import ServeSettings
from tests.support.gateways.gateway import ON_FREE_PORTS
from tests.support.gateways.programs import nsq_gateway

WRONG = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "many"}


def test_traces_that_nobody_wants_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --tracing, OTEL_* variables are ignored: they may be for other programs."""
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "many")

    check_tracing(ServeSettings())


def test_a_variable_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains OpenTelemetry's error with the value."""
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "many")

    with pytest.raises(SettingRefused, match=r"^--tracing: .*OTEL_.*many"):
        check_tracing(ServeSettings(tracing=True))


def test_an_extra_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains the pip command."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(SettingRefused, match=r"pip install '\.\[tracing\]'"):
        check_tracing(ServeSettings(tracing=True))


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_is_wrong_use(workers: int) -> None:
    """The exit status is 2, and no port was opened."""
    arguments = ("serve", *ON_FREE_PORTS, "--nsqd-tcp-address=127.0.0.1:1", "--tracing")
    async with nsq_gateway(*arguments, f"--workers={workers}", environment=WRONG) as program:
        await program.said("--tracing: .*OTEL_")

        assert 2 == await program.ended()
