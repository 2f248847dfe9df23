"""Whose answer the error of a broken line is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.command_errors import find_cmd_and_ref

SCALARS = (
    st.none()
    | st.booleans()
    | st.text()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"PUB","ref":7,"body":"it ends here', ("PUB", 7)),
        ('{"cmd":"PUB","ref":7,"body":"a" "b"}', ("PUB", 7)),
        ('{"cmd":"NOP","ref":1}{"cmd":"NOP","ref":2}', ("NOP", 1)),
        (' \t{ "cmd" : "NOP" , "ref" : -1.5e3 } x', ("NOP", -1500.0)),
        ('{"cmd":"NOP","ref":"\\u00e9\\"]}","x":', ("NOP", '\u00e9"]}')),
        ('{"x":{"ref":1,"y":["cmd"]},"ref":2,', (None, 2)),
        ('{"x":[[1],{"y":["]","}"]}],"cmd":"FIN","ref":2,', ("FIN", 2)),
        ('{"cmd":7,"ref":true,', (None, True)),
        ('{"ref":1,"ref":2,', (None, 2)),
    ],
)
def test_members_are_read_as_far_as_they_go(line: str, expected: tuple[object, object]) -> None:
    """Those of the outermost object, in any order; of the same name the last one."""
    assert expected == find_cmd_and_ref(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "garbage",
        "\u2028{}",
        '[{"cmd":"NOP","ref":1}',
        '"cmd":"NOP","ref":1',
        '{"ref":1',
        '{"ref":"1',
        '{"ref":1 2}',
        '{"ref":NaN}',
        '{"ref":1e999}',
        '{"ref":' + "9" * 5_000 + "}",
        '{"ref":"\\ud83d"}',
        '{"ref":"a\tb"}',
        '{"ref":[1]}',
        '{"ref":{"ref":1}}',
        '{"x":[1],"y":{"ref":1}}',
        '{"body":"say "hi","ref":1}',
        '{"x":]"ref":1}',
        '{"x":,"ref":1}',
        '{"cmd":["FIN"],"ref":null}',
    ],
    ids=lambda line: str(line)[:24].encode("unicode_escape").decode(),
)
def test_nothing_is_guessed(line: str) -> None:
    """A value that may have been cut, or is no scalar, could be somebody else's."""
    assert (None, None) == find_cmd_and_ref(line)


@pytest.mark.parametrize(
    "value, is_found",
    [
        ("[" * 500_000 + "]" * 500_000, True),
        ('{"a":[' * 50 + "{}" + "]}" * 50, True),
        ("[[1,2]," * 200 + "3" + "]" * 200, True),
        ('["a",' * 20_000 + "1" + "]" * 20_000, False),
        ('["' + "a" * 70_000 + '","\\ud83d"]', True),
        ('[["' + "a" * 70_000 + '"],"\\ud83d"]', False),
        ("[[1]", False),
    ],
    ids=["deep", "objects", "lists", "deep, strings", "long", "long, lists", "not closed"],
)
def test_what_is_behind_a_list_is_found_where_that_is_soon(value: str, is_found: bool) -> None:  # noqa: FBT001
    """A list of any length with no list in it; lists within lists in a short line."""
    assert (None, 7 if is_found else None) == find_cmd_and_ref(f'{{"x":{value},"ref":7,')


def test_what_has_too_many_members_is_not_read_to_its_end() -> None:
    few, many = ("{" + '"x":1,' * count + '"ref":7,' for count in (15, 16))

    assert [(None, 7), (None, None)] == [find_cmd_and_ref(few), find_cmd_and_ref(many)]


@given(st.text())
def test_any_text_has_a_head(text: str) -> None:
    """Whatever comes, nothing is raised."""
    find_cmd_and_ref(text)
    find_cmd_and_ref("{" + text)


@given(st.dictionaries(st.sampled_from(["cmd", "ref", "id", "body", "more"]), VALUES))
def test_what_is_json_has_the_head_that_a_decoder_finds(given_object: dict[str, object]) -> None:
    """Where the value is a scalar that comes back, or nested too far."""
    cmd, ref = find_cmd_and_ref(json.dumps(given_object))

    given_cmd, given_ref = given_object.get("cmd"), given_object.get("ref")
    assert (given_cmd if isinstance(given_cmd, str) else None) == cmd
    assert (None if isinstance(given_ref, list | dict) else given_ref) == ref
