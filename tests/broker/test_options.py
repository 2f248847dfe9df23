"""The options have nsqd's names and units where nsqd tells them."""

from __future__ import annotations

from gateway.broker.options import BrokerOptions, as_nsqd_names
from gateway.protocol.wire import Limits


def test_durations_are_told_in_nanoseconds() -> None:
    """As Go writes a duration in JSON."""
    limits = Limits(max_req_timeout_ms=1, msg_timeout_ms=2, max_msg_timeout_ms=3)

    told = as_nsqd_names(BrokerOptions(limits=limits))

    assert (1_000_000, 2_000_000, 3_000_000) == (
        told["max_req_timeout"],
        told["msg_timeout"],
        told["max_msg_timeout"],
    )


def test_the_defaults_are_those_of_nsqd() -> None:
    """Sizes in bytes, counts as they are."""
    told = as_nsqd_names(BrokerOptions())

    assert (1_048_576, 5_242_880, 10_000, 2_500, 0) == (
        told["max_msg_size"],
        told["max_body_size"],
        told["mem_queue_size"],
        told["max_rdy_count"],
        told["max_channel_consumers"],
    )
