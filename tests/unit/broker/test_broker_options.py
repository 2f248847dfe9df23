"""The options have nsqd's names and units where nsqd tells them."""

from __future__ import annotations

from gateway.broker.broker import BrokerOptions, to_nsqd_options
from gateway.protocol.wire import Limits


def test_durations_are_in_nanoseconds() -> None:
    """As Go writes a duration in JSON."""
    limits = Limits(max_req_timeout_ms=1, msg_timeout_ms=2, max_msg_timeout_ms=3)

    options = to_nsqd_options(BrokerOptions(limits=limits))

    assert (1_000_000, 2_000_000, 3_000_000) == (
        options["max_req_timeout"],
        options["msg_timeout"],
        options["max_msg_timeout"],
    )


def test_the_defaults_are_those_of_nsqd() -> None:
    """Sizes in bytes, counts as they are."""
    options = to_nsqd_options(BrokerOptions())

    assert (1_048_576, 5_242_880, 10_000, 2_500, 0) == (
        options["max_msg_size"],
        options["max_body_size"],
        options["mem_queue_size"],
        options["max_rdy_count"],
        options["max_channel_consumers"],
    )
