"""PURE. What a replay is: where rows go, who would notice, and which replay a checkpoint is of."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from gateway.errors import SettingRefused
from gateway.protocol.wire import is_valid_name

EPHEMERAL = "#ephemeral"
_VERSION = 1
_LONGEST_NAME = 64
_MOST_SHOWN = 5
_SPARK_CLASS = re.compile(r"^\[[A-Z][A-Z0-9_.]*\]\s*")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+;?")


class Tally(NamedTuple):
    """What a replay has of one topic."""

    topic: str
    target: str
    """Where it goes."""
    rows: int
    size_bytes: int
    """Of the bodies."""
    first_us: int | None
    """When nsqd took the first of them, us since 1970; None: nobody wrote it down."""
    last_us: int | None


class Channels(NamedTuple):
    """What the HTTP of nsqd says of some topics."""

    of_topics: Mapping[str, Collection[str]]
    """The channels of each topic, over all nsqds."""
    silent: Sequence[str] = ()
    """The nsqds that did not say, host:port."""
    silent_lookupds: Sequence[str] = ()
    """The nsqlookupds that did not say which nsqds there are, host:port."""
    is_known: bool = True
    """Whether there was anybody to ask."""


NOBODY_TO_ASK = Channels({}, is_known=False)


def target_of(topic: str | None, to_topic: str, suffix: str) -> str:
    """
    Return where the rows of *topic* go: *to_topic*, or its own name with *suffix* behind it.

    Raises:
        SettingRefused: With it the name is none that NSQ takes; or *topic* is None, which rows of
            a damaged or foreign archive may have.
    """
    if topic is None:
        reason = "some rows have no topic, so nothing says what they are; leave them out with"
        raise SettingRefused("--where", f"{reason} --where 'topic IS NOT NULL'")
    if to_topic:
        return to_topic
    stem = topic.removesuffix(EPHEMERAL)
    target = f"{stem}{suffix}{topic[len(stem) :]}"
    if not is_valid_name(target.encode()):
        fault = f"{target!r} is no name of a topic"
        if len(target) > _LONGEST_NAME:
            fault = f"{target} has {len(target)} characters, and a name has {_LONGEST_NAME} at most"
        raise SettingRefused("--to-topic", f"{fault}; say where the rows of {topic!r} go")
    return target


def reasons_to_ask(tallies: Sequence[Tally], channels: Channels) -> list[str]:
    """Return why somebody has to agree, a sentence each: who would get what is replayed."""
    archived = {tally.topic for tally in tallies}
    reasons = []
    for target in dict.fromkeys(tally.target for tally in tallies):
        if target in archived:
            reasons.append(
                f"{target} is the topic that was archived: all its consumers get the messages a "
                "second time, and an archive of it gets them, too"
            )
        found = sorted(channels.of_topics.get(target, ()))
        if found:
            names = ", ".join(found[:_MOST_SHOWN]) + (", …" if len(found) > _MOST_SHOWN else "")
            what = "a channel" if len(found) == 1 else f"{len(found)} channels"
            reasons.append(f"{target} has {what} ({names}), whose consumers get every message")
    if channels.silent:
        nodes = ", ".join(channels.silent)
        reasons.append(f"nsqd at {nodes} does not say which channels there are")
    if channels.silent_lookupds:
        nodes = ", ".join(channels.silent_lookupds)
        reasons.append(f"nsqlookupd at {nodes} does not say which nsqds there are")
    return reasons


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which replay a checkpoint is of: with anything else, its list of files would mean nothing."""

    input: str
    """The whole path."""
    topic: tuple[str, ...]
    where: str
    to_topic: str
    distinct: bool

    def as_text(self) -> str:
        """Return it for a file."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=2) + "\n"

    def require_same(self, text: str, checkpoint: str) -> None:
        """
        Return if *text*, of `as_text` at *checkpoint*, is about the same replay.

        Raises:
            SettingRefused: It is another one's, and why.
        """
        before = _parsed(text)
        if before is None:
            reason = "its notes of a replay cannot be read; use another folder"
            raise SettingRefused(f"--checkpoint {checkpoint}", reason)
        for name, value in json.loads(self.as_text()).items():
            if before.get(name) != value:
                shown = f"{_shown(before.get(name))} there, {_shown(value)} now"
                reason = (
                    f"it is of a replay with another {name} ({shown}), and what is done of it says "
                    "nothing of this one; use another folder"
                )
                raise SettingRefused(f"--checkpoint {checkpoint}", reason)


def _parsed(text: str) -> dict[str, object] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _shown(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"


def done_rows_of(text: str | None) -> int:
    """Return the number in *text*, which whoever was killed may have left half written; else 0."""
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0


def one_sentence(message: str) -> str:
    """Return the first line of an error of Spark's, without its numbers for machines."""
    lines = message.strip().splitlines() or [""]
    return _SQL_STATE.sub("", _SPARK_CLASS.sub("", lines[0])).strip().removesuffix(".")
