"""Replay plans: target topics, reasons to confirm, and the identity in a checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gateway.errors import SettingRefused
from gateway.pipeline.jobs.replay_plan import (
    NO_HTTP_ADDRESS,
    Channels,
    ReplayIdentity,
    TopicPlan,
    first_line,
    reasons_to_confirm,
    target_of,
)

IDENTITY = ReplayIdentity(
    input="file:/data/orders", topic=("orders",), where="attempts = 1", to_topic="", distinct=False
)


def _tally(topic: str, target: str) -> TopicPlan:
    return TopicPlan(topic, target, 1, 1, 0, 0)


@pytest.mark.parametrize(
    "topic, to_topic, target",
    [
        ("orders", "", "orders.replay"),
        ("orders#ephemeral", "", "orders.replay#ephemeral"),
        ("orders", "again", "again"),
        ("o" * 57, "", "o" * 57 + ".replay"),
        ("o" * 58, "again", "again"),
    ],
)
def test_a_topic_goes_to_its_replay_topic_unless_another_is_named(
    topic: str, to_topic: str, target: str
) -> None:
    assert target == target_of(topic, to_topic, ".replay")


def test_a_name_that_gets_too_long_is_refused_with_its_length() -> None:
    with pytest.raises(SettingRefused, match=r"^--to-topic: o+\.replay has 65 characters, .* 64"):
        target_of("o" * 58, "", ".replay")


def test_a_topic_that_is_no_name_is_shown_as_it_is() -> None:
    """The error does not blame its length."""
    with pytest.raises(SettingRefused) as refused:
        target_of("no spaces", "", ".replay")

    assert (
        "--to-topic: 'no spaces.replay' is not a valid topic name; set the topic for the rows of "
        in str(refused.value)
    )


@pytest.mark.parametrize("to_topic", ["", "again"])
def test_rows_without_a_topic_are_refused_with_the_condition_that_leaves_them_out(
    to_topic: str,
) -> None:
    with pytest.raises(SettingRefused, match="--where 'topic IS NOT NULL'"):
        target_of(None, to_topic, ".replay")


def test_a_topic_without_channels_needs_no_confirmation() -> None:
    """The default target, with and without a known HTTP address."""
    topics = [_tally("orders", "orders.replay")]

    assert [] == reasons_to_confirm(topics, Channels({"orders.replay": []}))
    assert [] == reasons_to_confirm(topics, NO_HTTP_ADDRESS)


def test_the_archived_topic_is_asked_about_though_no_nsqd_could_be_asked() -> None:
    topics = [_tally("orders", "refunds"), _tally("refunds", "refunds")]

    [reason] = reasons_to_confirm(topics, NO_HTTP_ADDRESS)
    assert reason.startswith("refunds is the archived topic: all its consumers receive")


def test_channels_and_silence_are_reasons_to_ask() -> None:
    """The text has the names of the first five channels."""
    found = Channels({"live": list("gfedcba")}, unreachable=["10.0.0.1:4151"])
    found = found._replace(unreachable_lookupds=["10.0.0.2:4161"])

    assert [
        "live has 7 channels (a, b, c, d, e, …), whose consumers receive every message",
        "nsqd at 10.0.0.1:4151 did not report its channels",
        "nsqlookupd at 10.0.0.2:4161 did not report its nsqds",
    ] == reasons_to_confirm([_tally("orders", "live")], found)


def test_a_checkpoint_is_of_the_replay_that_has_written_its_note() -> None:
    """The order of topics on the command line does not matter."""
    IDENTITY.require_same(IDENTITY.as_text(), "/cp")


@pytest.mark.parametrize(
    "other, words",
    [
        (
            replace(IDENTITY, input="file:/x"),
            "another input (file:/data/orders there, file:/x now)",
        ),
        (replace(IDENTITY, topic=()), "another topic (orders there, none now)"),
        (replace(IDENTITY, where=""), "another where (attempts = 1 there, none now)"),
        (replace(IDENTITY, to_topic="t"), "another to_topic (none there, t now)"),
        (replace(IDENTITY, distinct=True), "another distinct (False there, True now)"),
    ],
)
def test_the_checkpoint_of_another_replay_is_refused(other: ReplayIdentity, words: str) -> None:
    with pytest.raises(SettingRefused, match=re.escape(words)):
        other.require_same(IDENTITY.as_text(), "/cp")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_note_that_cannot_be_read_is_refused(text: str) -> None:
    """Without the note, the finished files are of an unknown replay."""
    with pytest.raises(SettingRefused, match="cannot be read; use another folder"):
        IDENTITY.require_same(text, "/cp")


def test_an_error_of_spark_becomes_a_sentence() -> None:
    said = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near end of input. SQLSTATE: 42601 "
        "(line 1, pos 6)\n\n== SQL ==\nts >= \n------^^^\n"
    )

    assert "Syntax error at or near end of input. (line 1, pos 6)" == first_line(said)
    assert "" == first_line("")
