"""`nsq-gateway health`: its requests, its output and its exit status."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gateway.cli.health import NoAnswer, check_health
from gateway.errors import SettingsError
from gateway.settings.commands import HealthSettings
from gateway.settings.serve import ServeSettings
from tests.support.gateways.gateway import ON_FREE_PORTS, WITH_EMBEDDED_BROKER
from tests.support.gateways.programs import nsq_gateway

_LISTENING = r"management: http://(\S+)/readyz"


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Yield the address of a server that sends *answer* once; None: it accepts and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4_096)
                if answer is None:
                    connection.recv(1)
                else:
                    connection.sendall(answer)

        done = pool.submit(serve)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        done.result(timeout=10)


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 " + status.encode() + b"\r\nconnection: close\r\n\r\n" + body


@pytest.mark.parametrize(
    "status,body,expected",
    [
        ("200 OK", b"ready\n", (True, "ready")),
        ("503 Service Unavailable", b"worker 1\r\ndraining\n", (False, "worker 1 draining")),
        ("404 Not Found", b"", (False, "status 404")),
        ("200", b"\xff", (True, "�")),
        ("200", b"ready\x1b[2J\x07", (True, "ready [2J")),
        ("200 OK", b"x" * 9_000, (True, "x" * 400)),
    ],
)
def test_the_answer_is_the_status_and_the_words(
    status: str, body: bytes, expected: tuple[bool, str]
) -> None:
    """Only 200 is healthy. The body is printed on one line of limited length."""
    with answering(http(status, body)) as address:
        assert expected == check_health(address, "ready", 5)


@pytest.mark.parametrize("listen", ["0.0.0.0", "[::]", "localhost"])  # noqa: S104 - asked
def test_every_address_of_this_machine_means_loopback(listen: str) -> None:
    """A wildcard address such as 0.0.0.0 is valid for listening, not for connecting."""
    host = "::1" if listen == "[::]" else "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server, ThreadPoolExecutor(1) as pool:

        def serve() -> bytes:
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(4_096)
                connection.sendall(http("200 OK", b"alive"))
                return asked

        asked = pool.submit(serve)
        answer = check_health(f"{listen}:{server.getsockname()[1]}", "live", 5)

    assert (True, "alive") == answer
    assert asked.result().startswith(b"GET /livez HTTP/1.1\r\n")


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n\r\n", b"\x00" * 20_000])
def test_what_speaks_no_http_is_no_management_port(answer: bytes) -> None:
    """The error is one sentence, however long the response is."""
    with answering(answer) as address, pytest.raises(NoAnswer, match="is not a management port"):
        check_health(address, "ready", 5)


def test_a_silent_port_is_given_up_in_time() -> None:
    """The time limit is for the whole response, and the error contains it."""
    with answering(None) as address, pytest.raises(NoAnswer, match=r"within 0\.1 s \(--timeout-s"):
        check_health(address, "ready", 0.1)


@pytest.mark.parametrize("head", [b"", http("200 OK", b"")], ids=["head", "body"])
def test_a_port_that_sends_byte_by_byte_is_given_up_in_time(head: bytes) -> None:
    """Each read is within the time limit, but the whole response, head or body, is not."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve() -> bool:
            """Send single bytes for about 5 s; return whether the client closes before."""
            connection, _ = server.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(head)
                connection.settimeout(0.01)
                for _ in range(500):
                    try:
                        connection.sendall(b"H")
                        if not connection.recv(4_096):
                            return True
                    except TimeoutError:
                        continue
                    except OSError:
                        return True
                return False

        has_closed = pool.submit(serve)
        with pytest.raises(NoAnswer, match=r"within 0\.2 s"):
            check_health(f"127.0.0.1:{server.getsockname()[1]}", "ready", 0.2)

    assert has_closed.result()


def test_a_port_that_nobody_listens_on_is_named() -> None:
    """The error contains the address and the setting for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    with pytest.raises(NoAnswer, match=rf"{address} does not answer .*--management-listen"):
        check_health(address, "ready", 5)


def test_port_0_is_refused() -> None:
    """Only the log of `serve` contains the port that the system chose."""
    with pytest.raises(SettingsError, match=r"--management-listen is '127\.0\.0\.1:0'"):
        check_health("127.0.0.1:0", "ready", 5)


def test_it_asks_where_serve_listens_when_nobody_says_otherwise() -> None:
    """`health` and `serve` have the same default address."""
    defaults = [
        kind.model_fields["management_listen"].default for kind in (ServeSettings, HealthSettings)
    ]

    assert defaults[0] == defaults[1]


async def test_a_running_gateway_says_that_it_is_ready() -> None:
    """Both probes exit with 0 and print the response of the gateway."""
    async with nsq_gateway("serve", *ON_FREE_PORTS, *WITH_EMBEDDED_BROKER) as serve:
        management = (await serve.said(_LISTENING))[1]
        for question, words in (("--ready", "ready"), ("--live", "alive")):
            async with nsq_gateway("health", question, "--management-listen", management) as asked:
                await asked.said(words)
                assert 0 == await asked.ended()


async def test_no_gateway_is_status_1() -> None:
    """Container engines count status 1 as unhealthy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    async with nsq_gateway("health", "--management-listen", address) as asked:
        await asked.said("does not answer")
        assert 1 == await asked.ended()


def test_it_imports_no_web_framework() -> None:
    """Container engines start it every few seconds, so it must start fast."""
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, gateway.cli.main; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert set() == {"fastapi", "starlette", "uvicorn", "httpx", "websockets"} & {*imported}
