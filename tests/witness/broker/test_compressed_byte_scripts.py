"""Scripts of bytes get the same answers through compression as from nsqd."""

from __future__ import annotations

import pytest

from tests.support.brokers.byte_scripts import FLAGS
from tests.support.brokers.layer_proxy import layer_proxy
from tests.support.brokers.nsq_clients import broker_program
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.script_player import Address, play

pytestmark = pytest.mark.nsqd


@pytest.mark.parametrize("layer", ["snappy", "deflate"])
async def test_compressed_scripts_are_answered_as_by_nsqd(layer: str) -> None:
    """Every command in every state, cut and changed at random, in front of the codec."""
    async with (
        real_nsqd(*FLAGS) as nsqd,
        broker_program(*FLAGS) as broker,
        layer_proxy(nsqd.tcp_address, layer) as to_nsqd,
        layer_proxy(broker.tcp_address, layer) as to_broker,
    ):
        outcome = await play(
            2,
            range(300),
            [Address(to_nsqd, nsqd.http_address), Address(to_broker, broker.http_address)],
        )

    assert [] == [each for each in outcome.differences if not leaves_the_layer(each)]


def leaves_the_layer(difference: str) -> bool:
    """Return whether nsqd stopped to compress: it does so with a new output buffer size."""
    return "output_buffer_size" in difference.replace("'\n  b'", "")
