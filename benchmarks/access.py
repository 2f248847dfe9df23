"""The cost of the access file: publishes with a token compared with publishes without."""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.harness import (
    KEPT_MESSAGES,
    Server,
    Usage,
    gateway,
    real_nsqd,
    resident_bytes,
)
from benchmarks.publish import Load, ask_for
from benchmarks.table import Benchmark, Row, compare, in_turn

_GOAL = 1.05
_ISSUER, _AUDIENCE = "https://id.example.com", "nsq"
_TOKENS = 10_000
_KIB = 1_024

_FILE = f"""
[[issuer]]
issuer = "{_ISSUER}"
audience = "{_AUDIENCE}"
key_file = "KEY"

[[rule]]
when = {{ group = "bench" }}
grants = [{{ topic = "^bench", permissions = ["publish"] }}]
"""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, rounds, tokens = (1, 1, 500) if quick else (3, 9, _TOKENS)
    about = (
        "one gateway with an access file and a token of 700 bytes in each request, beside one "
        "without, once with the same header and once with none; each has an nsqd of its own; "
        f"{rounds} rounds, in turn; goal: at most {_GOAL}; "
        f"then the memory of {tokens} distinct tokens"
    )
    return Benchmark(about, _rows(seconds, rounds, tokens))


def _rows(seconds: int, rounds: int, tokens: int) -> Iterator[Row]:
    load = Load("/pub", 64, 200)
    with tempfile.TemporaryDirectory() as folder:
        key = Ed25519PrivateKey.generate()
        path = _write_access_file(Path(folder), key)
        with (
            real_nsqd(mem_queue_messages=KEPT_MESSAGES) as nsqd,
            real_nsqd(mem_queue_messages=KEPT_MESSAGES) as second,
            real_nsqd(mem_queue_messages=KEPT_MESSAGES) as third,
            gateway(nsqd, f"--access-file={path}") as checked,
            gateway(second) as unchecked,
            gateway(third) as plain,
        ):
            with_token = replace(load, token=_token(key, 0))
            sides = {
                "checked": partial(ask_for, with_token, checked, nsqd, seconds),
                "the same header, unchecked": partial(
                    ask_for, with_token, unchecked, second, seconds
                ),
                "none": partial(ask_for, load, plain, third, seconds),
            }
            spent = in_turn(sides, rounds=rounds)
            for peer in ("none", "the same header, unchecked"):
                yield _compare(f"{load.name}, token ÷ {peer}", spent["checked"], spent[peer])
            yield _memory(key, checked, tokens)


def _write_access_file(folder: Path, key: Ed25519PrivateKey) -> Path:
    public = folder / "key.pem"
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    path = folder / "access.toml"
    path.write_text(_FILE.replace("KEY", str(public)))
    return path


def _token(key: Ed25519PrivateKey, number: int) -> str:
    claims = {
        "iss": _ISSUER,
        "aud": _AUDIENCE,
        "sub": f"user-{number}",
        "exp": int(time.time()) + 3_600,
        "group": "bench",
        "pad": "x" * 300,
    }
    return jwt.encode(claims, key, algorithm="EdDSA")


def _compare(name: str, checked: list[Usage], peer: list[Usage]) -> Row:
    """Compare the CPU time per request; the rates are shown beside it."""
    rates = (statistics.median(each.rate for each in side) for side in (checked, peer))
    note = " ÷ ".join(f"{rate:,.0f}" for rate in rates) + " a second"
    ours, theirs = ([each.cpu_us for each in side] for side in (checked, peer))
    return compare(name, "µs CPU", ours, theirs, note)


def _memory(key: Ed25519PrivateKey, server: Server, tokens: int) -> Row:
    """Publish once with each of *tokens* distinct tokens; compare the memory after and before."""
    _publish_each(key, server, range(1, 2_000))  # what any traffic takes
    before = resident_bytes(server.pid)
    _publish_each(key, server, range(2_000, 2_000 + tokens))
    after = resident_bytes(server.pid)
    note = f"{(after - before) / _KIB / tokens:.2f} KiB a token"
    return compare(
        f"{tokens} tokens, memory after ÷ before", "MiB", [after / 2**20], [before / 2**20], note
    )


def _publish_each(key: Ed25519PrivateKey, server: Server, numbers: range) -> None:
    url = f"http://{server.http}/pub?topic=bench%23ephemeral"
    for number in numbers:
        headers = {"Authorization": f"Bearer {_token(key, number)}"}
        with urllib.request.urlopen(urllib.request.Request(url, b"x", headers)) as answer:
            answer.read()
