"""Histories that a test tells, event by event, and recorded ones as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from tests.support.history.events import Event, Record

Story: TypeAlias = list[Event | float]
"""Events a hundredth of a second apart; a number is a pause, in seconds."""


def told(story: Story) -> list[Record]:
    """Return the records of *story*."""
    records: list[Record] = []
    now_s = 100.0
    for each in story:
        if isinstance(each, float):
            now_s += each
            continue
        now_s += 0.01
        records.append(Record(now_s, each))
    return records


def write_history(records: Sequence[Record], folder: Path) -> Path:
    """Write *records* to a file in *folder*, one on each line; return its path."""
    path = folder / "history.txt"
    path.write_text("".join(f"{record.at_s:.3f} {record.event}\n" for record in records))
    return path
