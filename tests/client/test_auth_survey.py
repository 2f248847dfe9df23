"""Whether an nsqd asks for AUTH, from its own configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.client.auth_survey import AuthSurvey
from gateway.client.lookup import Discovery
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from tests.support.embedded_broker import embedded_broker
from tests.support.nsqd import real_nsqd
from tests.support.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    answering,
    saying,
    scripted_lookupd,
)

NO_OPTION = answering(400, b'{"message":"INVALID_OPTION"}')
NOBODY = answering(200, b"[]")
AN_AUTH_SERVER = answering(200, b'["127.0.0.1:4181"]')


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedLookupd]:
    """Return what answers as an nsqd."""
    async with scripted_lookupd() as server:
        yield server


@pytest_asyncio.fixture
async def nsqds(server: ScriptedLookupd) -> AsyncIterator[NsqdHttp]:
    """Return who asks it."""
    nsqds = NsqdHttp([server.address], Discovery(()), NsqdHttpOptions(timeout_s=1.0))
    await nsqds.start()
    yield nsqds
    await nsqds.stop()


@pytest.mark.parametrize(
    "rule,finds",
    [
        (NOBODY, False),
        (answering(200, b"null"), False),
        (NO_OPTION, False),
        (answering(404, b'{"message":"NOT_FOUND"}'), False),
        (AN_AUTH_SERVER, True),
        (answering(200, b"what is this"), True),
        (saying(b""), False),
    ],
)
async def test_an_auth_server_that_is_named_is_one_that_is_asked(
    server: ScriptedLookupd, nsqds: NsqdHttp, rule: Rule, *, finds: bool
) -> None:
    """What cannot be read may name one; an nsqd that is not there says nothing."""
    server.rule = rule

    assert finds is await AuthSurvey(nsqds).finds_auth()


async def test_an_answer_counts_for_a_minute(server: ScriptedLookupd, nsqds: NsqdHttp) -> None:
    """An nsqd may be started anew with other options."""
    now = 0.0
    survey = AuthSurvey(nsqds, clock=lambda: now)
    server.rule = NOBODY
    before = await survey.finds_auth()
    server.rule = AN_AUTH_SERVER
    now = 59.9
    meanwhile = await survey.finds_auth()
    now = 60.0
    after = await survey.finds_auth()

    assert (False, False, True) == (before, meanwhile, after)
    assert 2 == len(server.questions)


async def test_an_nsqd_that_was_not_there_is_asked_again(
    server: ScriptedLookupd, nsqds: NsqdHttp
) -> None:
    """At once, whenever somebody wants to know."""
    survey = AuthSurvey(nsqds)
    server.rule = saying(b"")
    before = await survey.finds_auth()
    server.rule = AN_AUTH_SERVER

    assert (False, True) == (before, await survey.finds_auth())


@pytest.mark.nsqd
async def test_a_real_nsqd_tells_it() -> None:
    """One that asks for AUTH among others is found; the embedded broker asks for none."""
    async with (
        embedded_broker(has_http=True) as broker,
        real_nsqd() as free,
        real_nsqd("--auth-http-address=127.0.0.1:9") as guarded,
    ):
        found = []
        for others in ([], [guarded.http_address]):
            nsqds = NsqdHttp([broker.http_address, free.http_address, *others], Discovery(()))
            await nsqds.start()
            found.append(await AuthSurvey(nsqds).finds_auth())
            await nsqds.stop()

    assert [False, True] == found
