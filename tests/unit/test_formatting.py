"""Counts, sizes and durations, for a person."""

from __future__ import annotations

import pytest

from gateway.terminal import format_bytes, format_duration, pluralize, printable


@pytest.mark.parametrize(
    "size_bytes,words",
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_a_size_is_told_in_its_unit(size_bytes: int, words: str) -> None:
    """With one digit behind the point."""
    assert words == format_bytes(size_bytes)


@pytest.mark.parametrize(
    "seconds,words",
    [(0.9, "0:00"), (61, "1:01"), (75.9, "1:15"), (3_661.5, "1:01:01"), (3_725, "1:02:05")],
)
def test_a_duration_is_told_as_a_clock_does(seconds: float, words: str) -> None:
    assert words == format_duration(seconds)


def test_one_is_told_from_many() -> None:
    assert ("1 line", "2 lines", "0 lines") == tuple(pluralize(n, "line") for n in (1, 2, 0))


@pytest.mark.parametrize(
    "text,shown",
    [
        ("orders", "orders"),
        ("größe 日本", "größe 日本"),
        ("a\nb", "a\nb"),
        ("\x1b]0;pwned\x07", "�]0;pwned�"),
        ("\x9b2J", "�2J"),
        ("a\rb\x00", "a�b�"),
        ("x\u202ey", "x�y"),
    ],
)
def test_a_text_of_another_program_does_not_control_the_terminal(text: str, shown: str) -> None:
    assert shown == printable(text)
