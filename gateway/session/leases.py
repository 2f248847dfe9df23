"""
Leases: signed texts that name a delivery, the process that holds it, and the caller it is for.

A client that pulls messages over HTTP has no connection by which the gateway knows it again. So it
gets a lease with each message, and any replica that has the key can tell which process to ask:
docs/pull.md. A lease is opaque to clients.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from gateway.protocol.wire import MESSAGE_ID_BYTES

OWNER_BYTES = 8
"""Size of the random id of a process."""
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 4_096
MAX_LEASE_CHARS = 512
"""Longer texts are no leases: the address in a lease has at most `MAX_ADDRESS_BYTES`."""
MAX_ADDRESS_BYTES = 255

_VERSION = 1
_TAG_BYTES = 16
_HEAD = Struct(f">B{OWNER_BYTES}s8sIB")
"""Version, owner, caller, holder, worker; the size of the address and the address follow."""
_TAIL = Struct(f">IQ{MESSAGE_ID_BYTES}s")
"""Number of the delivery, end in ms since 1970, message id."""


class Owner(NamedTuple):
    """The process that holds deliveries."""

    process: bytes
    """Random; a process that is started anew is another owner."""
    address: str = ""
    """host:port at which other replicas reach it; empty: none does."""
    worker: int = 0
    """Number of the worker process behind that address."""


class Lease(NamedTuple):
    """What a lease says."""

    owner: Owner
    holder: int
    """The number of the consumer or stream in its process."""
    caller: bytes
    """`LeaseKey.caller_tag` of the caller who got it."""
    delivery_id: str
    """As in `session.window`: the message id, a dash and a number."""
    ends_at_ms: int
    """When it was to end, in ms since 1970; a TOUCH may have extended it."""


class LeaseKey:
    """The key by which replicas recognize each other's leases, of 16 to 4 096 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def tag(self, data: bytes) -> bytes:
        """Return the authentication code of *data*, 16 bytes."""
        return hmac.digest(self._key, data, "sha256")[:_TAG_BYTES]

    def is_tag(self, tag: bytes, data: bytes) -> bool:
        """Return whether *tag* is that of *data*; takes the same time for every wrong one."""
        return hmac.compare_digest(tag, self.tag(data))

    def caller_tag(self, caller: bytes) -> bytes:
        """Return 8 bytes that stand for *caller* in a lease, and do not reveal it."""
        return self.tag(b"caller\0" + caller)[:8]

    def read(self, text: str) -> Lease | None:
        """Return what the lease *text* says; None if it was not signed with this key."""
        if len(text) > MAX_LEASE_CHARS:
            return None
        try:
            signed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        data, tag = signed[:-_TAG_BYTES], signed[-_TAG_BYTES:]
        # Encoded again: base64 has several texts for the same bytes, and a lease has one.
        if not self.is_tag(tag, data) or _encoded(signed) != text:
            return None
        return _parse(data)


class LeaseWriter:
    """Write the leases of one holder, a consumer or a stream, for one caller."""

    __slots__ = ("_head", "_key")

    def __init__(self, key: LeaseKey, owner: Owner, holder: int, caller: bytes) -> None:
        self._key = key
        address = owner.address.encode()
        head = _HEAD.pack(_VERSION, owner.process, caller, holder, owner.worker)
        self._head = head + bytes([len(address)]) + address

    def write(self, delivery_id: str, ends_at_ms: int) -> str:
        """Return the lease of a delivery, which ends at *ends_at_ms* (since 1970)."""
        message_id, number = delivery_id[:MESSAGE_ID_BYTES], delivery_id[MESSAGE_ID_BYTES + 1 :]
        tail = _TAIL.pack(int(number), ends_at_ms, message_id.encode("latin-1"))
        data = self._head + tail
        return _encoded(data + self._key.tag(data))

    def write_all(self, delivery_ids: Sequence[str], ends_at_ms: int) -> list[str]:
        """Return the leases of deliveries that end together."""
        return [self.write(delivery_id, ends_at_ms) for delivery_id in delivery_ids]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _parse(data: bytes) -> Lease | None:
    """Return the lease in *data*, which is signed; None if another version wrote it."""
    if len(data) <= _HEAD.size or data[0] != _VERSION:
        return None
    _, process, caller, holder, worker = _HEAD.unpack_from(data)
    size = data[_HEAD.size]
    tail_at = _HEAD.size + 1 + size
    if len(data) != tail_at + _TAIL.size:
        return None
    number, ends_at_ms, message_id = _TAIL.unpack_from(data, tail_at)
    address = data[_HEAD.size + 1 : tail_at].decode("utf-8", "replace")
    delivery_id = f"{message_id.decode('latin-1')}-{number}"
    return Lease(Owner(process, address, worker), holder, caller, delivery_id, ends_at_ms)
