"""Tests of `AuthProbe`: detect from nsqd's configuration that it requires AUTH."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.client.admin import AuthProbe
from gateway.client.discovery import Discovery
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    respond,
    scripted_lookupd,
    send_raw,
)

NO_OPTION = respond(400, b'{"message":"INVALID_OPTION"}')
NOBODY = respond(200, b"[]")
AN_AUTH_SERVER = respond(200, b'["127.0.0.1:4181"]')


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedLookupd]:
    """Return a server that answers as an nsqd."""
    async with scripted_lookupd() as server:
        yield server


@pytest_asyncio.fixture
async def nsqds(server: ScriptedLookupd) -> AsyncIterator[NsqdHttp]:
    """Return a client of that nsqd."""
    nsqds = NsqdHttp([server.address], Discovery(()), NsqdHttpOptions(timeout_s=1.0))
    await nsqds.start()
    yield nsqds
    await nsqds.stop()


@pytest.mark.parametrize(
    "rule,finds",
    [
        (NOBODY, False),
        (respond(200, b"null"), False),
        (NO_OPTION, False),
        (respond(404, b'{"message":"NOT_FOUND"}'), False),
        (AN_AUTH_SERVER, True),
        (respond(200, b"what is this"), True),
        (send_raw(b""), False),
    ],
)
async def test_an_auth_server_that_is_named_is_one_that_is_asked(
    server: ScriptedLookupd, nsqds: NsqdHttp, rule: Rule, *, finds: bool
) -> None:
    """An unreadable answer counts as AUTH, an unreachable nsqd does not."""
    server.rule = rule

    assert finds is await AuthProbe(nsqds).probe_auth()


async def test_an_answer_counts_for_a_minute(server: ScriptedLookupd, nsqds: NsqdHttp) -> None:
    """nsqd may be restarted with other options."""
    now = 0.0
    probe = AuthProbe(nsqds, clock=lambda: now)
    server.rule = NOBODY
    before = await probe.probe_auth()
    server.rule = AN_AUTH_SERVER
    now = 59.9
    meanwhile = await probe.probe_auth()
    now = 60.0
    after = await probe.probe_auth()

    assert (False, False, True) == (before, meanwhile, after)
    assert 2 == len(server.questions)


async def test_an_nsqd_that_was_not_there_is_asked_again(
    server: ScriptedLookupd, nsqds: NsqdHttp
) -> None:
    """A failed request is not cached."""
    probe = AuthProbe(nsqds)
    server.rule = send_raw(b"")
    before = await probe.probe_auth()
    server.rule = AN_AUTH_SERVER

    assert (False, True) == (before, await probe.probe_auth())


@pytest.mark.nsqd
async def test_a_real_nsqd_tells_it() -> None:
    """Among several nsqds, one with AUTH is found; the embedded broker requires none."""
    async with (
        embedded_broker(has_http=True) as broker,
        real_nsqd() as free,
        real_nsqd("--auth-http-address=127.0.0.1:9") as guarded,
    ):
        found = []
        for others in ([], [guarded.http_address]):
            nsqds = NsqdHttp([broker.http_address, free.http_address, *others], Discovery(()))
            await nsqds.start()
            found.append(await AuthProbe(nsqds).probe_auth())
            await nsqds.stop()

    assert [False, True] == found
