"""How far a command is: for a terminal only, and in words."""

import io

import pytest

from gateway.commands.progress import Progress, in_words


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_a_terminal_is_told_the_last_count() -> None:
    """On a line of its own, whatever was there before."""
    terminal = Terminal()
    progress = Progress(terminal)

    progress.add(messages=2, size_bytes=2_048)
    progress.end()

    assert terminal.getvalue().startswith("\r\x1b[K2 messages, 2.0 KiB, ")
    assert terminal.getvalue().endswith("/s\n")


def test_a_file_is_told_nothing() -> None:
    """What a script logs has no progress in it; the count is kept all the same."""
    file = io.StringIO()
    progress = Progress(file)

    progress.add(messages=2, size_bytes=2_048)
    progress.end()

    assert ("", 2) == (file.getvalue(), progress.messages)


@pytest.mark.parametrize(
    "size_bytes,words",
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_a_size_is_told_in_its_unit(size_bytes: int, words: str) -> None:
    """With one digit behind the point."""
    assert words == in_words(size_bytes)
