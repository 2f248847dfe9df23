"""The processes of a Spark program: Python, its JVM, and the workers of both (Linux)."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

_EXIT_TIMEOUT_S = 180.0


def pids_of(session: int, part: str = "") -> list[int]:
    """
    Return the processes of a session whose command line contains *part*, oldest first.

    Spark's workers have their own process groups, but stay in the session of the program.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state parent group session: a name may have spaces and brackets.
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(pid for pid in found if part in command_line(pid))


def command_line(pid: int) -> str:
    """Return the command line of *pid*; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill_session(session: int) -> None:
    """Kill every process of a session (SIGKILL); return once they have ended."""
    while pids := pids_of(session):  # one may have started another meanwhile
        for pid in pids:
            kill(pid)


def kill(pid: int) -> None:
    """Kill *pid* (SIGKILL); return once it has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched, signal.SIGKILL)
        select.select([watched], [], [], _EXIT_TIMEOUT_S)
    finally:
        os.close(watched)


def wait_for_end(pid: int, most_s: float = _EXIT_TIMEOUT_S) -> bool:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], most_s)[0])
    finally:
        os.close(watched)
