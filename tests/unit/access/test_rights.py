"""Who is a viewer, and what a viewer may not do."""

from __future__ import annotations

from gateway.access.rights import VIEWER_CHANNEL, VIEWER_CHANNELS, Grant, Permission, Rights
from gateway.name_patterns import matches
from gateway.web.subscribe.request import new_channel_name


def rights(*permissions: Permission, channels: tuple[str, ...] = ()) -> Rights:
    return Rights([Grant("^t$", permissions, channels)])


def test_the_channels_of_viewers_have_the_form_that_grants_are_asked_about() -> None:
    assert matches(VIEWER_CHANNELS, VIEWER_CHANNEL)
    assert all(matches(VIEWER_CHANNELS, new_channel_name()) for _ in range(100))


def test_to_watch_is_to_view_but_not_to_subscribe_to_a_viewers_channel() -> None:
    watching = rights(Permission.WATCH)

    assert watching.allows_viewer("t")
    assert not watching.allows_viewer("u")
    assert not watching.allows(Permission.SUBSCRIBE, "t", VIEWER_CHANNEL)


def test_to_subscribe_to_the_channels_of_viewers_is_to_view() -> None:
    assert rights(Permission.SUBSCRIBE, channels=("^gw[.]",)).allows_viewer("t")
    assert not rights(Permission.SUBSCRIBE, channels=("^c$",)).allows_viewer("t")
