"""Which id a request has."""

from __future__ import annotations

import re

import pytest

from gateway.web.responses import request_id_from


@pytest.mark.parametrize("value", [b"a", b"A-z_0.9", b"x" * 64])
def test_a_sane_request_id_is_taken_over(value: bytes) -> None:
    assert value.decode() == request_id_from([(b"x-request-id", value)])


@pytest.mark.parametrize("value", [b"", b"x" * 65, b"a b", b"a\n", b"\xe4", b"a;b"])
def test_another_request_id_is_replaced(value: bytes) -> None:
    """What could forge a line of a log is not taken over."""
    assert re.fullmatch("[0-9a-f]{16}", request_id_from([(b"x-request-id", value)]))


def test_every_request_gets_an_id_of_its_own() -> None:
    """Two requests without an id have different ones."""
    assert request_id_from([]) != request_id_from([])
