"""
The certificate of the public port: read at the start, and again whenever its files change.

A pair that cannot be used is told in the log, and the one before it stays; nobody who is connected
notices either.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.errors import SettingsError
from gateway.file_stamp import Stamp, stamp_of
from gateway.telemetry import gauge, get_logger
from gateway.tls_versions import MIN_VERSIONS

logger = get_logger()

LOOK_INTERVAL_S = 5.0
"""How often the files are looked at."""

_EXPIRY = gauge(
    "certificate_expiry_timestamp_seconds",
    "When a certificate of ours ends, in seconds since 1970.",
    ["use"],
)
_MAX_FILE_BYTES = 1_048_576
"""A chain of certificates has some thousand."""
_SEQUENCE, _UTC_TIME, _EXPLICIT_VERSION = 0x30, 0x17, 0xA0


class Certificate:
    """
    Certificate and key in two PEM files, and the TLS that they make.

    Kubernetes renews a Secret by a symbolic link that is turned to another folder, others write
    over the file or put another in its place: all of these are seen.
    """

    def __init__(self, cert_file: str, key_file: str, *, min_version: str = "tls1.2") -> None:
        self.context = _new_context(min_version)
        """For a listener; a handshake takes the pair that is the newest when it begins."""
        self.context.sni_callback = self._choose
        self._files = cert_file, key_file
        self._min_version = min_version
        self._current = self.context
        self._stamp: tuple[Stamp, ...] | None = None
        """Of the files when they were used last."""
        self._fault = ""
        """Why they cannot be used now, as the log was told."""
        self._timer: asyncio.TimerHandle | None = None

    def read(self) -> None:
        """
        Use what is in the files now.

        Raises:
            SettingsError: A file cannot be read, or the two do not belong together; what was used
                before is used still.
        """
        # First the stamp: what changes while it is read is read once more. It counts once all is
        # read: a system that has no file left now has one later, and the files do not change.
        stamp = self._look()
        context, expires_at = self._load()
        self._stamp, self._fault = stamp, ""
        is_first = self._current is self.context
        self._current = context
        _EXPIRY.labels("listener").set(expires_at)
        logger.info(
            "certificate read" if is_first else "certificate read again",
            file=self._files[0],
            expires=datetime.fromtimestamp(expires_at, UTC).isoformat(),
        )

    def check(self) -> None:
        """See that the files can be used, for somebody else; raises as `read` does."""
        self._load()

    def _load(self) -> tuple[ssl.SSLContext, float]:
        """Return what TLS needs, and when the certificate ends; raises SettingsError."""
        cert_file, key_file = self._files
        expires_at = _expiry_in("--tls-cert", cert_file)
        _bytes_of("--tls-key", key_file)
        context = _new_context(self._min_version)
        try:
            # Without an answer for a key with a passphrase OpenSSL would ask on the terminal.
            context.load_cert_chain(cert_file, key_file, password=lambda: "")
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            allowed = f"the key of {cert_file}, without a passphrase; {reason}"
            raise SettingsError("--tls-key", key_file, allowed=allowed) from error
        return context, expires_at

    def watch(self) -> None:
        """Look at the files every `LOOK_INTERVAL_S`, until `close`."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._on_look)

    def close(self) -> None:
        """Look at them no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_look(self) -> None:
        self.watch()
        if self._look() == self._stamp:
            return
        try:
            self.read()
        except SettingsError as error:
            before, self._fault = self._fault, str(error)
            if self._fault != before:
                logger.error(  # noqa: TRY400 - the text says it all
                    "certificate not read, the one before it stays", reason=self._fault
                )

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:  # noqa: ANN401
        """Let a handshake that begins go on with the newest pair; OpenSSL asks for every one."""
        connection.context = self._current

    def _look(self) -> tuple[Stamp, ...]:
        """Return what changes with the files; zeros for one that is not there."""
        return tuple(map(stamp_of, self._files))


def expiry_of(cert_file: str) -> float:
    """
    Return when the first certificate in *cert_file* ends, in seconds since 1970.

    Raises:
        SettingsError: There is none.
    """
    return _expiry_in("the certificate", cert_file)


def show_expiry(use: str, cert_file: str) -> None:
    """Tell in the metric when the certificate in *cert_file* ends, as it stands there then."""

    def now() -> float:
        try:
            return expiry_of(cert_file)
        except SettingsError:
            return 0.0  # who uses it says in the log what is wrong

    _EXPIRY.labels(use).set_function(now)


def _new_context(min_version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MIN_VERSIONS[min_version]
    context.set_alpn_protocols(["http/1.1"])
    # A client that asks for a new handshake again and again makes us work for nothing.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _bytes_of(name: str, path: str) -> bytes:
    """Return what is in the file; one that would hold up everybody who waits is not opened."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of what a symbolic link leads to
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(name, path, "it is no regular file")
        if found.st_size > _MAX_FILE_BYTES:
            what = f"it has {found.st_size} bytes, at most {_MAX_FILE_BYTES} are read"
            raise _unusable(name, path, what)
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise _unusable(name, path, getattr(error, "strerror", None) or error) from error


def _expiry_in(name: str, path: str) -> float:
    text = _bytes_of(name, path)
    begin = text.find(b"-----BEGIN CERTIFICATE-----")
    end_mark = b"-----END CERTIFICATE-----"
    end = text.find(end_mark, begin)
    if begin < 0 or end < 0:
        raise _unusable(name, path, "it holds no certificate")
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(end_mark)].decode("ascii"))
        return _not_after(der)
    except (ValueError, IndexError) as error:
        raise _unusable(name, path, "its certificate cannot be read") from error


def _not_after(der: bytes) -> float:
    """
    Return when the certificate ends.

    A certificate is a sequence whose first member is a sequence: version (maybe), serial number,
    algorithm, issuer, then the two times. Source: RFC 5280 §4.1.
    """
    certificate = _members(der)[0][1]
    members = _members(_members(certificate)[0][1])
    if members[0][0] == _EXPLICIT_VERSION:
        del members[0]
    kind, validity = members[3]
    if kind != _SEQUENCE:
        raise ValueError("there is no validity")
    kind, text = _members(validity)[1]
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _members(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each value in *data* (DER, X.690 §8.1)."""
    members = []
    place = 0
    while place < len(data):
        tag, size = data[place], data[place + 1]
        place += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[place : place + count], "big")
            place += count
        members.append((tag, data[place : place + size]))
        place += size
    return members


def _unusable(name: str, path: str, reason: object) -> SettingsError:
    return SettingsError(name, path, allowed=f"a PEM file that can be read; {reason}")
