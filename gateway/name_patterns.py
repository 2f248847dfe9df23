"""
Match names of topics and channels with RE2 patterns, as nsqd does for its auth server.

A pattern matches anywhere in a name, unless it begins with ``^`` and ends with ``$``. RE2 takes
linear time, and has no look-around and no back-references. Source: nsqd's
internal/auth/authorizations.go.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from gateway.errors import GatewayError

_MAX_BYTES = 1_048_576
"""Memory of one compiled pattern; RE2 refuses larger ones."""

_ESCAPES = re.compile(r"\\(?:Q.*?(?:\\E|\Z)|.)", re.DOTALL)
"""Finds each escape; a quoted text, \\Q…\\E, is one."""


class PatternRefused(GatewayError):
    """A pattern is not valid RE2, or too large; the text has the pattern and RE2's reason."""


def check_pattern(pattern: str) -> None:
    """Check that *pattern* is valid; raises PatternRefused."""
    _compile(pattern)


def matches(pattern: str, name: str) -> bool:
    """Return whether *pattern* matches anywhere in *name*; raises PatternRefused."""
    return _compile(pattern).search(name) is not None


@functools.lru_cache(maxsize=4_096)
def _compile(pattern: str) -> Any:  # noqa: ANN401 - google-re2 has no types
    """Return *pattern* compiled; cached, because every check of a command uses some."""
    # Only RE2 in C++ has it, and the nsqd that gets it from an auth server refuses every grant.
    if r"\C" in _ESCAPES.findall(pattern):
        raise PatternRefused(f"the pattern {pattern!r} is not valid: it has \\C, a single byte")
    # Here, because most gateways and brokers have no patterns.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PatternRefused(f"the pattern {pattern!r} is not valid: {text}") from error
