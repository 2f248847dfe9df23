"""What all sockets come to."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from gateway.protocol.frames import Message
from gateway.telemetry import REGISTRY
from gateway.web.metrics import SESSION_METRICS, SocketGauges, observe_age

_AGE = "nsq_gateway_message_age_seconds"


def value(name: str, **labels: str) -> float:
    found = REGISTRY.get_sample_value(name, labels)
    assert found is not None
    return found


def ages() -> tuple[list[float], float]:
    """Return how many messages were up to so old, for four bounds, and the sum."""
    bounds = ("0.001", "1.0", "5.0", "+Inf")
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    shown = {(sample.name, sample.labels.get("le")): sample.value for sample in samples}
    return [shown[f"{_AGE}_bucket", bound] for bound in bounds], shown[f"{_AGE}_sum", None]


@pytest.mark.parametrize("ages_s", [[2.0], [2.0, 2.1, 1.9], [0.2, 2.0, 30.0], [-5.0, 2.0], [-1.0]])
@pytest.mark.parametrize("times", [1, 3])
def test_each_message_is_as_old_as_it_is(
    ages_s: list[float], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alike or not, shared or not; a clock that is ahead of ours gives 0."""
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    messages = [Message(now_ns - int(age_s * 1e9), 1, b"0" * 16, b"") for age_s in ages_s]
    before, sum_before = ages()

    observe_age(messages, times=times)

    counts, sum_after = ages()
    after = [count - was for count, was in zip(counts, before, strict=True)]
    apart = [after[0], *(high - low for low, high in pairwise(after))]
    expected = [
        sum(low < age_s <= high for age_s in ages_s) * times
        for low, high in pairwise((-99, 0, 1, 5, 99))
    ]
    assert expected == apart
    total = sum(max(0.0, age_s) for age_s in ages_s) * times
    assert sum_after - sum_before == pytest.approx(total, abs=0.01)


def test_a_command_is_counted_once_unless_it_stands_for_more() -> None:
    name = "nsq_gateway_socket_commands_total"
    before = value(name, command="FIN"), value(name, command="unreadable")

    SESSION_METRICS.on_commands("FIN", 3)
    SESSION_METRICS.on_commands("")

    after = value(name, command="FIN"), value(name, command="unreadable")
    assert (3, 1) == (after[0] - before[0], after[1] - before[1])


def test_sums_are_those_of_all_sockets() -> None:
    """Each counts what it has in place of what it had; the one with the most is seen."""
    names = ("messages_in_flight", "socket_unsent_bytes", "socket_unsent_max_bytes")
    before = [value(f"nsq_gateway_{name}") for name in names]
    one, other = SocketGauges(), SocketGauges()

    one.update(3, 1_000_000)
    other.update(5, 2_000_000)
    one.update(1, 500_000)
    with_both = [value(f"nsq_gateway_{name}") for name in names]
    one.update(0, 0)
    other.update(0, 0)

    assert [before[0] + 6, before[1] + 2_500_000, max(before[2], 2_000_000)] == with_both
    assert before == [value(f"nsq_gateway_{name}") for name in names]
