"""An address that answers: taken before anything is announced, given back at the end."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import httpx
import pytest

from gateway.addresses import split_address
from gateway.aio import spawn
from gateway.errors import StartError
from gateway.listener import HttpListener, listen_tcp
from gateway.protocol.wire import Limits
from gateway.web.http.protocol import HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpServerState
from tests.support.http.plain import NO_TLS
from tests.support.http.recording_publisher import RecordingPublisher


async def hello(
    _scope: object, _receive: object, send: Callable[[object], Awaitable[None]]
) -> None:
    """Answer every request with one word."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_it_answers_on_the_port_that_the_system_chose() -> None:
    """Port 0 becomes a real one by binding."""
    listener = HttpListener("test", "127.0.0.1:0")
    listener.bind()
    await listener.start(hello)

    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        answer = await client.get(f"http://{listener.address}/")
    await listener.stop()

    assert "hello" == answer.text
    assert not listener.address.endswith(":0")


async def test_nothing_answers_after_the_stop() -> None:
    listener = HttpListener("test", "127.0.0.1:0")
    await listener.start(hello)
    await listener.stop()
    await listener.stop()

    host, port = listener.address.split(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_what_was_bound_and_never_started_is_given_back() -> None:
    """A start that fails elsewhere leaves no address taken."""
    listener = HttpListener("test", "127.0.0.1:0")
    listener.bind()
    await listener.stop()

    listen_tcp("again", listener.address).close()


async def test_it_answers_on_a_listener_that_it_is_given() -> None:
    """The address is read off the socket."""
    listener = HttpListener("test", "127.0.0.1:9")
    given = listen_tcp("test", "127.0.0.1:0")
    port = given.getsockname()[1]
    listener.adopt_socket(given)
    await listener.start(hello)

    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        answer = await client.get(f"http://{listener.address}/")
    await listener.stop()

    assert (f"127.0.0.1:{port}", "hello") == (listener.address, answer.text)


async def test_options_of_the_start_go_before_those_of_the_constructor() -> None:
    """What is known later only is said later."""
    listener = HttpListener("test", "127.0.0.1:0", server_header=False, date_header=False)
    await listener.start(hello, server_header=True)

    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        answer = await client.get(f"http://{listener.address}/")
    await listener.stop()

    assert {"server"} == {"server", "date"} & set(answer.headers)


def test_sockets_that_share_a_port_listen_side_by_side() -> None:
    with listen_tcp("one", "127.0.0.1:0", shares_port=True) as one:
        address = f"127.0.0.1:{one.getsockname()[1]}"
        with (
            listen_tcp("two", address, shares_port=True),
            pytest.raises(StartError, match="Address already in use"),
        ):
            listen_tcp("alone", address)


def test_a_taken_address_is_one_sentence_with_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(StartError) as caught:
            listen_tcp("the gateway", address)

    assert (
        f"the gateway cannot listen on {address}: Address already in use; "
        "stop the process that listens there, or use another address"
    ) == str(caught.value)


@pytest.mark.parametrize(
    "address,reason",
    [("nowhere", "is not host:port"), ("192.0.2.1:0", "Cannot assign requested address")],
)
def test_an_address_that_is_not_ours_is_told(address: str, reason: str) -> None:
    """The reason is the system's, or that of the form."""
    with pytest.raises(StartError, match=reason):
        listen_tcp("test", address)


async def test_an_address_is_taken_from_the_bind_on() -> None:
    """Two sockets may be bound to one address; only listening makes it ours."""
    listener = HttpListener("test", "127.0.0.1:0")
    listener.bind()

    with pytest.raises(StartError, match="Address already in use"):
        listen_tcp("again", listener.address)
    await listener.stop()


async def test_an_answer_that_outlasts_the_grace_is_a_reset_and_no_status() -> None:
    """What is not known to have failed is not told as a failure."""
    asked = asyncio.Event()

    async def never(_scope: object, _receive: object, _send: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    listener = HttpListener("test", "127.0.0.1:0", grace_s=0)
    await listener.start(never)
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        answer = spawn("ask", client.get(f"http://{listener.address}/"))
        await asked.wait()
        await listener.stop()
        outcome = (await asyncio.gather(answer, return_exceptions=True))[0]

    assert isinstance(outcome, httpx.TransportError)
    assert 1 == listener.aborted_requests


async def test_every_request_that_is_cut_is_counted() -> None:
    """What waits unread behind another request of its connection counts as one."""
    asked = asyncio.Event()

    async def never(_scope: object, _receive: object, _send: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    listener = HttpListener("test", "127.0.0.1:0", grace_s=0)
    handler = PublishHandler(RecordingPublisher(), Limits())
    await listener.start(never, http=partial(HttpProtocol, HttpServerState(handler)))
    reader, writer = await asyncio.open_connection(*split_address(listener.address))
    writer.write(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n" * 3)
    await asked.wait()
    idle_reader, idle = await asyncio.open_connection(*split_address(listener.address))
    await listener.stop()
    for each in (writer, idle):
        each.close()

    outcomes = await asyncio.gather(reader.read(), idle_reader.read(), return_exceptions=True)
    assert 2 == listener.aborted_requests
    assert not any(outcome for outcome in outcomes if isinstance(outcome, bytes))


async def test_who_is_connected_is_waited_for_and_no_longer() -> None:
    """A drain lets clients that come again find out that they should not."""
    listener = HttpListener("test", "127.0.0.1:0")
    await listener.wait_disconnected(10)
    await listener.start(hello)
    await listener.wait_disconnected(10)
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        await client.get(f"http://{listener.address}/")
        begin = loop.time()
        await listener.wait_disconnected(0.1)
        waited_s = loop.time() - begin
        waiting = spawn("wait", listener.wait_disconnected(10))
    await waiting
    await listener.stop()

    assert 0.1 <= waited_s < 5
    assert loop.time() - begin < 5
    assert 0 == listener.aborted_requests


async def test_an_answer_within_the_grace_is_given() -> None:
    """A stop lets what has begun end."""
    asked, stopping = asyncio.Event(), asyncio.Event()

    async def late(
        scope: object, receive: object, send: Callable[[object], Awaitable[None]]
    ) -> None:
        asked.set()
        await stopping.wait()
        await hello(scope, receive, send)

    listener = HttpListener("test", "127.0.0.1:0")
    await listener.start(late)
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        answer = spawn("ask", client.get(f"http://{listener.address}/"))
        await asked.wait()
        stop = spawn("stop", listener.stop())
        stopping.set()
        await stop

    assert "hello" == (await answer).text


def test_a_bound_socket_does_not_block() -> None:
    """A blocking accept would stop the whole event loop."""
    with listen_tcp("test", "127.0.0.1:0") as listener:
        assert not listener.getblocking()


def test_ipv6_is_bound_as_such() -> None:
    """The family follows from the host."""
    with listen_tcp("test", "[::1]:0") as listener:
        assert socket.AF_INET6 == listener.family


def test_localhost_is_loopback_whatever_a_resolver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway asks nobody for a secret there, so no line in a file may send it elsewhere."""
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *names: asked.append(names))

    with listen_tcp("test", "localhost:0") as listener:
        assert "127.0.0.1" == listener.getsockname()[0]
    assert [] == asked
