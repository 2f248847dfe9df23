"""Progress of a command: a line on a terminal, and totals at the end."""

from __future__ import annotations

import errno
import io
import os
import pty
import termios

from gateway.cli.progress import ProgressLine
from tests.support.manual_clock import ManualClock


class Terminal(io.StringIO):
    """A stream that claims to be a terminal, of unknown width."""

    def isatty(self) -> bool:
        """Return True."""
        return True

    def take(self) -> str:
        """Return the text written since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class Gone(Terminal):
    """A terminal that has been closed."""

    def write(self, text: str) -> int:
        """Raise an error."""
        raise BrokenPipeError(errno.EPIPE, text)


async def test_a_terminal_is_told_twice_a_second() -> None:
    """The cursor returns to the start of the line, so that a log line overwrites it."""
    clock, terminal = ManualClock(), Terminal()
    progress = ProgressLine(terminal)

    progress.add(messages=20, size_bytes=2_048)
    before = terminal.take()
    await clock.advance(1.0)
    after = terminal.take()
    progress.close()

    assert ("", "\r\x1b[K20 messages, 2.0 KiB, 20/s, 0:01\r") == (before, after)
    assert "\r\x1b[K20 messages, 2.0 KiB, 20/s, 0:01\n" == terminal.take()


async def test_a_terminal_is_told_what_there_is_to_wait_for() -> None:
    """A delay appears at once, with the remaining time, and disappears at its end."""
    clock, terminal = ManualClock(), Terminal()
    progress = ProgressLine(terminal)
    now = progress._loop.time()

    progress.show_delay("nsqd unreachable", now + 2.1)
    first = terminal.take()
    await clock.advance(0.5)
    second = terminal.take()
    progress.clear_delay()

    wait = ", 0:00, waiting: nsqd unreachable, next try in"
    assert (True, True) == (f"{wait} 2.1 s\r" in first, f"{wait} 1.6 s\r" in second)
    assert "\r\x1b[K0 messages, 0 B, 0/s, 0:00\r" == terminal.take()
    progress.close()


async def test_who_types_the_messages_is_not_written_into_them() -> None:
    """If the user types the input, only delays and totals are shown."""
    clock, terminal = ManualClock(), Terminal()
    progress = ProgressLine(terminal, is_interactive=True)

    await clock.advance(1.0)
    quiet = terminal.take()
    progress.show_delay("nsqd unreachable", progress._loop.time() + 2.0)
    await clock.advance(1.0)

    assert ("", 2) == (quiet, terminal.take().count("waiting: "))
    progress.close()


async def test_a_line_is_cut_where_the_terminal_ends() -> None:
    """A line that wraps would leave its first row behind."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 20))
    with os.fdopen(theirs, "w") as terminal:
        progress = ProgressLine(terminal)
        progress.show_delay("nsqd unreachable", progress._loop.time() + 2.1)
        shown = os.read(ours, 1_000)
        progress.close()
    os.close(ours)

    assert b"\r\x1b[K0 messages, 0 B, 0/\r" == shown


async def test_a_terminal_that_has_gone_stops_nothing() -> None:
    """The command continues after its terminal window is closed."""
    clock = ManualClock()
    progress = ProgressLine(Gone())

    progress.show_delay("nsqd unreachable", progress._loop.time() + 2.1)
    await clock.advance(1.0)
    progress.print("done")
    progress.close()

    assert 0 == progress.messages


async def test_a_file_is_told_nothing() -> None:
    """Without a terminal there is no progress, but messages are still counted."""
    clock, file = ManualClock(), io.StringIO()
    progress = ProgressLine(file)

    progress.add(messages=2, size_bytes=2_048)
    progress.show_delay("nsqd unreachable", 1e9)
    await clock.advance(1.0)
    progress.clear_delay()
    progress.close()

    assert ("", 2) == (file.getvalue(), progress.messages)


async def test_a_file_is_told_the_sum_when_it_is_asked_for() -> None:
    """With --verbose the totals are written as one line at the end."""
    file = io.StringIO()
    clock = ManualClock()
    progress = ProgressLine(file, is_verbose=True)

    progress.add(messages=3, size_bytes=9)
    await clock.advance(2.0)
    progress.close()

    assert "nsq-gateway: 3 messages, 9 B, 1.5/s, 0:02\n" == file.getvalue()
