"""A gateway that serves a page, like `make run` serves those of examples/."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd


def gateway_with_pages(
    folder: Path, broker: KillableBroker, *flags: str
) -> AbstractAsyncContextManager[RunningGateway]:
    addresses = [broker.tcp_address], [broker.http_address]
    return gateway_with_nsqd(*addresses, f"--static-dir={folder}", *flags)
