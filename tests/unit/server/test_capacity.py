"""Capacity of a process: the smallest of nsqd's limits, buffers and settings."""

from __future__ import annotations

import math

import pytest

from gateway.client.batch import SIZE_BYTES
from gateway.client.from_settings import NsqdAddresses
from gateway.protocol.wire import Limits
from gateway.server.capacity import (
    files_needed,
    limits_of_callers,
    limits_within_buffers,
    max_secrets,
    open_files_budget,
)
from gateway.settings.serve import ServeSettings

NSQD = Limits(max_msg_size_bytes=10_000_000, max_body_size_bytes=20_000_000)


def settings(**values: object) -> ServeSettings:
    """Return settings with a configured nsqd."""
    return ServeSettings.model_validate({"nsqd_tcp_address": "a:1", **values})


def sizes(limits: Limits) -> tuple[int, int]:
    """Return the maximum message size and the maximum body size."""
    return limits.max_msg_size_bytes, limits.max_body_size_bytes


@pytest.mark.parametrize("name", ["publish_buffer_bytes", "publish_buffer_per_nsqd_bytes"])
def test_a_message_has_to_fit_into_what_may_wait(name: str) -> None:
    """The buffer holds a message with its length prefix."""
    room = limits_within_buffers(NSQD, settings(**{name: 6_000_000}))

    assert (6_000_000 - SIZE_BYTES, 6_000_000) == sizes(room)


def test_room_that_is_larger_changes_nothing() -> None:
    """nsqd's own limits apply if the buffers are larger."""
    assert sizes(NSQD) == sizes(limits_within_buffers(NSQD, settings()))


@pytest.mark.parametrize("limit,expected", [(12_000_000, (10_000_000, 12_000_000)), (7, (7, 7))])
def test_callers_may_have_less_than_nsqd_takes(limit: int, expected: tuple[int, int]) -> None:
    """--publish-body-limit-bytes reduces the body limit, and the message limit if lower."""
    limits = limits_of_callers(NSQD, settings(publish_body_limit_bytes=limit))

    assert expected == sizes(limits)


@pytest.mark.parametrize(
    "of_auth,secrets",
    [({}, 1), ({"require_auth": True}, 256), ({"auth_secret": "ours"}, 256)],
    ids=["nothing is said", "everybody brings one", "there is ours"],
)
def test_connections_to_publish_on_are_counted_by_secret_where_there_is_auth(
    of_auth: dict[str, object], secrets: int
) -> None:
    """Each secret has its own connections to every nsqd."""
    needs = files_needed(settings(**of_auth), NsqdAddresses(("a:1", "b:1"), ()))

    assert 2 * 4 * secrets == needs["--nsqd-connections"]


@pytest.mark.parametrize("limit,secrets", [(math.inf, 256), (65_536, 256), (200, 3), (50, 1)])
def test_few_files_are_for_few_secrets(limit: float, secrets: int) -> None:
    """An eighth of the files is for publishing connections, at least one secret's."""
    nsqds = NsqdAddresses(("a:1", "b:1"), ())

    assert secrets == max_secrets(limit, settings(), nsqds)


def test_connections_to_publish_on_are_not_for_clients() -> None:
    """Four connections to each nsqd are reserved, at most an eighth of all files."""
    one, many = (
        NsqdAddresses(("a:1",), ()),
        NsqdAddresses(tuple(f"{number}:1" for number in range(99)), ()),
    )
    shares = [open_files_budget(1_000, settings(), nsqds).clients_limit for nsqds in (one, many)]

    assert [896, 775] == shares
