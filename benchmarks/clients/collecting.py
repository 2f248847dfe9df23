"""The gateway, collecting garbage on SIGUSR2, to measure its memory."""

from __future__ import annotations

import gc
import signal

from gateway.cli.main import main


def _collect(_number: int, _frame: object) -> None:
    gc.collect()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _collect)
    main()
