"""Under which id a request is known, in its answer and in the log."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the ``X-Request-Id`` that came along when it is sane, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            return chosen_request_id(value)
    return new_request_id()


def chosen_request_id(value: bytes) -> str:
    """Return *value* when it is 1 to 64 letters, digits, ``.``, ``_``, ``-``, else a new id."""
    return value.decode("ascii") if _SANE_REQUEST_ID.fullmatch(value) else new_request_id()


def new_request_id() -> str:
    """Return 16 random hexadecimal digits; they tell requests apart and are no secret."""
    return f"{random.getrandbits(64):016x}"
