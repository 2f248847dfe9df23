"""
Secrets: a type that hides its value, Bearer tokens (RFC 6750), and files with secrets.

Error texts never contain any part of a secret.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

from gateway.errors import InvalidRequest, SettingRefused, SettingsError

_SHOWN_DIGITS = 8


class Secret:
    """
    A secret for NSQ's AUTH.

    Its repr and str show the fingerprint only, so that a log line, a traceback or an error text
    cannot reveal it by mistake.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the value, for AUTH commands and Bearer headers only."""
        return self._value

    @property
    def fingerprint(self) -> str:
        """First 8 hexadecimal digits of the secret's SHA-256, to tell secrets apart in a log."""
        return hashlib.sha256(self._value).hexdigest()[:_SHOWN_DIGITS]

    def __repr__(self) -> str:
        """Show the fingerprint."""
        return f"Secret({self.fingerprint})"

    def __eq__(self, other: object) -> bool:
        """Compare the values."""
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        """Return the hash of the value."""
        return hash(self._value)


_SCHEME = b"bearer"
_TOKEN = re.compile(rb"[!-~]+")


def is_valid_bearer(secret: Secret) -> bool:
    """Return whether *secret* can be a Bearer token: visible ASCII without spaces, not empty."""
    return _TOKEN.fullmatch(secret.reveal()) is not None


def bearer_headers(secret: Secret | None) -> dict[str, str]:
    """
    Return the Authorization header for *secret*; no header for None.

    Raises:
        SettingRefused: *secret* is not a valid token. Without this check, the error of the HTTP
            library would show the secret.
    """
    if secret is None:
        return {}
    if not is_valid_bearer(secret):
        reason = "a Bearer token consists of visible ASCII without spaces"
        raise SettingRefused("--auth-secret", reason)
    return {"Authorization": f"Bearer {secret.reveal().decode('ascii')}"}


def parse_bearer(value: bytes) -> bytes | None:
    """
    Return the token in *value*, an ``Authorization`` header; None for a scheme other than Bearer.

    Raises:
        InvalidRequest: The token is empty, or not visible ASCII (INVALID_AUTHORIZATION).
    """
    scheme, _, rest = value.strip(b" \t").partition(b" ")
    # RFC 9110 §11.1: the name of a scheme is case-insensitive.
    if scheme.lower() != _SCHEME:
        return None
    token = rest.strip(b" \t")
    if not _TOKEN.fullmatch(token):
        text = "the Bearer token is empty or not visible ASCII"
        raise InvalidRequest("INVALID_AUTHORIZATION", text)
    return token


_MAX_BYTES = 65_536


def read_secret_file(path: str, setting: str = "--auth-secret-file") -> tuple[Secret, str | None]:
    """
    Read the secret in the file at *path*, without its last newline.

    Return the secret, and a warning for the log if every user of this machine can read the file,
    otherwise None. Errors name *setting*, the setting that contains *path*.

    Raises:
        SettingsError: The file is missing, unreadable, empty or too long.
    """
    try:
        with Path(path).open("rb") as file:
            # Not the mode of *path*, which may lead to another file by now.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            # One byte more than allowed shows that a file is too long; the rest is never read.
            text = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unusable(setting, path, reason) from error
    if len(text) > _MAX_BYTES:
        raise _unusable(setting, path, f"it is longer than {_MAX_BYTES} bytes")
    # Editors end the last line with a newline, which is no part of the secret.
    secret = text.removesuffix(b"\n").removesuffix(b"\r")
    if not secret:
        raise _unusable(setting, path, "it is empty")
    warning = None
    # Group access is normal: Kubernetes gives secrets to a group for containers without root.
    if mode & stat.S_IROTH:
        warning = f"every user can read the secret in {path} (mode {mode:03o}); run chmod o= on it"
    return Secret(secret), warning


def _unusable(setting: str, path: str, reason: str) -> SettingsError:
    allowed = f"the path of a file with the secret; {reason}"
    return SettingsError(setting, path, allowed=allowed)
