"""A gateway that serves a page, as `make run` does with the pages of examples/."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.support.gateway import RunningGateway, gateway_with_nsqd
from tests.support.mortal_broker import MortalBroker


def serving_page(folder: Path, broker: MortalBroker) -> AbstractAsyncContextManager[RunningGateway]:
    """Run a gateway that serves *folder* at /."""
    addresses = [broker.tcp_address], [broker.http_address]
    return gateway_with_nsqd(*addresses, f"--static-dir={folder}")
