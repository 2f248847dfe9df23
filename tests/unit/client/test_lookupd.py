"""Tests of `Lookupd` with a faulty nsqlookupd: each fault is counted and not raised."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from gateway.aio import spawn
from gateway.client import lookupd as module
from gateway.client.lookupd import Lookupd, lookupd_url
from gateway.credentials import Secret
from gateway.errors import SettingsError
from gateway.telemetry import REGISTRY
from tests.support.brokers.scripted_lookupd import (
    LookupRequest,
    Rule,
    ScriptedLookupd,
    document,
    endless,
    respond,
    scripted_lookupd,
    send_raw,
    silent,
)
from tests.support.manual_clock import ManualClock, until

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 65_536
NSQD = "127.0.0.1:4150"
FOUND = {NSQD: "127.0.0.1:4151"}


@pytest.fixture(autouse=True)
def _nothing_failed_yet() -> None:
    """Reset the failures: a port may have been used by an earlier test."""
    module._FAILURES.counts.clear()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedLookupd]:
    async with scripted_lookupd(NSQD) as server:
        yield server


@pytest_asyncio.fixture
async def lookupd(server: ScriptedLookupd) -> AsyncIterator[Lookupd]:
    lookupd = asking(server.address)
    yield lookupd
    await lookupd.close()


def asking(address: str, secret: Secret | None = None) -> Lookupd:
    return Lookupd(
        lookupd_url(address),
        timeout_s=TIMEOUT_S,
        max_answer_bytes=MAX_ANSWER_BYTES,
        secret=secret,
    )


def failures(address: str) -> dict[str, float]:
    return {
        sample.labels["reason"]: sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "nsq_gateway_lookup_failures_total"
        and sample.labels["lookupd"] == address
        and sample.value
    }


# The question


async def test_a_topic_is_asked_for_as_go_nsq_does(
    server: ScriptedLookupd, lookupd: Lookupd
) -> None:
    """The request asks for the current format without compression, and quotes the name."""
    assert FOUND == await lookupd.fetch("t#ephemeral")

    question = await server.question()
    assert "/lookup?topic=t%23ephemeral" == question.target
    assert "application/vnd.nsq; version=1.0" == question.headers["accept"]
    assert "identity" == question.headers["accept-encoding"]
    assert "authorization" not in question.headers


async def test_all_nsqds_are_asked_for(server: ScriptedLookupd, lookupd: Lookupd) -> None:
    """Without a topic the request is /nodes."""
    assert FOUND == await lookupd.fetch(None)

    assert "/nodes" == (await server.question()).target


async def test_a_url_may_have_a_path(server: ScriptedLookupd) -> None:
    """The path is a prefix for an nsqlookupd behind a proxy."""
    lookupd = asking(f"http://{server.address}/nsq/one/")

    await lookupd.fetch("t")

    assert "/nsq/one/lookup?topic=t" == (await server.question()).target
    assert server.address == lookupd.address
    await lookupd.close()


async def test_the_secret_goes_in_its_header_only(server: ScriptedLookupd) -> None:
    """The secret is for a proxy in front; no log line contains it."""
    lookupd = asking(server.address, Secret(b"hush-hush"))
    server.rule = respond(401, b"who are you?")

    with capture_logs() as lines:
        assert await lookupd.fetch("t") is None

    question = await server.question()
    assert "Bearer hush-hush" == question.headers["authorization"]
    assert "hush-hush" not in f"{lines}{question.target}"
    await lookupd.close()


async def test_the_environment_changes_nothing(
    server: ScriptedLookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HTTP proxy from the environment is not used."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    lookupd = asking(server.address)

    assert FOUND == await lookupd.fetch("t")

    await lookupd.close()


async def test_a_cookie_is_not_kept(server: ScriptedLookupd, lookupd: Lookupd) -> None:
    """Cookies would accumulate."""
    answer = json.dumps(document(NSQD)).encode()
    server.rule = respond(200, answer, "Set-Cookie: a=b; Max-Age=9999")
    await lookupd.fetch("t")

    await lookupd.fetch("t")

    assert ["cookie" in question.headers for question in server.questions] == [False, False]


# The answer


@pytest.mark.parametrize(
    "rule, reason, detail",
    [
        pytest.param(
            respond(500, b'{"message":"INTERNAL_ERROR"}'),
            "status",
            "answered with status 500",
            id="500",
        ),
        pytest.param(
            respond(200, b"\x00\xff garbage"),
            "malformed",
            "cannot be read: JSON is malformed: invalid character (byte 0)",
            id="garbage",
        ),
        pytest.param(
            respond(200, b" " * 10_000_000),
            "too_big",
            "answers more than 65536 bytes",
            id="10 MB",
        ),
        pytest.param(endless, "too_big", "answers more than 65536 bytes", id="endless"),
        pytest.param(
            send_raw(b"\x00\x01\x02 no HTTP\r\n\r\n"),
            "unreachable",
            "illegal status line: bytearray(b'\\x00\\x01\\x02 no HTTP')",
            id="no HTTP",
        ),
        pytest.param(
            send_raw(b""),
            "unreachable",
            "Server disconnected without sending a response.",
            id="closed",
        ),
        pytest.param(
            send_raw(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"producers":[]}'),
            "unreachable",
            "peer closed connection without sending complete message body "
            "(received 16 bytes, expected 99)",
            id="cut",
        ),
        pytest.param(
            send_raw(b"HTTP/1.1 200 OK\r\n" + b"X-Field: value\r\n" * 10_000),
            "unreachable",
            "Receive buffer too long",
            id="endless head",
        ),
        pytest.param(
            respond(301, b"", f"Location: {'a' * 65_520}"),
            "unreachable",
            "URL too long",
            id="a Location that is too long",
        ),
        pytest.param(
            respond(302, b"", "Location: http://[::1"),
            "unreachable",
            "Invalid URL in location header: Invalid port: ':1'.",
            id="a Location that is no URL",
        ),
        pytest.param(
            send_raw(b"HTTP/1.1 302 M\r\nLocation: http://" + b"\xc3\xa9" * 300 + b"/\r\n\r\n"),
            "unreachable",
            f"Invalid URL in location header: Invalid IDNA hostname: '{'é' * 300}'."[:200],
            id="a Location that is no host",
        ),
    ],
)
async def test_an_answer_of_no_use_is_counted(
    server: ScriptedLookupd, lookupd: Lookupd, rule: Rule, reason: str, detail: str
) -> None:
    """One log line has the reason; nothing is raised."""
    server.rule = rule

    with capture_logs() as lines:
        assert await lookupd.fetch("t") is None
        assert await lookupd.fetch("t") is None

    assert {reason: 2} == failures(server.address)
    warning = {"event": "nsqlookupd unavailable", "log_level": "warning"}
    assert [{**warning, "lookupd": server.address, "reason": detail}] == lines


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(
    server: ScriptedLookupd, lookupd: Lookupd, status: int
) -> None:
    """A redirect would receive the secret."""
    async with scripted_lookupd("127.0.0.1:6666") as elsewhere:
        target = f"Location: http://{elsewhere.address}/lookup?topic=t"
        server.rule = respond(status, b"", target)

        assert await lookupd.fetch("t") is None

    assert [] == elsewhere.questions
    assert {"status": 1} == failures(server.address)


async def test_what_is_too_big_is_cut_off_while_it_is_read(
    server: ScriptedLookupd, lookupd: Lookupd
) -> None:
    """The connection is closed long before the end of the answer."""
    server.rule = endless

    await lookupd.fetch("t")

    await (await server.question()).gone.wait()


async def test_silence_ends_with_the_timeout(server: ScriptedLookupd, lookupd: Lookupd) -> None:
    """The connection is closed, and the failure is counted."""
    server.rule = silent
    clock = ManualClock()
    asked = spawn("ask", lookupd.fetch("t"))
    question = await server.question()

    await clock.advance(TIMEOUT_S - 0.1)
    assert not asked.done()
    await clock.advance(0.1)

    assert await asked is None
    await question.gone.wait()
    assert {"timeout": 1} == failures(server.address)


async def test_a_slow_drip_gains_no_time(server: ScriptedLookupd, lookupd: Lookupd) -> None:
    """The time limit applies to the whole answer."""
    server.rule = silent
    clock = ManualClock()
    asked = spawn("ask", lookupd.fetch("t"))
    question = await server.question()
    question.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")

    for _ in range(10):
        question.writer.write(b" ")
        await clock.advance(TIMEOUT_S / 10)

    assert await asked is None
    assert {"timeout": 1} == failures(server.address)


async def test_a_crowd_of_questions_has_few_connections(
    server: ScriptedLookupd, lookupd: Lookupd
) -> None:
    """Further requests wait; all end within the same time limit."""
    server.rule = silent
    clock = ManualClock()
    asked = [spawn("ask", lookupd.fetch(f"t{number}")) for number in range(100)]
    await until(lambda: len(server.questions) == module._MAX_CONNECTIONS)

    await clock.advance(TIMEOUT_S)

    assert [None] * 100 == [await each for each in asked]
    assert module._MAX_CONNECTIONS == len(server.questions)
    assert {"timeout": 100} == failures(server.address)


async def test_nobody_there_is_told_in_the_words_of_the_system(
    server: ScriptedLookupd, lookupd: Lookupd
) -> None:
    """The reason is "Connection refused", not the text of a library."""
    await server.stop()

    with capture_logs() as lines:
        assert await lookupd.fetch("t") is None

    assert ["Connection refused"] == [line["reason"] for line in lines]
    assert {"unreachable": 1} == failures(server.address)


async def test_a_clear_text_server_is_no_https_server() -> None:
    """A failed TLS handshake is counted, with OpenSSL's message as reason."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    lookupd = asking(f"https://{address}")

    with capture_logs() as lines:
        assert await lookupd.fetch("t") is None

    assert {"unreachable": 1} == failures(address)
    assert ["[SSL: "] == [line["reason"][:6] for line in lines]
    await lookupd.close()
    server.close()


# What is told


async def test_the_return_is_told_once(server: ScriptedLookupd, lookupd: Lookupd) -> None:
    """One line is logged at the first failure, and one at recovery."""
    works, server.rule = server.rule, respond(500, b"")

    with capture_logs() as lines:
        await lookupd.fetch("t")
        await lookupd.fetch("t")
        server.rule = works
        await lookupd.fetch("t")
        await lookupd.fetch("t")

    assert ["nsqlookupd unavailable", "nsqlookupd available again"] == [
        line["event"] for line in lines
    ]
    assert {
        "event": "nsqlookupd available again",
        "lookupd": server.address,
        "log_level": "info",
    } == lines[1]


async def test_one_topic_that_fails_does_not_come_and_go(
    server: ScriptedLookupd, lookupd: Lookupd
) -> None:
    """Recovery is logged once no topic fails any more, or failing topics are dropped."""

    async def only_a_fails(question: LookupRequest) -> None:
        status = 500 if "topic=a" in question.target else 200
        await respond(status, b'{"producers":[]}')(question)

    server.rule = only_a_fails
    with capture_logs() as lines:
        for topic in "abab":
            await lookupd.fetch(topic)
        assert ["nsqlookupd unavailable"] == [line["event"] for line in lines]

        lookupd.forget("a")
        await lookupd.fetch("b")

    assert ["nsqlookupd unavailable", "nsqlookupd available again"] == [
        line["event"] for line in lines
    ]


# Settings


@pytest.mark.parametrize(
    "text, url",
    [
        ("127.0.0.1:4161", "http://127.0.0.1:4161"),
        ("lookup.example:4161", "http://lookup.example:4161"),
        ("[::1]:4161", "http://[::1]:4161"),
        ("http://lookup.example", "http://lookup.example"),
        ("https://lookup.example:4162/nsq", "https://lookup.example:4162/nsq"),
    ],
)
def test_an_address_is_host_and_port_or_a_url(text: str, url: str) -> None:
    """The scheme is http by default."""
    assert httpx.URL(url) == lookupd_url(text)


@pytest.mark.parametrize(
    "text, port",
    [("http://h", "h:80"), ("https://h", "h:443"), ("[::1]:80", "[::1]:80")],
)
async def test_metrics_and_logs_name_host_and_port(text: str, port: str) -> None:
    """Both have the port, even if it is the default and the URL omits it."""
    lookupd = asking(text)

    assert port == lookupd.address
    await lookupd.close()


@pytest.mark.parametrize(
    "text, shown",
    [
        ("lookup.example", "lookup.example"),
        ("", ""),
        ("host:99999", "host:99999"),
        ("ftp://host:21", "ftp://host:21"),
        ("http://", "http://"),
        ("http://host:0", "http://host:0"),
        ("http://host:port", "http://host:port"),
        ("http://user:hush@host:4161", "host:4161"),
        ("http://user:hush@host:x", "host:x"),
        ("http://host:4161/?token=hush", "http://host:4161/"),
        ("http://host:4161/#part", "http://host:4161/#part"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(text: str, shown: str) -> None:
    """A password in a URL must not be logged; nsqlookupd has no passwords."""
    with pytest.raises(SettingsError) as caught:
        lookupd_url(text)

    assert ("lookupd_http_address", shown) == (caught.value.name, caught.value.value)
    assert "hush" not in str(caught.value)
