"""POST /pub and /mpub: checks in nsqd's order, and an answer that means something."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Protocol

import httpx
import pytest

from gateway.client.producer import Producer, ProducerOptions
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, NoBroker, OutcomeUnknown, Overloaded
from gateway.protocol.wire import Limits
from gateway.telemetry import REGISTRY
from gateway.web.auth import AccessPolicy
from gateway.web.rate_limit import PublishBuckets
from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.public_http import public_http
from tests.support.http.raw_http import exchange
from tests.support.http.recording_publisher import RecordingPublisher

SMALL = Limits(max_msg_size_bytes=10, max_body_size_bytes=40, max_req_timeout_ms=5_000)


class OpensClients(Protocol):
    """Opens the public port with a publisher behind it."""

    async def __call__(
        self, publisher: Producer, limits: Limits = SMALL, access: AccessPolicy | None = None
    ) -> httpx.AsyncClient:
        """Return a client of it."""


@pytest.fixture
async def client_of() -> AsyncIterator[OpensClients]:
    """Open public ports, and close them at the end."""
    async with AsyncExitStack() as life:

        async def opened(
            publisher: Producer, limits: Limits = SMALL, access: AccessPolicy | None = None
        ) -> httpx.AsyncClient:
            served = await life.enter_async_context(public_http(publisher, limits, access=access))
            return served.http

        yield opened


async def in_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    """Yield a body whose size is not told."""
    for chunk in chunks:
        yield chunk


@pytest.fixture
def publisher() -> RecordingPublisher:
    """A publisher that a test can make fail."""
    return RecordingPublisher()


async def test_ok_is_nsqds_answer(publisher: RecordingPublisher, client_of: OpensClients) -> None:
    """Status, body and headers are those of nsqd, and a request id."""
    answer = await (await client_of(publisher)).post(
        "/pub?topic=t&defer=5000", content=b"1234567890", headers={"X-Request-Id": "r-1"}
    )

    assert (200, "OK") == (answer.status_code, answer.text)
    assert {
        "content-type": "text/plain; charset=utf-8",
        "content-length": "2",
        "x-nsq-content-type": "nsq; version=1.0",
        "x-request-id": "r-1",
        "date": answer.headers["date"],
    } == dict(answer.headers)
    assert [("t", [b"1234567890"], 5_000)] == publisher.published


async def test_a_body_in_chunks_is_put_together(
    publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    answer = await (await client_of(publisher)).post(
        "/pub?topic=t", content=in_chunks(b"ab", b"", b"\0c")
    )

    assert 200 == answer.status_code
    assert [("t", [b"ab\0c"], 0)] == publisher.published


@pytest.mark.parametrize(
    "target,error,result",
    [
        ("/pub?topic=t", None, "OK"),
        ("/mpub?topic=t", None, "OK"),
        ("/pub", None, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=t", NoBroker("none"), "NO_BROKER"),
        ("/pub?topic=t", ValueError("inner"), "INTERNAL_ERROR"),
    ],
)
async def test_answers_are_counted_by_route_and_result(
    target: str, error: Exception | None, result: str, client_of: OpensClients
) -> None:
    """The metric has the path without its query, and OK or the token."""
    name = "nsq_gateway_publish_requests_total"
    labels = {"route": target.partition("?")[0], "result": result}
    before = REGISTRY.get_sample_value(name, labels) or 0.0

    await (await client_of(RecordingPublisher(error))).post(target, content=b"x")

    assert before + 1 == REGISTRY.get_sample_value(name, labels)


@pytest.mark.parametrize(
    "body,expected",
    [
        (b"", []),
        (b"\n\n", []),
        (b"a\n\nb\r", [b"a", b"b\r"]),
    ],
)
async def test_lines_are_published_together(
    body: bytes, expected: list[bytes], publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    answer = await (await client_of(publisher)).post("/mpub?topic=t", content=body)

    assert (200, "OK") == (answer.status_code, answer.text)
    assert [("t", expected, 0)] == publisher.published


async def test_a_binary_body_is_published_together(
    publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    """Sizes, not newlines, tell the messages apart."""
    body = struct.pack(">ii2si1s", 2, 2, b"a\n", 1, b"b")

    answer = await (await client_of(publisher)).post("/mpub?topic=t&binary=true", content=body)

    assert 200 == answer.status_code
    assert [("t", [b"a\n", b"b"], 0)] == publisher.published


@pytest.mark.parametrize(
    "target,body,status,token",
    [
        ("/pub", b"", 400, "MSG_EMPTY"),
        ("/pub?a=;", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=t;", b"x", 400, "INVALID_REQUEST"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=&defer=x", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a%0Ab", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=5001", b"x", 400, "INVALID_DEFER"),
        ("/pub", b"x" * 11, 413, "MSG_TOO_BIG"),
        ("/mpub", b"x" * 41, 413, "BODY_TOO_BIG"),
        ("/mpub", b"x" * 11, 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=t", b"x" * 11, 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t&binary=1", b"x", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary", b"\0\0\0\1", 413, "BAD_MESSAGE"),
    ],
)
async def test_a_refusal_has_the_word_that_nsqd_finds_first(
    target: str,
    body: bytes,
    status: int,
    token: str,
    publisher: RecordingPublisher,
    client_of: OpensClients,
) -> None:
    """Checks come in nsqd's order, and nothing is published."""
    answer = await (await client_of(publisher)).post(target, content=body)

    assert (status, token) == (answer.status_code, answer.json()["message"])
    assert [] == publisher.published


@pytest.mark.parametrize(
    "target,body,token",
    [
        ("/pub?topic=t", b"x" * 11, "MSG_TOO_BIG"),
        ("/mpub?topic=t", b"123456789\n" * 4 + b"\n", "BODY_TOO_BIG"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1\0\0\0\1a" + b" " * 32, "BODY_TOO_BIG"),
    ],
)
async def test_one_byte_too_many_is_refused_in_chunks_too(
    target: str, body: bytes, token: str, publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    """A body whose size is not told is counted."""
    answer = await (await client_of(publisher)).post(target, content=in_chunks(body[:5], body[5:]))

    assert (413, token) == (answer.status_code, answer.json()["message"])
    assert [] == publisher.published


@pytest.mark.parametrize(
    "error,status,token",
    [
        (Overloaded(waiting_bytes=2, size_bytes=1, limit_bytes=2), 503, "OVERLOADED"),
        (NoBroker("none"), 503, "NO_BROKER"),
        (OutcomeUnknown("cut"), 504, "OUTCOME_UNKNOWN"),
        (BrokerRefused("E_PUB_FAILED", "PUB failed exiting"), 503, "EXITING"),
        (ValueError("inner"), 500, "INTERNAL_ERROR"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_what_the_publisher_says_is_what_the_caller_hears(
    path: str, error: Exception, status: int, token: str, client_of: OpensClients
) -> None:
    """Every outcome but OK is a problem with its token."""
    answer = await (await client_of(RecordingPublisher(error))).post(
        f"{path}?topic=t", content=b"x"
    )

    assert (status, token) == (answer.status_code, answer.json()["message"])
    assert "inner" not in answer.text


async def test_lines_that_grow_too_big_on_the_wire_are_refused(client_of: OpensClients) -> None:
    """Each message takes 4 more bytes in V2: what does not fit one MPUB is BODY_TOO_BIG."""
    publisher = Producer([], ProducerOptions(limits=SMALL))

    fits = await (await client_of(publisher)).post("/mpub?topic=t", content=b"a\n" * 7)
    over = await (await client_of(publisher)).post("/mpub?topic=t", content=b"a\n" * 8)

    assert (503, "NO_BROKER") == (fits.status_code, fits.json()["message"])
    assert (413, "BODY_TOO_BIG") == (over.status_code, over.json()["message"])


@pytest.mark.parametrize("requires_auth,statuses", [(False, [200, 429]), (True, [200, 200])])
async def test_a_secret_that_nobody_looks_at_is_no_caller_of_its_own(
    requires_auth: bool,  # noqa: FBT001
    statuses: list[int],
    publisher: RecordingPublisher,
) -> None:
    """Else whoever is over the rate made up another one."""
    publisher.requires_auth = requires_auth
    quota = PublishBuckets(0.001, burst=1)
    async with public_http(publisher, SMALL, rate_limit=quota) as served:
        answers = [
            await served.http.post(
                "/pub?topic=t", content=b"x", headers={"Authorization": f"Bearer {secret}"}
            )
            for secret in ("alice", "bob")
        ]

    assert statuses == [answer.status_code for answer in answers]


ALICE, OURS = Secret(b"alice"), Secret(b"ours")
BEARER = {"Authorization": "Bearer alice"}


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_a_secret_goes_to_the_publisher(
    path: str, publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    """Whoever brings none publishes without."""
    client = await client_of(publisher)

    await client.post(f"{path}?topic=t", content=b"x", headers=BEARER)
    await client.post(f"{path}?topic=t", content=b"x")

    assert [ALICE, None] == publisher.secrets


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_nsqd_wants_a_secret_and_there_is_none(path: str, client_of: OpensClients) -> None:
    """401 says how to bring one, and not where nsqd is."""
    publisher = RecordingPublisher(AuthRequired("nsqd at inner:4150 asks for AUTH"))

    answer = await (await client_of(publisher)).post(f"{path}?topic=t", content=b"x")

    assert (401, "AUTH_REQUIRED") == (answer.status_code, answer.json()["message"])
    assert "Bearer" == answer.headers["www-authenticate"]
    assert "Authorization: Bearer SECRET" in answer.json()["detail"]
    assert "inner" not in answer.text


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize(
    "error,detail",
    [
        (BrokerRefused("E_AUTH_FAILED", "AUTH failed"), 'E_AUTH_FAILED AUTH failed; topic "t"'),
        (
            BrokerRefused("E_UNAUTHORIZED", 'AUTH failed for PUB on "t" ""'),
            'E_UNAUTHORIZED AUTH failed for PUB on "t" ""',
        ),
        (
            BrokerRefused("E_UNAUTHORIZED", "AUTH no authorizations found"),
            'E_UNAUTHORIZED AUTH no authorizations found; topic "t"',
        ),
    ],
    ids=["not known", "not granted", "nothing granted"],
)
async def test_a_secret_that_is_refused_is_403_and_names_the_topic(
    path: str, error: BrokerRefused, detail: str, client_of: OpensClients
) -> None:
    """nsqd names it when a secret is not good enough, and not when it is not known."""
    client = await client_of(RecordingPublisher(error))

    answer = await client.post(f"{path}?topic=t", content=b"x", headers=BEARER)

    assert (403, detail) == (answer.status_code, answer.json()["detail"])


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_a_secret_that_cannot_be_used_is_400(
    path: str, publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    """Two headers, or one that is malformed: nothing is published."""
    client = await client_of(publisher)
    twice = [("Authorization", "Bearer alice"), ("Authorization", "Bearer bob")]

    answers = [
        await client.post(f"{path}?topic=t", content=b"x", headers=headers)
        for headers in ([("Authorization", "Bearer")], twice)
    ]

    assert [(400, "INVALID_AUTHORIZATION")] * 2 == [
        (answer.status_code, answer.json()["message"]) for answer in answers
    ]
    assert [] == publisher.secrets


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_everybody_may_be_asked_for_a_secret(
    path: str, publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    """--require-auth: before the body is read, whatever nsqd says."""
    client = await client_of(publisher, access=AccessPolicy(require_auth=True))

    without = await client.post(f"{path}?topic=t", content=b"x" * 1_000)
    other = await client.post(f"{path}?topic=t", headers={"Authorization": "Basic YTpi"})
    taken = await client.post(f"{path}?topic=t", content=b"x", headers=BEARER)

    assert [401, 401, 200] == [answer.status_code for answer in (without, other, taken)]
    assert [ALICE] == publisher.secrets


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_who_brings_no_secret_may_be_lent_ours(
    path: str, publisher: RecordingPublisher, client_of: OpensClients
) -> None:
    """--auth-anonymous: who brings one uses that."""
    client = await client_of(publisher, access=AccessPolicy(anonymous_secret=OURS))

    await client.post(f"{path}?topic=t", content=b"x")
    await client.post(f"{path}?topic=t", content=b"x", headers=BEARER)

    assert [OURS, ALICE] == publisher.secrets


REQUESTS = [
    (target, body, chunked)
    for target, body in [
        ("/pub", b""),
        ("/pub", b"x"),
        ("/pub?topic=t", b""),
        ("/pub?topic=t", b"1234567890"),
        ("/pub?topic=t", b"12345678901"),
        ("/pub?topic=t&defer=5000", b"\0\n"),
        ("/pub?topic=t&defer=5001", b"x"),
        ("/pub?topic=a%0A", b"x"),
        ("/mpub", b""),
        ("/mpub?topic=t", b""),
        ("/mpub?topic=t", b"\n\n"),
        ("/mpub?topic=t", b"a\nb\n"),
        ("/mpub?topic=t", b"12345678901"),
        ("/mpub?topic=t", b"12345678\n" * 3 + b"\n" * 13),
        ("/mpub?topic=t", b"123456789\n" * 4 + b"\n"),
        ("/mpub?topic=t", b"x" * 41),
        ("/mpub?topic=t", b"12345678901\n" + b"\n" * 40),
        ("/mpub?topic=t", b"123456789\n" * 3 + b"12345678901\n"),
        ("/mpub?topic=t&binary=0", b"a"),
        ("/mpub?topic=t&binary=1", b""),
        ("/mpub?topic=t&binary=1", b"\0\0\0\0"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\x08"),
        ("/mpub?topic=t&binary=1", b"\xff\xff\xff\xff"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1\0\0\0\0"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1\0\0\0\x0b12345678901"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1\0\0\0\2a"),
        ("/mpub?topic=t&binary", b"\0\0\0\1\0\0\0\1abc"),
        ("/mpub?topic=t&binary=no", b"a\nb"),
    ]
    for chunked in (False, True)
]


@pytest.mark.nsqd
async def test_a_real_nsqd_answers_every_body_so(client_of: OpensClients) -> None:
    """The requests above, whole and in chunks, get the same status and word from nsqd."""
    client = await client_of(RecordingPublisher())
    expected = {}
    actual = {}
    flags = ("--max-msg-size=10", "--max-body-size=40", "--max-req-timeout=5s")
    async with real_nsqd(*flags) as nsqd:
        for request in REQUESTS:
            target, body, chunked = request
            theirs = await exchange(nsqd.http_address, "POST", target, body, chunked=chunked)
            ours = await client.post(target, content=in_chunks(body) if chunked else body)
            expected[request] = theirs.status, theirs.message
            actual[request] = (
                ours.status_code,
                "" if ours.status_code == 200 else ours.json()["message"],
            )

    assert expected == actual
