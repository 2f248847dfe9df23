"""
PURE. What is asked of every nsqd and nsqlookupd over HTTP, and what their answers come to.

An answer says more than its status: a proxy has a 404 of its own, and only nsqd's tells that a
topic or a channel is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlencode

import msgspec

from gateway.errors import InvalidRequest, PartlyDone
from gateway.protocol.http_api import status_of

HTTP_OK = 200
_NOT_THERE = ("CHANNEL_NOT_FOUND", "TOPIC_NOT_FOUND")
"""In this order: where some nsqd has the topic, it is the channel that is missing."""
_LONGEST_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request, the same for every node."""

    method: str
    path: str
    query: Sequence[tuple[str, bytes]] = ()
    """Names and values as they are; values may hold any byte."""

    @property
    def target(self) -> str:
        """Path and query as they go into the request."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A node answered."""

    node: str
    """Host:port of its HTTP."""
    status: int
    body: bytes = field(repr=False)
    date: str = field(default="", compare=False, repr=False)
    """The moment of the answer on the node's clock, as its header says it."""

    @property
    def token(self) -> str:
        """What nsqd says in ``message``; empty when it says nothing there."""
        try:
            return _error_bodies.decode(self.body).message
        except (ValueError, RecursionError):
            return ""


@dataclass(frozen=True, kw_only=True)
class Unreachable:
    """A node did not answer, or not in time, or with too much."""

    node: str
    reason: str


NodeAnswer: TypeAlias = Reached | Unreachable


class _ErrorBody(msgspec.Struct):
    message: str


_error_bodies = msgspec.json.Decoder(_ErrorBody)


def is_done(answer: NodeAnswer) -> bool:
    """Tell whether the node did what it was asked."""
    return isinstance(answer, Reached) and answer.status == HTTP_OK


def why_not(answer: NodeAnswer) -> str:
    """Return in a few words why a node did not do it."""
    if isinstance(answer, Unreachable):
        return answer.reason
    return f"answered {answer.status} {answer.token[:_LONGEST_SHOWN]}".rstrip()


def judge(nsqds: Sequence[NodeAnswer], lookupds: Sequence[NodeAnswer] = ()) -> None:
    """
    Return when at least one nsqd did it, and the others have not what it was about.

    An nsqlookupd has only to answer: it says 200 to the end of a topic that it never knew.

    Raises:
        PartlyDone: A node was not reached or failed, whatever the others did.
        InvalidRequest: TOPIC_NOT_FOUND or CHANNEL_NOT_FOUND, which all nsqds said.
    """
    failures = [
        *_failures("nsqd", nsqds),
        *_failures("nsqlookupd", lookupds),
    ]
    if failures:
        raise PartlyDone(failures)
    if any(map(is_done, nsqds)):
        return
    said = {answer.token for answer in nsqds if isinstance(answer, Reached)}
    token = next(each for each in _NOT_THERE if each in said)
    what = "the channel" if token == _NOT_THERE[0] else "the topic"
    raise InvalidRequest(token, f"no nsqd has {what}; {len(nsqds)} asked")


def _failures(kind: str, answers: Iterable[NodeAnswer]) -> Iterable[str]:
    """Yield a line for each that neither did it, nor has not what it was about."""
    for answer in answers:
        if not (is_done(answer) or _is_missing(answer)):
            yield f"{kind} {answer.node}: {why_not(answer)}"


def _is_missing(answer: NodeAnswer) -> bool:
    if not isinstance(answer, Reached) or answer.token not in _NOT_THERE:
        return False
    return answer.status == status_of(answer.token)
