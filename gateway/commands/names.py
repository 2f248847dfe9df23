"""The names on the command line."""

from __future__ import annotations

from gateway.errors import SettingsError
from gateway.protocol.wire import is_valid_name

_ALLOWED = "1 to 64 letters, digits, '.', '_', '-'; '#ephemeral' may follow"


def check_names(**names: str) -> None:
    """
    Let pass what can name a topic or a channel.

    Raises:
        SettingsError: The first one that cannot, by its keyword in capitals, as --help shows it.
    """
    for what, name in names.items():
        if not is_valid_name(name.encode("utf-8", "surrogateescape")):
            raise SettingsError(what.upper(), name, allowed=_ALLOWED)
