"""Leases: only this gateway's are read, whatever is changed in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.leases import (
    MAX_ADDRESS_BYTES,
    OWNER_BYTES,
    Lease,
    LeaseKey,
    LeaseWriter,
    Owner,
)

KEY = LeaseKey(b"k" * 32)
REPLICA = LeaseKey(b"k" * 32)
"""Remembers nothing of what `KEY` wrote, and so checks the signature."""
OWNER = Owner(bytes(range(OWNER_BYTES)), "10.0.0.7:8081", 3)
CALLER = KEY.caller_tag(b"ada")
WRITER = LeaseWriter(KEY, OWNER, 7, CALLER)
TEXT = WRITER.write(["0123456789abcdef-12"], 1_790_000_000_000)[0]


def test_a_lease_says_what_was_written() -> None:
    assert Lease(OWNER, 7, CALLER, "0123456789abcdef-12", 1_790_000_000_000) == REPLICA.read(TEXT)


@given(
    address=st.text(max_size=60),
    holder=st.integers(0, 2**32 - 1),
    number=st.integers(0, 2**32 - 1),
    ends_at_ms=st.integers(0, 2**64 - 1),
    message_id=st.text(st.characters(max_codepoint=255), min_size=16, max_size=16),
)
def test_every_lease_is_read_again(
    address: str, holder: int, number: int, ends_at_ms: int, message_id: str
) -> None:
    """An id is opaque, and may have any byte."""
    owner = Owner(b"12345678", address[: MAX_ADDRESS_BYTES // 4])
    text = LeaseWriter(KEY, owner, holder, CALLER).write([f"{message_id}-{number}"], ends_at_ms)[0]

    assert Lease(owner, holder, CALLER, f"{message_id}-{number}", ends_at_ms) == REPLICA.read(text)


def test_the_writer_of_a_lease_reads_the_same_each_time() -> None:
    key = LeaseKey(b"k" * 32)
    text = LeaseWriter(key, OWNER, 7, CALLER).write(["0123456789abcdef-12"], 1_790_000_000_000)[0]

    assert [key.read(text), key.read(text)] == [REPLICA.read(TEXT)] * 2


def test_any_number_of_leases_is_written_and_read() -> None:
    """More than are remembered."""
    ids = [f"{number:016x}-{number // 100}" for number in range(20_000)]
    key = LeaseKey(b"k" * 32)
    writer = LeaseWriter(key, OWNER, 7, CALLER)

    read = [key.read(text) for text in writer.write(ids, 1_790_000_000_000)]
    assert [None if lease is None else lease.delivery_id for lease in read] == ids


def test_a_lease_of_another_key_is_none() -> None:
    assert LeaseKey(b"other" * 8).read(TEXT) is None


@given(place=st.integers(0, len(TEXT) - 1), char=st.characters(max_codepoint=300))
def test_a_changed_lease_is_none(place: int, char: str) -> None:
    """Any character at any place; base64 has bits that mean nothing, and they count as well."""
    changed = TEXT[:place] + char + TEXT[place + 1 :]

    assert changed == TEXT or REPLICA.read(changed) is None


@given(end=st.integers(0, len(TEXT) - 1), more=st.text(max_size=3))
def test_a_cut_or_longer_lease_is_none(end: int, more: str) -> None:
    assert REPLICA.read(TEXT[:end]) is None
    assert not more or REPLICA.read(TEXT + more) is None


@pytest.mark.parametrize(
    "text", ["", "=", f"{TEXT}=", f"{TEXT}====", "AAAA", "A" * 1_000_000, "ä" * 20, "\0" * 96]
)
def test_what_is_no_lease_at_all_is_none(text: str) -> None:
    assert REPLICA.read(text) is None


def test_a_caller_is_told_apart_but_not_revealed() -> None:
    assert KEY.caller_tag(b"ada") != KEY.caller_tag(b"grace")
    assert b"ada" not in KEY.caller_tag(b"ada")
