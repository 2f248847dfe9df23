"""Grants match as nsqd's do, and answers that nsqd refuses are refused."""

from __future__ import annotations

import json

import pytest

from gateway.broker.authorization import AnswerRefused, Authorization, parse_answer


def answer(**changes: object) -> Authorization:
    """Return the authorization of an answer with *changes*."""
    grant = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
    return parse_answer(
        json.dumps({"ttl": 60, "authorizations": [grant], **changes}).encode(), now=1.0
    )


def granted(**changes: object) -> Authorization:
    """Return the authorization of one grant with *changes*."""
    grant = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
    return answer(authorizations=[grant | changes])


@pytest.mark.parametrize(
    "pattern, topic, is_allowed",
    [
        ("only", "xonlyx", True),
        ("^only$", "xonlyx", False),
        ("^only$", "only", True),
        ("", "anything", True),
        (r"\Qa.b\E", "axb", False),
        (r"^\pL+$", "abc", True),
        ("(?i)ABC", "abc", True),
    ],
)
def test_a_topic_pattern_matches_anywhere(pattern: str, topic: str, *, is_allowed: bool) -> None:
    assert is_allowed is granted(topic=pattern).allows(topic, "")


@pytest.mark.parametrize(
    "channels, channel, is_allowed",
    [
        ([".*"], "", True),
        (["foo"], "", False),
        ([], "", False),
        (None, "", False),
        (["^$", "foo"], "", True),
        (["foo"], "xfoox", True),
        (["foo"], "bar", False),
        ([], "bar", False),
    ],
)
def test_a_publish_needs_a_channel_pattern_that_matches_nothing(
    channels: list[str] | None, channel: str, *, is_allowed: bool
) -> None:
    assert is_allowed is granted(channels=channels).allows("t", channel)


@pytest.mark.parametrize(
    "permission, can", [("publish", (True, False)), ("subscribe", (False, True))]
)
def test_a_permission_is_for_one_thing(permission: str, can: tuple[bool, bool]) -> None:
    holds = granted(permissions=[permission])

    assert can == (holds.allows("t", ""), holds.allows("t", "c"))


def test_one_of_several_grants_is_enough() -> None:
    grants = [{"topic": f"^{name}$", "channels": [""], "permissions": ["publish"]} for name in "ab"]
    holds = answer(authorizations=grants)

    assert [True, True, False] == [holds.allows(name, "") for name in "abc"]


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"", "not JSON as agreed"),
        (b"[]", "not JSON as agreed"),
        (b'{"ttl":"60"}', "not JSON as agreed"),
        (b"[" * 100_000, "not JSON as agreed"),
        (b"{}", "ttl is 0 s; allowed: 1 s or more"),
        (b'{"ttl":-1}', "ttl is -1 s"),
        (b'{"ttl":1,"authorizations":[{"permissions":["drink"]}]}', "permission 'drink'; allowed"),
        (b'{"ttl":1,"authorizations":[{"topic":"a(?=b)"}]}', "the pattern 'a(?=b)' is not valid"),
        (b'{"ttl":1,"authorizations":[{"topic":"(a)\\\\1"}]}', "is not valid"),
        (b'{"ttl":1,"authorizations":[{"topic":"a++"}]}', "is not valid"),
        (b'{"ttl":1,"authorizations":[{"topic":"(?>a)"}]}', "is not valid"),
        (b'{"ttl":1,"authorizations":[{"channels":["["]}]}', "the pattern '[' is not valid"),
        (b'{"ttl":1,"authorizations":[{"topic":"((a{100}){100}){100}"}]}', "is not valid"),
    ],
)
def test_an_invalid_answer_is_refused_as_a_whole(body: bytes, reason: str) -> None:
    with pytest.raises(AnswerRefused) as caught:
        parse_answer(body, now=0.0)

    assert reason in str(caught.value)


def test_null_is_nothing() -> None:
    holds = parse_answer(b'{"ttl":5,"authorizations":null,"identity":null}', now=2.0)

    assert Authorization(grants=[], identity="", identity_url="", expires_at=7.0) == holds


def test_a_pattern_takes_linear_time() -> None:
    """A backtracking engine would need 2^60 steps."""
    assert not granted(topic="^(a|a)*$").allows("a" * 60 + "b", "")
