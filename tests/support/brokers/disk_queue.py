"""
Read the files in which nsqd keeps messages, while no nsqd has them open.

A queue ``NAME`` has ``NAME.diskqueue.meta.dat`` (depth, then number and offset of the file that is
read, then of the one that is written) and files ``NAME.diskqueue.000000.dat`` of messages: uint32
size, then timestamp, attempts, id and body as in a frame. Source: go-diskqueue, diskqueue.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_META = ".diskqueue.meta.dat"
_HEAD_BYTES = 8 + 2 + 16


def bodies_on_disk(data_path: Path) -> frozenset[str]:
    """Return the bodies in *data_path* that no queue has handed out yet."""
    return frozenset(body for meta in data_path.glob(f"*{_META}") for body in _bodies(meta))


def _bodies(meta: Path) -> Iterator[str]:
    _, read, written = meta.read_text().split()
    read_file, read_offset = map(int, read.split(","))
    write_file, write_offset = map(int, written.split(","))
    name = meta.name.removesuffix(_META)
    for number in range(read_file, write_file + 1):
        file = meta.with_name(f"{name}.diskqueue.{number:06}.dat")
        data = file.read_bytes() if file.exists() else b""
        end = write_offset if number == write_file else len(data)
        offset = read_offset if number == read_file else 0
        while offset < end:
            start = offset + 4
            offset = start + int.from_bytes(data[offset:start], "big")
            yield data[start + _HEAD_BYTES : offset].decode()
