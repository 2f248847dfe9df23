"""Spark's list of the files of a stream, `_spark_metadata`: the files that count."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from gateway.errors import GatewayError

FOLDER = "_spark_metadata"
_BATCH = re.compile(r"(\d+)(\.compact)?")
_VERSION = "v1"


class UnknownLog(GatewayError):
    """The list has a form that is not known."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{FOLDER}/{name} has {what}: it is not known which files count; let the Spark read it "
            "that wrote it"
        )


@dataclass(frozen=True)
class SinkFile:
    """A file that counts."""

    path: str
    """In full, or with the scheme of its store; as it is spelled there."""
    size_bytes: int


def last_batch(names: Iterable[str]) -> int | None:
    """Return the number of the last batch among the *names* of a log of Spark's; None: none."""
    found = [_BATCH.fullmatch(name) for name in names]
    return max((int(each[1]) for each in found if each is not None), default=None)


def files_of(names: Iterable[str], read: Callable[[str], str]) -> list[SinkFile]:
    """
    Return the files that the log with the entries *names* lists; *read* gives the text of one.

    Raises:
        UnknownLog: An entry is not of version 1, or cannot be read.
    """
    entries = {int(found[1]): found for name in names if (found := _BATCH.fullmatch(name))}
    whole = [number for number, found in entries.items() if found[2]]
    first = max(whole, default=-1)
    files: dict[str, SinkFile] = {}
    for number in sorted(entries):
        if number < first:
            continue
        name = entries[number][0]
        version, *lines = read(name).splitlines() or [""]
        if version != _VERSION:
            raise UnknownLog(name, f"version {version!r}, not {_VERSION}")
        for line in lines:
            try:
                _apply(line, files)
            except (ValueError, TypeError, KeyError) as error:
                raise UnknownLog(name, "a line that cannot be read") from error
    return list(files.values())


def _apply(line: str, files: dict[str, SinkFile]) -> None:
    entry = json.loads(line)
    if entry["action"] == "add":
        files[entry["path"]] = SinkFile(_path_of(entry["path"]), entry["size"])
    else:
        files.pop(entry["path"], None)


def _path_of(url: str) -> str:
    """Return the path that *url* means; the scheme stays, but for that of this machine's files."""
    path = unquote(url)
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
