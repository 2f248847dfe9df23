"""
`nsq-gateway health`: ask a gateway's management port whether it lives, or is ready.

A container engine starts it anew every few seconds, so it needs little: no event loop, no web
framework, one connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from gateway.addresses import join_address, split_address
from gateway.errors import GatewayError, SettingsError
from gateway.settings_common import flag_of

Question: TypeAlias = Literal["live", "ready"]

_ROUTES: dict[Question, str] = {"live": "/livez", "ready": "/readyz"}
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not listened on
_MAX_ANSWER_BYTES = 16_384
_MAX_WORDS = 400
_READ_BYTES = 4_096
_OK = 200


class NoAnswer(GatewayError):
    """The management port gave no answer that can be read; the text says where and what to do."""


def ask_health(management_listen: str, question: Question, timeout_s: float) -> tuple[bool, str]:
    """
    Return whether the gateway says yes, and its words.

    *management_listen* is what `serve` was told: every address of this machine means loopback.
    The whole answer has to be there within *timeout_s* seconds.

    Raises:
        SettingsError: It is port 0, which is another one after each start.
        NoAnswer: Nobody answered in time, or somebody who is no management port.
    """
    host, port = split_address(management_listen)
    if port == 0:
        raise SettingsError(
            flag_of("management_listen"),
            management_listen,
            allowed="a port that stays the same; port 0 is any free one, and only its log tells it",
        )
    address = join_address(_LOOPBACK.get(host, host), port)
    try:
        answer = _exchange(split_address(address), _ROUTES[question], time.monotonic() + timeout_s)
    except TimeoutError as error:
        raise NoAnswer(f"{address} did not answer within {timeout_s:g} s (--timeout-s)") from error
    except OSError as error:
        raise NoAnswer(
            f"{address} does not answer ({error.strerror or error}); "
            "is --management-listen the one that serve was given?"
        ) from error
    return _read(answer, address)


def _exchange(address: tuple[str, int], route: str, deadline: float) -> bytes:
    """Return what *address* answers to a GET of *route*, as far as it counts."""

    def left_s() -> float:
        rest_s = deadline - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError
        return rest_s

    request = f"GET {route} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection(address, timeout=left_s()) as connection:
        connection.sendall(request)
        return _received(connection, left_s)


def _received(connection: socket.socket, left_s: Callable[[], float]) -> bytes:
    """Return what comes until the end, and no more than counts."""
    answer = bytearray()
    while len(answer) < _MAX_ANSWER_BYTES:
        connection.settimeout(left_s())
        part = connection.recv(_READ_BYTES)
        if not part:
            break
        answer += part
    return bytes(answer)


def _read(answer: bytes, address: str) -> tuple[bool, str]:
    """Return whether *answer* is a 200, and its body on one line."""
    head, _, body = answer.partition(b"\r\n\r\n")
    version, status, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b""]
    if not (version.startswith(b"HTTP/1.") and status.isdigit()):
        raise NoAnswer(
            f"what listens at {address} is no management port: it does not answer in HTTP"
        )
    text = "".join(each if each.isprintable() else " " for each in body.decode("utf-8", "replace"))
    words = " ".join(text.split())[:_MAX_WORDS]
    return int(status) == _OK, words or f"status {status.decode()}"
