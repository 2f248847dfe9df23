"""Where a replay goes, who would notice, and which replay a checkpoint is of."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gateway.errors import SettingRefused
from gateway.pipeline.replay_plan import (
    NOBODY_TO_ASK,
    Channels,
    Identity,
    Tally,
    done_rows_of,
    one_sentence,
    reasons_to_ask,
    target_of,
)

IDENTITY = Identity(
    input="file:/data/orders", topic=("orders",), where="attempts = 1", to_topic="", distinct=False
)


def _tally(topic: str, target: str) -> Tally:
    return Tally(topic, target, 1, 1, 0, 0)


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
    """An ephemeral one stays ephemeral."""
    assert target == target_of(topic, to_topic, ".replay")


def test_a_name_that_gets_too_long_is_refused_with_its_length() -> None:
    """And what to do."""
    with pytest.raises(SettingRefused, match=r"^--to-topic: o+\.replay has 65 characters, .* 64"):
        target_of("o" * 58, "", ".replay")


def test_a_topic_that_is_no_name_is_shown_as_it_is() -> None:
    """Its length is not what is wrong with it."""
    with pytest.raises(SettingRefused) as refused:
        target_of("no spaces", "", ".replay")

    assert "--to-topic: 'no spaces.replay' is no name of a topic; say where the rows of " in str(
        refused.value
    )


@pytest.mark.parametrize("to_topic", ["", "again"])
def test_rows_without_a_topic_are_refused_with_the_condition_that_leaves_them_out(
    to_topic: str,
) -> None:
    """Wherever the others go."""
    with pytest.raises(SettingRefused, match="--where 'topic IS NOT NULL'"):
        target_of(None, to_topic, ".replay")


def test_a_topic_without_channels_is_asked_about_by_nobody() -> None:
    """The default, with and without an nsqd that could be asked."""
    tallies = [_tally("orders", "orders.replay")]

    assert [] == reasons_to_ask(tallies, Channels({"orders.replay": []}))
    assert [] == reasons_to_ask(tallies, NOBODY_TO_ASK)


def test_the_archived_topic_is_asked_about_though_no_nsqd_could_be_asked() -> None:
    """The topic of another row, too."""
    tallies = [_tally("orders", "refunds"), _tally("refunds", "refunds")]

    [reason] = reasons_to_ask(tallies, NOBODY_TO_ASK)
    assert reason.startswith("refunds is the topic that was archived: all its consumers get")


def test_channels_and_silence_are_reasons_to_ask() -> None:
    """The first five channels by name."""
    found = Channels({"live": list("gfedcba")}, silent=["10.0.0.1:4151"])
    found = found._replace(silent_lookupds=["10.0.0.2:4161"])

    assert [
        "live has 7 channels (a, b, c, d, e, …), whose consumers get every message",
        "nsqd at 10.0.0.1:4151 does not say which channels there are",
        "nsqlookupd at 10.0.0.2:4161 does not say which nsqds there are",
    ] == reasons_to_ask([_tally("orders", "live")], found)


def test_a_checkpoint_is_of_the_replay_that_has_written_its_note() -> None:
    """Whatever the order of topics on the command line."""
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
def test_the_checkpoint_of_another_replay_is_refused(other: Identity, words: str) -> None:
    """With what is different."""
    with pytest.raises(SettingRefused, match=re.escape(words)):
        other.require_same(IDENTITY.as_text(), "/cp")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_note_that_cannot_be_read_is_refused(text: str) -> None:
    """Nobody knows what is done there."""
    with pytest.raises(SettingRefused, match="cannot be read; use another folder"):
        IDENTITY.require_same(text, "/cp")


@pytest.mark.parametrize("text, rows", [(None, 0), ("", 0), ("12", 12), ("-1", 0), ("1x", 0)])
def test_the_number_of_rows_done_is_for_people_and_may_be_lost(text: str | None, rows: int) -> None:
    """A process that was killed may have left half of it."""
    assert rows == done_rows_of(text)


def test_an_error_of_spark_becomes_a_sentence() -> None:
    """Without what is for machines."""
    said = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near end of input. SQLSTATE: 42601 "
        "(line 1, pos 6)\n\n== SQL ==\nts >= \n------^^^\n"
    )

    assert "Syntax error at or near end of input. (line 1, pos 6)" == one_sentence(said)
    assert "" == one_sentence("")
