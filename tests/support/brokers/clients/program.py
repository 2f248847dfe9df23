"""
What the programs on other people's clients have in common.

Each publishes `BODIES` with PUB, MPUB and DPUB, where its client has them, and consumes them on the
channel ``channel``: it requeues the first delivery of ``requeue``, touches ``touch``, and finishes
the rest. It prints each delivery as a line of JSON, and ends with its input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from dataclasses import dataclass

CHANNEL = "channel"
BODIES = (b"finish", b"requeue", b"touch", b"deferred")
DEFER_MS = 50


@dataclass(frozen=True, kw_only=True)
class Work:
    """The command line; every program of another language has the same."""

    address: str
    topic: str
    root_ca_file: str | None
    snappy: bool
    deflate: bool
    secret: str | None


def work_from_command_line() -> Work:
    """Parse the command line, and end the process when its input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--root-ca-file")
    parser.add_argument("--snappy", action="store_true")
    parser.add_argument("--deflate", action="store_true")
    parser.add_argument("--secret")
    work = Work(**vars(parser.parse_args()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    return work


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)  # the clients have threads, greenlets and loops, which end with it


def print_delivery(body: bytes, attempts: int) -> None:
    """Tell the test of one delivery."""
    print(json.dumps([body.decode(), attempts]), flush=True)  # noqa: T201 - this is its output
