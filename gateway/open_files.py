"""How many files this process may have open: every connection is one."""

from __future__ import annotations

import resource

from gateway.telemetry import get_logger

logger = get_logger()

OWN_FILES = 100
"""What a process has open beside the sockets of clients: listeners, publishing, its log."""


def allow_open_files(needed: int) -> None:
    """
    Raise the soft limit of open files to the hard one; warn where that is less than *needed*.

    Most systems start a program with a low soft limit for the sake of select(), which is not used
    here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # A hard limit without a bound is more than some systems give.
            logger.debug("the limit of open files stays", limit=soft)
    if soft != resource.RLIM_INFINITY and soft < needed:
        logger.warning(
            "too few open files for --max-sockets",
            limit=soft,
            needed=needed,
            advice="raise `ulimit -n`, the hard limit too, or lower --max-sockets",
        )
