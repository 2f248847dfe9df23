"""That something has happened, for those who wait for it."""

from __future__ import annotations

import asyncio


class Mark:
    """
    What asyncio.Event is, for the thousands that nobody waits for: nothing is made before.

    Used in one event loop; `wait` may be cancelled.
    """

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._future: asyncio.Future[None] | None = None
        """Of those who wait, all of them."""

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Let everybody go on who waits."""
        self._is_set = True
        future, self._future = self._future, None
        if future is not None:
            future.set_result(None)

    def clear(self) -> None:
        """Let those wait who come from now on."""
        self._is_set = False

    async def wait(self) -> None:
        """Return once it has happened."""
        if self._is_set:
            return
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        # Whoever is cancelled is not to cancel the others.
        await asyncio.wait({self._future})
