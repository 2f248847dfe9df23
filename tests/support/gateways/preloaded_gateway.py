"""
A gateway in a process whose wall clock and name resolution a test controls from outside.

`preload.c` is compiled and loaded before the C library of that process (LD_PRELOAD), so that it
handles every call for the time or a name, also from OpenSSL and uvloop.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.brokers.nsqd import DaemonLog, running
from tests.support.gateways.gateway import ON_FREE_PORTS

_SOURCE = Path(__file__).with_name("preload.c")
_START = "from gateway.cli.main import main; main()"
_ANNOUNCED = r"listening on (http://\S+) \(management: (http://\S+)/readyz\)"


class PreloadedGateway:
    """A running gateway with its clock and names; make one with `preloaded_gateway`."""

    def __init__(self, folder: Path) -> None:
        self._clock = folder / "clock"
        self._hosts = folder / "hosts"
        self.url = ""
        self.management_url = ""
        self.log: DaemonLog
        self.jump(0)
        self.resolve({})

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables of the process that point to both files."""
        return f"PRELOAD_CLOCK={self._clock}", f"PRELOAD_HOSTS={self._hosts}"

    def jump(self, ahead_s: int) -> None:
        """Set its wall clock *ahead_s* seconds ahead of the system's."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("q", ahead_s))

    def resolve(self, names: dict[str, str]) -> None:
        """Set the names below .moving.test and their addresses."""
        written = self._hosts.with_suffix(".new")
        written.write_text("".join(f"{name} {address}\n" for name, address in names.items()))
        written.replace(self._hosts)


@asynccontextmanager
async def preloaded_gateway(
    folder: Path, *flags: str, names: dict[str, str] | None = None
) -> AsyncIterator[PreloadedGateway]:
    """Run ``nsq-gateway serve`` on free ports; *folder* is an empty folder of the test."""
    library = folder / "preload.so"
    built = ("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl")
    subprocess.run(built, check=True, capture_output=True)  # noqa: ASYNC221 - a moment
    gateway = PreloadedGateway(folder)
    gateway.resolve(names or {})
    arguments = (
        # The version of nsqd that tests use is no setting of the gateway.
        *("-u", "NSQ_GATEWAY_NSQD"),
        f"LD_PRELOAD={library}",
        *gateway.environment,
        *(sys.executable, "-c", _START, "serve", *ON_FREE_PORTS, *flags),
    )
    async with running(Path("/usr/bin/env"), "nsq-gateway", *arguments) as (_, log):
        gateway.log = log
        announced = await log.match(_ANNOUNCED)
        gateway.url, gateway.management_url = announced[1], announced[2]
        yield gateway
