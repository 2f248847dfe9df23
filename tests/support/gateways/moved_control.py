"""An `AccessControl` whose clock and changes a test makes."""

from __future__ import annotations

from pathlib import Path

from gateway.access.control import AccessControl
from gateway.access.rights import Identity
from gateway.credentials import Secret
from tests.support.gateways.access_file import access_file

EPOCH = 1_800_000_000.0


class MovedControl(AccessControl):
    """A control of an access file in *folder* with *entries*, at the time `EPOCH`."""

    def __init__(self, folder: Path, *entries: str) -> None:
        self.now = EPOCH
        self.identified = 0
        """Number of calls of `identify`."""
        self._folder = folder
        super().__init__(access_file(folder, *entries), clock=lambda: self.now)
        self.load()

    def identify(self, secret: Secret) -> Identity:
        """Count the call."""
        self.identified += 1
        return super().identify(secret)

    def change(self, *entries: str) -> None:
        """Write *entries* into the file, and do at once what the watch of the file does."""
        access_file(self._folder, *entries)
        self.load()
        for callback in self._listeners:
            callback()
