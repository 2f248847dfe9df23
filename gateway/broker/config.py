"""
nsqd's options as /config/:opt reads and changes them.

Two options can be changed at run time: nsqlookupd_tcp_addresses and log_level. Source: doConfig in
nsqd/http.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec

from gateway.addresses import split_address
from gateway.broker.lookupd import LookupdRegistration
from gateway.errors import InvalidRequest
from gateway.telemetry import set_log_level

OptionValue: TypeAlias = str | bool | int | list[str] | list[float]
"""Texts are shown as they are, all others in JSON; durations are in ns."""

LOG_LEVELS: Mapping[str, int] = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
"""nsqd's levels and their numbers in /config."""
_PYTHON_LEVELS = {"warn": "warning", "fatal": "critical"}
_NSQD_LEVELS = {ours: nsqds for nsqds, ours in _PYTHON_LEVELS.items()}
_MAX_LOOKUPDS = 64

_addresses = msgspec.json.Decoder(
    Annotated[
        list[Annotated[str, msgspec.Meta(max_length=300)]], msgspec.Meta(max_length=_MAX_LOOKUPDS)
    ]
    | None
)


class NsqdConfig:
    """The *values* of the options that do not change, and the two that do."""

    def __init__(
        self, values: Mapping[str, OptionValue], lookupd: LookupdRegistration, *, log_level: str
    ) -> None:
        self._values = values
        self._lookupd = lookupd
        self._log_level = LOG_LEVELS[_NSQD_LEVELS.get(log_level, log_level)]

    def get(self, name: str) -> OptionValue:
        """
        Return the value of the option *name*.

        Raises:
            InvalidRequest: There is no such option (INVALID_OPTION).
        """
        if name == "nsqlookupd_tcp_addresses":
            return self._lookupd.addresses
        if name == "log_level":
            return self._log_level
        value = self._values.get(name)
        if value is None:
            raise InvalidRequest("INVALID_OPTION", f"there is no option {name!r} to read")
        return value

    def put(self, name: str, body: bytes) -> None:
        """
        Change the option *name* to the value in *body*.

        Raises:
            InvalidRequest: The option cannot be changed (INVALID_OPTION), or not to this value
                (INVALID_VALUE).
        """
        if name == "nsqlookupd_tcp_addresses":
            self._lookupd.set_addresses(_parse_addresses(body))
        elif name == "log_level":
            level = body.decode("latin-1").lower()
            if level not in LOG_LEVELS:
                raise InvalidRequest(
                    "INVALID_VALUE", f"{level[:80]!r} is no level; allowed: {', '.join(LOG_LEVELS)}"
                )
            set_log_level(_PYTHON_LEVELS.get(level, level))
            self._log_level = LOG_LEVELS[level]
        else:
            raise InvalidRequest("INVALID_OPTION", f"there is no option {name!r} to change")


def _parse_addresses(body: bytes) -> list[str]:
    try:
        # null is an empty list in Go.
        addresses = _addresses.decode(body) or []
        for address in addresses:
            if split_address(address)[1] == 0:
                raise InvalidRequest("INVALID_VALUE", f"{address!r} has no port")
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest(
            "INVALID_VALUE",
            f"the body must be a JSON list of at most {_MAX_LOOKUPDS} host:port; {error}",
        ) from error
    return addresses
