"""A caller's secret: it goes to nsqd, and nowhere else."""

from __future__ import annotations

import hashlib

_SHOWN_DIGITS = 8


class Secret:
    """
    A secret for NSQ's AUTH; two of the same bytes are equal.

    Its repr and str are its fingerprint, so that a log line, a traceback or an error text that
    names it by mistake tells nothing.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the secret itself; for the AUTH command and the lookupd's Bearer only."""
        return self._value

    @property
    def fingerprint(self) -> str:
        """The first 8 hexadecimal digits of its SHA-256: enough to tell secrets apart in a log."""
        return hashlib.sha256(self._value).hexdigest()[:_SHOWN_DIGITS]

    def __repr__(self) -> str:
        """Name the secret by its fingerprint."""
        return f"Secret({self.fingerprint})"

    def __eq__(self, other: object) -> bool:
        """Tell whether both are the same secret."""
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        """Return a hash, for secrets are keys of pools."""
        return hash(self._value)
