"""How many files this process may have open: every connection is one."""

from __future__ import annotations

import resource
from collections.abc import Mapping

from gateway.errors import StartError
from gateway.telemetry import get_logger, level

logger = get_logger()

OWN_FILES = 100
"""What a process has open beside the connections of clients and nsqds: listeners, its log."""
LEAST_FILES = 50
"""With fewer there is no gateway: listeners, the event loop's own, a few clients."""

_NEEDED = level(
    "open_files_needed", "Files that are open when everything that the settings allow is there."
)


def allow_open_files(needs: Mapping[str, int]) -> None:
    """
    Raise the soft limit of open files to the hard one; warn where that is less than is needed.

    *needs* has, by the setting that asks for them, how many files there may be. Most systems start
    a program with a low soft limit for the sake of select(), which is not used here.

    Raises:
        StartError: The limit is below `LEAST_FILES`.
    """
    needed = sum(needs.values()) + OWN_FILES
    _NEEDED.counts[()] = needed
    limit = _raised_limit()
    if limit == resource.RLIM_INFINITY:
        return
    if limit < LEAST_FILES:
        raise StartError(
            f"this process may have {limit} files open and needs {LEAST_FILES} at the very least; "
            f"raise `ulimit -n` (`ulimit -Hn` is the most that it may be) to {needed}"
        )
    if limit < needed:
        parts = [f"{count} for {what}" for what, count in needs.items()]
        logger.warning(
            "too few open files for what the settings allow",
            limit=limit,
            needed=needed,
            parts=", ".join([*parts, f"{OWN_FILES} for the rest"]),
            advice=f"raise `ulimit -n` to {needed}, the hard limit too, or lower these settings",
        )


def _raised_limit() -> int:
    """Return the soft limit, which is the hard one now where the system lets it be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # A hard limit without a bound is more than some systems give.
            logger.debug("the limit of open files stays", limit=soft)
    return soft
