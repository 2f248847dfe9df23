"""The gateway, which collects its garbage when it is sent SIGUSR2: for measuring its memory."""

from __future__ import annotations

import gc
import signal

from gateway.cli import main


def _collect(_number: int, _frame: object) -> None:
    gc.collect()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _collect)
    main()
