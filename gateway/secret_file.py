"""A secret in a file: read once, and told about when everybody can read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gateway.errors import SettingsError
from gateway.secret import Secret

_MAX_BYTES = 65_536


def read_secret_file(path: str, setting: str = "--auth-secret-file") -> tuple[Secret, str | None]:
    """
    Return the secret in the file at *path*, without its last newline, and a warning or None.

    The warning is a line for the log: everybody on this machine may read the file. *setting* is
    who names the file.

    Raises:
        SettingsError: There is no such file, it cannot be read, or it is empty or far too long.
    """
    try:
        with Path(path).open("rb") as file:
            # Of the file that was opened, whatever stands under the name by now.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unusable(setting, path, reason) from error
    if len(text) > _MAX_BYTES:
        raise _unusable(setting, path, f"it is longer than {_MAX_BYTES} bytes")
    secret = text.removesuffix(b"\n").removesuffix(b"\r")
    if not secret:
        raise _unusable(setting, path, "it is empty")
    warning = None
    # Not the group: that is how a container without root is given one.
    if mode & stat.S_IROTH:
        warning = f"everybody may read the secret in {path} (mode {mode:03o}); chmod o= ends that"
    return Secret(secret), warning


def _unusable(setting: str, path: str, reason: str) -> SettingsError:
    allowed = f"the path of a file that holds the secret; {reason}"
    return SettingsError(setting, path, allowed=allowed)
