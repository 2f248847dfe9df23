"""Shared by the programs: command line, message bodies and measurement."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

OUTPUT_BUFFER_TIMEOUT_MS = 25
"""The output buffer timeout of every consumer that can request it."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a program, from its command line."""

    nsqd_tcp_address: str
    topic: str
    count: int
    tls_root_ca_file: str | None
    snappy: bool
    # To consume
    channel: str
    max_in_flight: int
    by_lists: bool
    # To publish
    body_bytes: int
    batch: int
    """Messages per command; *count* is a multiple of it."""
    in_flight: int
    """Commands that may wait for their response at a time."""

    @property
    def commands(self) -> int:
        """The number of commands that publish everything."""
        return self.count // self.batch

    @property
    def bodies(self) -> list[bytes]:
        """The messages of one command."""
        return make_bodies(self.batch, self.body_bytes)


def make_bodies(count: int, body_bytes: int) -> list[bytes]:
    """Return *count* texts of hexadecimal digits, which compress to about half."""
    source = random.Random(count)
    return [source.randbytes(body_bytes).hex()[:body_bytes].encode() for _ in range(count)]


def make_documents(count: int, body_bytes: int) -> list[bytes]:
    """Return *count* JSON documents of *body_bytes*, each an order with lines and a note."""
    source = random.Random(count)
    return [_make_document(source, body_bytes) for _ in range(count)]


def _make_document(source: random.Random, body_bytes: int) -> bytes:
    lines = [
        {"sku": source.randbytes(6).hex(), "quantity": source.randrange(9), "price": 12.95}
        for _ in range(body_bytes // 100)
    ]
    order = {"order": source.randrange(10**9), "customer": source.randbytes(8).hex(), "note": ""}
    document = {**order, "lines": lines}
    missing = body_bytes - len(json.dumps(document))
    document["note"] = source.randbytes(missing).hex()[:missing]
    return json.dumps(document).encode()


class Meter:
    """Wall-clock and CPU time of this process since its creation."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def stop(self, messages: int) -> dict[str, float]:
        """Return the usage for *messages*."""
        return {
            "messages": messages,
            "seconds": time.perf_counter() - self._wall_s,
            "cpu_seconds": time.process_time() - self._cpu_s,
        }


async def keep_in_flight(work: Work, publish: Callable[[], Awaitable[object]]) -> None:
    """Call *publish* for each command, with as many tasks as commands may be in flight."""

    async def call(commands: int) -> None:
        for _ in range(commands):
            await publish()

    share, rest = divmod(work.commands, work.in_flight)
    async with asyncio.TaskGroup() as group:
        for number in range(work.in_flight):
            group.create_task(call(share + (number < rest)))


Job = Callable[[Work], Awaitable[dict[str, float]]]


def run(consume: Job, publish: Job) -> None:
    """Run the command line on uvloop, and print the usage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=("consume", "publish"))
    for name in ("--nsqd-tcp-address", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--tls-root-ca-file")
    parser.add_argument("--snappy", action="store_true")
    parser.add_argument("--channel", default="")
    parser.add_argument("--max-in-flight", type=int, default=2_500)
    parser.add_argument("--by-lists", action="store_true")
    parser.add_argument("--body-bytes", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=1)
    asked = vars(parser.parse_args())
    job = consume if asked.pop("job") == "consume" else publish

    async def do() -> dict[str, float]:
        return await job(Work(**asked))

    print(json.dumps(uvloop.run(do())))
