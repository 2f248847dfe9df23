"""The management port of a job."""

from __future__ import annotations

import socket

import httpx
import pytest

from gateway.errors import StartError
from gateway.pipeline.management import management


def test_it_answers_for_the_query() -> None:
    """It lives whether or not it is ready; what it counts is there."""
    with (
        management("127.0.0.1:0", lambda: (False, "the query has failed")) as address,
        httpx.Client(base_url=f"http://{address}", trust_env=False) as http,
    ):
        alive, ready, metrics = (http.get(path) for path in ("/livez", "/readyz", "/metrics"))
        other, posted = http.get("/"), http.post("/livez")

    assert (200, "alive\n") == (alive.status_code, alive.text)
    assert (503, "the query has failed\n") == (ready.status_code, ready.text)
    assert "process_cpu_seconds_total" in metrics.text
    assert (404, 405) == (other.status_code, posted.status_code)


def test_who_says_nothing_holds_up_nobody() -> None:
    """Each request has a thread."""
    with management("127.0.0.1:0", lambda: (True, "ready")) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))):
            answer = httpx.get(f"http://{address}/readyz", trust_env=False)

    assert (200, "ready\n") == (answer.status_code, answer.text)


def test_it_listens_on_ipv6_too() -> None:
    """The host stands in brackets."""
    with management("[::1]:0", lambda: (True, "ready")) as address:
        answer = httpx.get(f"http://{address}/readyz", trust_env=False)

    assert 200 == answer.status_code


def test_a_port_that_is_taken_is_said_in_one_sentence() -> None:
    """With the flag, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(StartError, match=rf"{address} \(--management-listen\): .*in use; end"),
            management(address, lambda: (True, "")),
        ):
            pass
