"""Acks for leases of other replicas, whose management port does what it likes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from gateway.session.pulls import LEASE_LOST
from gateway.web.auth import ANONYMOUS
from gateway.web.subscribe.acks import AckForwarder, AckRequest, AckResponse, LeaseAcks
from gateway.web.subscribe.pull import LeaseIssuer, PullContext, Pulls
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.scripted_lookupd import (
    Rule,
    endless,
    respond,
    scripted_lookupd,
    send_raw,
    silent,
)

KEY = bytes(32)


def lease_of(address: str) -> str:
    """Return a lease whose owner is another replica, at *address*."""
    issuer = LeaseIssuer(KEY, address=address)
    return issuer.writer(1, ANONYMOUS).write(["0123456789abcdef-1"], 0)[0]


@asynccontextmanager
async def acks() -> AsyncIterator[LeaseAcks]:
    """Return what carries out acks in a process without consumers."""
    forwarder = AckForwarder()
    try:
        yield LeaseAcks(Pulls(cast("PullContext", None)), LeaseIssuer(KEY), forwarder)
    finally:
        await forwarder.stop()


async def finish(*leases: str) -> AckResponse:
    async with acks() as replica:
        return await replica.answer(AckRequest(fin=list(leases)), ANONYMOUS)


@pytest.mark.parametrize(
    "rule",
    [
        silent,
        endless,
        send_raw(b""),
        send_raw(b"nonsense\r\n\r\n"),
        respond(403, b"{}"),
        respond(307, b"", "Location: http://x:99999999/"),
        respond(200, b"{"),
        respond(200, b"[]"),
        respond(200, b"[null,null]"),
        respond(200, b'[["E_FIN_FAILED"]]'),
        respond(200, b"[null]" + b" " * 5_000_000),
    ],
)
async def test_an_owner_that_does_its_worst_is_an_unknown_outcome(rule: Rule) -> None:
    """The client may send the ack again; the other leases of the ack have their results."""
    async with scripted_lookupd() as bad, scripted_lookupd() as good:
        bad.rule, good.rule = rule, respond(200, b"[null]")
        lease = lease_of(bad.address)
        response = await finish(lease, lease_of(good.address))
        asked = [question.target for question in bad.questions]

    [refused] = response.refused
    assert (1, lease, "OUTCOME_UNKNOWN") == (response.done, refused.lease, refused.code)
    assert refused.retryable
    assert ["/leases/ack"] == asked


async def test_an_owner_that_is_not_there_has_lost_its_leases() -> None:
    """Nothing was sent, so the client need not try again: NSQ delivers the message again."""
    response = await finish(lease_of(f"127.0.0.1:{free_port()}"), lease_of(""))

    assert [(LEASE_LOST, False)] * 2 == [(each.code, each.retryable) for each in response.refused]


async def test_leases_of_one_owner_are_one_request() -> None:
    """Its results are those of the leases, in their order."""
    async with scripted_lookupd() as owner:
        owner.rule = respond(200, b'[null,["E_FIN_FAILED","late"]]')
        issuer = LeaseIssuer(KEY, address=owner.address)
        writer = issuer.writer(1, ANONYMOUS)
        leases = writer.write([f"0123456789abcdef-{number}" for number in (1, 2)], 0)
        response = await finish(leases[0], "x" * 96, leases[1])

        assert 1 == len(owner.questions)
    codes = [(each.lease, each.code) for each in response.refused]
    assert (1, [("x" * 96, "E_INVALID"), (leases[1], "E_FIN_FAILED")]) == (response.done, codes)
