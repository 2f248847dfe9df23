"""How far a command is: for a terminal, or a sum that was asked for, and in words."""

from __future__ import annotations

import errno
import io
import os
import pty
import termios

from gateway.commands.progress import Progress
from tests.support.manual_clock import ManualClock


class Terminal(io.StringIO):
    """Something that says it is a terminal, and of no known width."""

    def isatty(self) -> bool:
        """Say so."""
        return True

    def take(self) -> str:
        """Return what was written since the last time."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class Gone(Terminal):
    """A terminal whose other end is closed."""

    def write(self, text: str) -> int:
        """Fail."""
        raise BrokenPipeError(errno.EPIPE, text)


async def test_a_terminal_is_told_twice_a_second() -> None:
    """The cursor goes back to the front: a log line takes its place."""
    clock, terminal = ManualClock(), Terminal()
    progress = Progress(terminal)

    progress.add(messages=20, size_bytes=2_048)
    before = terminal.take()
    await clock.advance(1.0)
    after = terminal.take()
    progress.end()

    assert ("", "\r\x1b[K20 messages, 2.0 KiB, 20/s, 0:01\r") == (before, after)
    assert "\r\x1b[K20 messages, 2.0 KiB, 20/s, 0:01\n" == terminal.take()


async def test_a_terminal_is_told_what_there_is_to_wait_for() -> None:
    """At once, and how long still; then no more of it."""
    clock, terminal = ManualClock(), Terminal()
    progress = Progress(terminal)
    now = progress._loop.time()

    progress.wait("nsqd unreachable", now + 2.1)
    first = terminal.take()
    await clock.advance(0.5)
    second = terminal.take()
    progress.go_on()

    wait = ", 0:00, waiting: nsqd unreachable, next try in"
    assert (True, True) == (f"{wait} 2.1 s\r" in first, f"{wait} 1.6 s\r" in second)
    assert "\r\x1b[K0 messages, 0 B, 0/s, 0:00\r" == terminal.take()
    progress.end()


async def test_who_types_the_messages_is_not_written_into_them() -> None:
    """But for what there is to wait for, and the sum."""
    clock, terminal = ManualClock(), Terminal()
    progress = Progress(terminal, is_typed=True)

    await clock.advance(1.0)
    quiet = terminal.take()
    progress.wait("nsqd unreachable", progress._loop.time() + 2.0)
    await clock.advance(1.0)

    assert ("", 2) == (quiet, terminal.take().count("waiting: "))
    progress.end()


async def test_a_line_is_cut_where_the_terminal_ends() -> None:
    """The front of a line that takes two would stay."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 20))
    with os.fdopen(theirs, "w") as terminal:
        progress = Progress(terminal)
        progress.wait("nsqd unreachable", progress._loop.time() + 2.1)
        shown = os.read(ours, 1_000)
        progress.end()
    os.close(ours)

    assert b"\r\x1b[K0 messages, 0 B, 0/\r" == shown


async def test_a_terminal_that_has_gone_stops_nothing() -> None:
    """Whoever closed the window did not end the command."""
    clock = ManualClock()
    progress = Progress(Gone())

    progress.wait("nsqd unreachable", progress._loop.time() + 2.1)
    await clock.advance(1.0)
    progress.tell("done")
    progress.end()

    assert 0 == progress.messages


async def test_a_file_is_told_nothing() -> None:
    """What a script logs has no progress in it; the count is kept all the same."""
    clock, file = ManualClock(), io.StringIO()
    progress = Progress(file)

    progress.add(messages=2, size_bytes=2_048)
    progress.wait("nsqd unreachable", 1e9)
    await clock.advance(1.0)
    progress.go_on()
    progress.end()

    assert ("", 2) == (file.getvalue(), progress.messages)


async def test_a_file_is_told_the_sum_when_it_is_asked_for() -> None:
    """One line, at the end."""
    file = io.StringIO()
    clock = ManualClock()
    progress = Progress(file, is_verbose=True)

    progress.add(messages=3, size_bytes=9)
    await clock.advance(2.0)
    progress.end()

    assert "nsq-gateway: 3 messages, 9 B, 1.5/s, 0:02\n" == file.getvalue()
