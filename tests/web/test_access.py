"""Which pages may post, and which id a request has."""

from __future__ import annotations

import re

import pytest

from gateway.errors import Forbidden
from gateway.web.access import check_origin, request_id_of

ALLOWED = ["https://App.example.org", "http://127.0.0.1:5173"]


def headers(origin: str, host: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request that a page made."""
    return [(b"host", host.encode()), (b"origin", origin.encode())]


def test_a_request_without_an_origin_passes() -> None:
    """What is no browser is not meant."""
    check_origin([(b"host", b"gateway:8080")], [])


@pytest.mark.parametrize(
    "origin,host",
    [
        ("http://gateway:8080", "gateway:8080"),
        ("http://Gateway:8080", "gateway:8080"),
        ("http://gateway", "gateway"),
        ("http://gateway", "gateway:80"),
        ("https://gateway", "gateway"),
        ("https://gateway:443", "gateway"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("https://app.example.org", "gateway"),
        ("http://127.0.0.1:5173", "127.0.0.1:8080"),
    ],
)
def test_our_own_page_and_a_listed_one_pass(origin: str, host: str) -> None:
    """Host and port are compared, letter case and the scheme's own port are not."""
    check_origin(headers(origin, host), ALLOWED)


@pytest.mark.parametrize(
    "origin,host",
    [
        ("http://evil", "gateway"),
        ("http://gateway:8081", "gateway:8080"),
        ("http://gateway", "gateway:8080"),
        ("http://gateway.evil", "gateway"),
        ("http://evil/gateway", "gateway"),
        ("http://app.example.org", "gateway"),
        ("null", "null"),
        ("", ""),
        ("http://", ""),
        ("gateway", "gateway"),
    ],
)
def test_a_foreign_page_is_refused(origin: str, host: str) -> None:
    """Another host, port or listed scheme is foreign, and so is no page at all."""
    with pytest.raises(Forbidden, match="--allow-origin"):
        check_origin(headers(origin, host), ALLOWED)


def test_an_empty_list_refuses_every_foreign_page() -> None:
    """Nothing on the list means nobody."""
    with pytest.raises(Forbidden):
        check_origin(headers("http://127.0.0.1:5173", "127.0.0.1:8080"), [])


def test_a_second_origin_is_checked_too() -> None:
    """A good Origin does not cover for a foreign one."""
    with pytest.raises(Forbidden):
        check_origin([*headers("http://gateway", "gateway"), (b"origin", b"http://evil")], [])


@pytest.mark.parametrize("value", [b"a", b"A-z_0.9", b"x" * 64])
def test_a_sane_request_id_is_taken_over(value: bytes) -> None:
    """The caller may name its request."""
    assert value.decode() == request_id_of([(b"x-request-id", value)])


@pytest.mark.parametrize("value", [b"", b"x" * 65, b"a b", b"a\n", b"\xe4", b"a;b"])
def test_another_request_id_is_replaced(value: bytes) -> None:
    """What could forge a line of a log is not taken over."""
    assert re.fullmatch("[0-9a-f]{16}", request_id_of([(b"x-request-id", value)]))


def test_every_request_gets_an_id_of_its_own() -> None:
    """Two requests without an id have different ones."""
    assert request_id_of([]) != request_id_of([])
