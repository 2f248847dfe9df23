"""A program that uses the installed client passes `mypy --strict`, unless it misuses the types."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

PROGRAM = """
import asyncio

from gateway.client import (
    ChannelMonitor, ConnectionOptions, Consumer, ConsumerOptions, Delivery, Discovery,
    IdentifyRequest, LookupOptions, NsqdHttp, Overloaded, Producer, ProducerOptions, Secret,
    TlsOptions,
)

LOOKUP = LookupOptions(lookupd_http_addresses=("127.0.0.1:4161",))


async def handle(delivery: Delivery) -> None:
    size_bytes: int = len(delivery.body)
    attempts: int = delivery.attempts
    print(size_bytes, attempts)
    delivery.requeue(1_000, backoff=False)


async def main() -> None:
    options = ProducerOptions(timeout_ms=5_000)
    async with Producer(["127.0.0.1:4150"], options) as producer:
        try:
            await producer.publish("orders", b"one", defer_ms=5_000, secret=Secret(b"s"))
            await producer.publish_many("orders", [b"two", b"three"])
        except Overloaded as error:
            print(error)
    connection = ConnectionOptions(
        offer=IdentifyRequest(feature_negotiation=True, snappy=True),
        tls=TlsOptions(root_ca_file="ca.pem"),
    )
    consumer = Consumer(
        "orders",
        "billing",
        lookup=LOOKUP,
        options=ConsumerOptions(max_in_flight=200, connection=connection),
    )
    async with consumer:
        async for deliveries in consumer.batches():
            consumer.finish(deliveries)
        await consumer.run(handle, concurrency=20)
    discovery = Discovery([], LOOKUP)
    monitor = ChannelMonitor(NsqdHttp([], discovery), discovery)
    is_gone: bool = await monitor.is_gone("127.0.0.1:4150", "orders", "billing", 0.0)
    print(is_gone)


asyncio.run(main())
"""
MISUSES = [
    ('b"one", defer_ms', '"one", defer_ms', "arg-type"),
    ("max_in_flight=200", 'max_in_flight="200"', "arg-type"),
    ("defer_ms=5_000", "defer_s=5", "call-arg"),
    ("is_gone: bool = await", "is_gone: bool =", "assignment"),
    ("int = delivery.attempts", "str = delivery.attempts", "assignment"),
    ("Overloaded, Producer", "Overload, Producer", "attr-defined"),
]


def mypy(source: str, folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """
    Check *source* with the packages that *python* has.

    The programs share a cache, which knows a file by name, size and second: each has its own name.
    """
    program = f"program_{sha256(source.encode()).hexdigest()}.py"
    (folder / program).write_text(source)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--python-executable",
            python,
            "--cache-dir",
            folder.parent / "mypy_cache",
            program,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600.0,
    )


def test_a_program_that_uses_the_client_passes(installed: Path, tmp_path: Path) -> None:
    """`py.typed` is in the wheel, and the types need nothing that the wheel does not bring."""
    checked = mypy(PROGRAM, tmp_path, installed / "bin" / "python")

    assert (0, "Success: no issues found in 1 source file\n") == (
        checked.returncode,
        checked.stdout,
    )


@pytest.mark.parametrize("right, wrong, code", MISUSES)
def test_a_program_that_misuses_a_type_does_not_pass(
    installed: Path, tmp_path: Path, right: str, wrong: str, code: str
) -> None:
    assert 1 == PROGRAM.count(right)
    checked = mypy(PROGRAM.replace(right, wrong), tmp_path, installed / "bin" / "python")

    assert 1 == checked.returncode
    assert f"[{code}]" in checked.stdout
