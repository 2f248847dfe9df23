"""What a process may take: the smaller of what nsqd, room and operator allow."""

from __future__ import annotations

import pytest

from gateway.bounds import files_needed, limits_of_callers, limits_of_room
from gateway.client.batch import SIZE_BYTES
from gateway.nsqd_access import Nsqds
from gateway.protocol.wire import Limits
from gateway.settings import ServeSettings

NSQD = Limits(max_msg_size_bytes=10_000_000, max_body_size_bytes=20_000_000)


def settings(**values: object) -> ServeSettings:
    """Return settings for an nsqd that is named."""
    return ServeSettings.model_validate({"nsqd_tcp_address": "a:1", **values})


def sizes(limits: Limits) -> tuple[int, int]:
    """Return the longest message and the longest body."""
    return limits.max_msg_size_bytes, limits.max_body_size_bytes


@pytest.mark.parametrize("name", ["publish_buffer_bytes", "publish_buffer_per_nsqd_bytes"])
def test_a_message_has_to_fit_into_what_may_wait(name: str) -> None:
    """With its length before it, as it waits."""
    room = limits_of_room(NSQD, settings(**{name: 6_000_000}))

    assert (6_000_000 - SIZE_BYTES, 6_000_000) == sizes(room)


def test_room_that_is_larger_changes_nothing() -> None:
    """nsqd's own limits hold."""
    assert sizes(NSQD) == sizes(limits_of_room(NSQD, settings()))


@pytest.mark.parametrize("limit,expected", [(12_000_000, (10_000_000, 12_000_000)), (7, (7, 7))])
def test_callers_may_have_less_than_nsqd_takes(limit: int, expected: tuple[int, int]) -> None:
    """Of a body, and of a message where that is longer."""
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
    """Each secret has its own to every nsqd."""
    needs = files_needed(settings(**of_auth), Nsqds(("a:1", "b:1"), ()))

    assert 2 * 4 * secrets == needs["--nsqd-connections"]
