"""
Leases: signed texts that name a delivery, the process that holds it, and the caller it is for.

A client that pulls messages over HTTP has no connection by which the gateway knows it again. So it
gets a lease with each message, and any replica that has the key can tell which process to ask:
docs/pull.md. A lease is opaque to clients.
"""

from __future__ import annotations

import hmac
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from hashlib import blake2b, sha256
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
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
"""
Version, owner, caller, holder, worker; the size of the address and the address follow, and zeros to
a size that base64 fills.
"""
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
        # BLAKE2 is a MAC with a key (RFC 7693 §2.9), and takes a quarter of the time of HMAC.
        self._keyed = blake2b(key=sha256(key).digest(), digest_size=_TAG_BYTES)

    def tag(self, data: bytes) -> bytes:
        """Return the authentication code of *data*, 16 bytes."""
        mac = self._keyed.copy()
        mac.update(data)
        return mac.digest()

    def is_tag(self, tag: bytes, data: bytes) -> bool:
        """Return whether *tag* is that of *data*; takes the same time for every wrong one."""
        return hmac.compare_digest(tag, self.tag(data))

    def caller_tag(self, caller: bytes) -> bytes:
        """Return 8 bytes that stand for *caller* in a lease, and do not reveal it."""
        return self.tag(b"caller\0" + caller)[:8]

    def read(self, text: str) -> Lease | None:
        """Return what the lease *text* says; None if it was not signed with this key."""
        if not _MIN_CHARS <= len(text) <= MAX_LEASE_CHARS:
            return None
        try:
            signed = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except ValueError:
            return None
        data = signed[:-_TAG_BYTES]
        # A size that base64 fills: no other text has the same bytes.
        if len(signed) % 3 or not self.is_tag(signed[-_TAG_BYTES:], data):
            return None
        try:
            owner, caller, holder = _parse_head(data[: -_TAIL.size])
        except (ValueError, StructError, IndexError):
            return None  # another version wrote it
        number, ends_at_ms, message_id = _TAIL.unpack_from(data, len(data) - _TAIL.size)
        delivery_id = f"{message_id.decode('latin-1')}-{number}"
        return Lease(owner, holder, caller, delivery_id, ends_at_ms)


class LeaseWriter:
    """Write the leases of one holder, a consumer or a stream, for one caller."""

    __slots__ = ("_head", "_key")

    def __init__(self, key: LeaseKey, owner: Owner, holder: int, caller: bytes) -> None:
        self._key = key
        address = owner.address.encode()
        head = _HEAD.pack(_VERSION, owner.process, caller, holder, owner.worker)
        head += bytes([len(address)]) + address
        self._head = head + bytes(-(len(head) + _TAIL.size + _TAG_BYTES) % 3)

    def write(self, delivery_id: str, ends_at_ms: int) -> str:
        """Return the lease of a delivery, which ends at *ends_at_ms* (since 1970)."""
        message_id, number = delivery_id[:MESSAGE_ID_BYTES], delivery_id[MESSAGE_ID_BYTES + 1 :]
        tail = _TAIL.pack(int(number), ends_at_ms, message_id.encode("latin-1"))
        data = self._head + tail
        return b2a_base64(data + self._key.tag(data), newline=False).translate(_TO_URL).decode()


_MIN_CHARS = (_HEAD.size + 1 + _TAIL.size + _TAG_BYTES) * 4 // 3
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_+/=", b"+/!!!")
"""Base64url (RFC 4648 §5) without padding; the other alphabet's digits are none here."""


@lru_cache(maxsize=4_096)
def _parse_head(head: bytes) -> tuple[Owner, bytes, int]:
    """Return owner, caller and holder of leases with this head, of which there are many."""
    version, process, caller, holder, worker = _HEAD.unpack_from(head)
    if version != _VERSION:
        raise ValueError(version)
    at = _HEAD.size + 1
    address = head[at : at + head[_HEAD.size]].decode()
    return Owner(process, address, worker), caller, holder
