"""`nsq-gateway health`: ask the management port whether a gateway is alive or ready."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection, HTTPException
from typing import Literal, TypeAlias

from gateway.addresses import local_address, split_address
from gateway.errors import GatewayError, SettingsError
from gateway.settings.fields import flag_name

Probe: TypeAlias = Literal["live", "ready"]

_PATHS: dict[Probe, str] = {"live": "/livez", "ready": "/readyz"}
_MAX_BODY_BYTES = 16_384
_MAX_TEXT = 400
_OK = 200


class NoAnswer(GatewayError):
    """The management port gave no valid response; the text has its address and what to check."""


def check_health(management_listen: str, probe: Probe, timeout_s: float) -> tuple[bool, str]:
    """
    Send *probe* to a gateway on this machine; return whether it succeeds, and the response's text.

    The text is one line. *management_listen* is the setting of `serve`: if `serve` listens on every
    address (0.0.0.0), send the request to loopback. *timeout_s* limits the whole request.

    Raises:
        SettingsError: The port is 0, which `serve` replaces by a different one on each start.
        NoAnswer: There was no response in time, or it was not HTTP.
    """
    host, port = split_address(management_listen)
    if port == 0:
        raise SettingsError(
            flag_name("management_listen"),
            management_listen,
            allowed="a fixed port; for port 0 only the log of serve has the number",
        )
    address = local_address(management_listen)
    host = split_address(address)[0]
    try:
        status, body = _get(host, port, _PATHS[probe], timeout_s)
    except TimeoutError as error:
        raise NoAnswer(f"{address} did not answer within {timeout_s:g} s (--timeout-s)") from error
    except HTTPException as error:
        raise NoAnswer(f"{address} is not a management port: its response is not HTTP") from error
    except OSError as error:
        raise NoAnswer(
            f"{address} does not answer ({error.strerror or error}); "
            "is --management-listen the same as for serve?"
        ) from error
    text = "".join(each if each.isprintable() else " " for each in body.decode("utf-8", "replace"))
    text = " ".join(text.split())[:_MAX_TEXT]
    return status == _OK, text or f"status {status}"


def _get(host: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Send a GET request; return the status and the first bytes of the body."""
    connection = HTTPConnection(host, port, timeout=timeout_s)
    is_late = threading.Event()
    opened: socket.socket | None = None

    def abort() -> None:
        is_late.set()
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    # The timeout of a socket is for each read: a server that sends single bytes never exceeds it.
    timer = threading.Timer(timeout_s, abort)
    timer.daemon = True
    timer.start()
    try:
        connection.connect()
        # Kept here: after the head of a response that ends with the connection, http.client sets
        # `connection.sock` to None, while the response still reads from this socket.
        opened = connection.sock
        if is_late.is_set():
            raise TimeoutError
        # `TrustedHosts` accepts this name on every port, whatever --management-allow-host is.
        headers = {"Host": "localhost", "Connection": "close"}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_BODY_BYTES)
    except (OSError, HTTPException):
        if is_late.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        connection.close()
    # For http.client, the shutdown by `abort` may look like the end of the body.
    if is_late.is_set():
        raise TimeoutError
    return response.status, body
