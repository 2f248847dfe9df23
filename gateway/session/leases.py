"""
Leases: signed texts that name a delivery, the process that holds it, and the caller it is for.

A client that pulls messages over HTTP has no connection by which the gateway knows it again. So it
gets a lease with each message, and any replica that has the key can tell which process to ask:
docs/pull.md. A lease is opaque to clients.
"""

from __future__ import annotations

import hmac
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import NamedTuple

import msgspec

from gateway.protocol.wire import MESSAGE_ID_BYTES

OWNER_BYTES = 8
"""Size of the random id of a process."""
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 4_096
MAX_LEASE_CHARS = 512
"""Longer texts are no leases: the address in a lease has at most `MAX_ADDRESS_BYTES`."""
MAX_ADDRESS_BYTES = 255

_MAX_WRITTEN = 8_192
"""Leases that are remembered, of about 350 bytes each."""
_VERSION = 1
_TAG_BYTES = 16
_HEAD = Struct(f">B{OWNER_BYTES}s8sIB")
"""
Version, owner, caller, holder, worker; the size of the address and the address follow, and zeros to
a size that base64 fills.
"""
_NUMBER_AND_END = Struct(">IQ")
"""Number of the delivery, end in ms since 1970; the message id follows, and the tag."""
_TAIL_BYTES = _NUMBER_AND_END.size + MESSAGE_ID_BYTES


class Owner(NamedTuple):
    """The process that holds deliveries."""

    process: bytes
    """Random; a process that is started anew is another owner."""
    address: str = ""
    """host:port at which other replicas reach it; empty: none does."""
    worker: int = 0
    """Number of the worker process behind that address."""


class Lease(msgspec.Struct, frozen=True, gc=False):
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
        self._written: dict[str, Lease] = {}
        """Leases that were written here and not read since: to look one up is ten times faster."""

    def begin(self, data: bytes) -> blake2b:
        """Begin the authentication code of what starts with *data*: its digest has 16 bytes."""
        mac = self._keyed.copy()
        mac.update(data)
        return mac

    def tag(self, data: bytes) -> bytes:
        """Return the authentication code of *data*, 16 bytes."""
        return self.begin(data).digest()

    def is_tag(self, tag: bytes, data: bytes) -> bool:
        """Return whether *tag* is that of *data*; takes the same time for every wrong one."""
        return hmac.compare_digest(tag, self.tag(data))

    def caller_tag(self, caller: bytes) -> bytes:
        """Return 8 bytes that stand for *caller* in a lease, and do not reveal it."""
        return self.tag(b"caller\0" + caller)[:8]

    def read(self, text: str) -> Lease | None:
        """Return what the lease *text* says; None if it was not signed with this key."""
        return self._written.pop(text, None) or self._read(text)

    def remember(self, text: str, lease: Lease) -> None:
        """Take *text* for *lease* when it is read for the first time."""
        if len(self._written) >= _MAX_WRITTEN:
            self._written.clear()
        self._written[text] = lease

    def _read(self, text: str) -> Lease | None:
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
            owner, caller, holder = _parse_head(data[:-_TAIL_BYTES])
        except (ValueError, StructError, IndexError):
            return None  # another version wrote it
        number, ends_at_ms = _NUMBER_AND_END.unpack_from(data, len(data) - _TAIL_BYTES)
        delivery_id = f"{data[-MESSAGE_ID_BYTES:].decode('latin-1')}-{number}"
        return Lease(owner, holder, caller, delivery_id, ends_at_ms)


class LeaseWriter:
    """Write the leases of one holder, a consumer or a stream, for one caller."""

    __slots__ = ("_head", "_key", "_of")

    def __init__(self, key: LeaseKey, owner: Owner, holder: int, caller: bytes) -> None:
        self._key = key
        self._of = owner, holder, caller
        address = owner.address.encode()
        head = _HEAD.pack(_VERSION, owner.process, caller, holder, owner.worker)
        head += bytes([len(address)]) + address
        self._head = head + bytes(-(len(head) + _TAIL_BYTES + _TAG_BYTES) % 3)

    def write(self, delivery_ids: Sequence[str], ends_at_ms: int) -> list[str]:
        """Return the leases of deliveries, which end at *ends_at_ms* (since 1970)."""
        leases = []
        last = None
        for delivery_id in delivery_ids:
            # Messages that arrived together have one number: only their ids differ.
            number = delivery_id[MESSAGE_ID_BYTES + 1 :]
            if number != last:
                last = number
                begun = self._head + _NUMBER_AND_END.pack(int(number), ends_at_ms)
                of_batch = self._key.begin(begun)
            message_id = delivery_id[:MESSAGE_ID_BYTES].encode("latin-1")
            mac = of_batch.copy()
            mac.update(message_id)
            signed = b2a_base64(begun + message_id + mac.digest(), newline=False)
            lease = signed.translate(_TO_URL).decode()
            self._key.remember(lease, Lease(*self._of, delivery_id, ends_at_ms))
            leases.append(lease)
        return leases


_MIN_CHARS = (_HEAD.size + 1 + _TAIL_BYTES + _TAG_BYTES) * 4 // 3
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
