"""
PURE. What an nsqlookupd answers to /lookup and /nodes.

Two forms are read: today's, and the one before nsqlookupd 1.0, which wraps the same document as
``{"status_code": …, "status_txt": …, "data": {…}}``. Source: nsqlookupd/http.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from gateway.addresses import join_address, split_address
from gateway.errors import LookupFailed

HTTP_OK = 200
HTTP_NOT_FOUND = 404

_TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"
_MAX_PORT = 65_535


FoundNsqds: TypeAlias = dict[str, str | None]
"""Each nsqd's TCP host:port, and its HTTP host:port; None where it has no HTTP."""


class LookupFailure(StrEnum):
    """Why an nsqlookupd gave no answer that can be used; `LookupFailed.reason` is one of these."""

    UNREACHABLE = "unreachable"
    """No connection, or it broke before the end of the answer."""
    TIMEOUT = "timeout"
    """The answer was not complete in time."""
    STATUS = "status"
    """It answered with another status than 200, and not with 404 TOPIC_NOT_FOUND."""
    TOO_BIG = "too_big"
    """The answer went on after the number of bytes that is read."""
    MALFORMED = "malformed"
    """The answer is not what an nsqlookupd answers."""


class _Producer(msgspec.Struct):
    """One nsqd; in /nodes *topics* and *tombstones* are parallel."""

    broadcast_address: Annotated[str, msgspec.Meta(max_length=255)]
    tcp_port: Annotated[int, msgspec.Meta(ge=1, le=_MAX_PORT)]
    http_port: object = None
    """-1 or 0 where nsqd has no HTTP; what is not a port is no reason to lose its TCP."""
    topics: list[str] = []
    tombstones: list[bool] = []

    def is_tombstoned_for(self, topic: str) -> bool:
        # Not strict: lists of unequal length are the fault of one node, and no reason to lose it.
        return (topic, True) in zip(self.topics, self.tombstones, strict=False)


class _Document(msgspec.Struct):
    """The answer itself; Go writes an empty list as null where nobody made the list."""

    producers: list[msgspec.Raw] | None


class _Answer(msgspec.Struct):
    """Either form; *message* and *status_txt* are tokens of an error."""

    producers: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    data: _Document | msgspec.UnsetType | None = msgspec.UNSET
    status_code: int = HTTP_OK
    status_txt: str = ""
    message: str = ""


_answers = msgspec.json.Decoder(_Answer)
_producers = msgspec.json.Decoder(_Producer)


def parse_lookup(lookupd: str, status: int, body: bytes) -> FoundNsqds:
    """
    Return every nsqd that has the topic, from the answer to ``/lookup?topic=``.

    A topic that no nsqd has yet is an empty answer. *lookupd* is who answered, for the error.

    Raises:
        LookupFailed: The answer cannot be used; see `parse_nodes`.
    """
    if _is_unknown_topic(status, body):
        return {}
    return {_address_of(each): _http_address_of(each) for each in _read(lookupd, status, body)}


def parse_nodes(lookupd: str, status: int, body: bytes, *, topic: str | None = None) -> FoundNsqds:
    """
    Return every nsqd that is known, from the answer to ``/nodes``.

    With a *topic*, the nsqds that are tombstoned for it are left out: it is being deleted there.
    One entry that cannot be read is left out; the others hold.

    Raises:
        LookupFailed: Status, JSON or shape are wrong, or no entry of several can be read.
    """
    producers = _read(lookupd, status, body)
    return {
        _address_of(producer): _http_address_of(producer)
        for producer in producers
        if topic is None or not producer.is_tombstoned_for(topic)
    }


def _is_unknown_topic(status: int, body: bytes) -> bool:
    """Tell whether nsqlookupd itself says 404: what is not one says so in its own words."""
    if status != HTTP_NOT_FOUND:
        return False
    try:
        answer = _answers.decode(body)
    except (ValueError, RecursionError):
        return False
    return _TOPIC_NOT_FOUND in {answer.message, answer.status_txt}


def _read(lookupd: str, status: int, body: bytes) -> list[_Producer]:
    """Return the entries that can be read."""
    if status != HTTP_OK:
        raise LookupFailed(lookupd, LookupFailure.STATUS, f"answered with status {status}")
    try:
        answer = _answers.decode(body)
    except (ValueError, RecursionError) as error:
        raise LookupFailed(lookupd, LookupFailure.MALFORMED, f"cannot be read: {error}") from error
    if answer.status_code != HTTP_OK:
        detail = f"answered with status_code {answer.status_code}"
        raise LookupFailed(lookupd, LookupFailure.STATUS, detail)
    entries = answer.data.producers if isinstance(answer.data, _Document) else answer.producers
    if isinstance(entries, msgspec.UnsetType):
        raise LookupFailed(lookupd, LookupFailure.MALFORMED, "answered without producers")
    producers = list(_readable(entries or ()))
    if entries and not producers:
        detail = f"none of its {len(entries)} producers can be read"
        raise LookupFailed(lookupd, LookupFailure.MALFORMED, detail)
    return producers


def _readable(entries: Iterable[msgspec.Raw]) -> Iterable[_Producer]:
    """Yield what is an nsqd at an address that can be connected to."""
    for entry in entries:
        try:
            producer = _producers.decode(entry)
            split_address(_address_of(producer))
        except (ValueError, RecursionError):
            continue
        yield producer


def _address_of(producer: _Producer) -> str:
    return join_address(producer.broadcast_address, producer.tcp_port)


def _http_address_of(producer: _Producer) -> str | None:
    port = producer.http_port
    if type(port) is not int or not 1 <= port <= _MAX_PORT:
        return None
    return join_address(producer.broadcast_address, port)
