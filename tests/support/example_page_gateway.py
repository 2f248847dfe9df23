"""A gateway that serves a page, like `make run` serves those of examples/."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.support.gateway import RunningGateway, gateway_with_nsqd
from tests.support.killable_broker import KillableBroker


def gateway_with_pages(
    folder: Path, broker: KillableBroker
) -> AbstractAsyncContextManager[RunningGateway]:
    """Run a gateway that serves *folder* at /."""
    addresses = [broker.tcp_address], [broker.http_address]
    return gateway_with_nsqd(*addresses, f"--static-dir={folder}")
