"""
TLS between one client's socket and V2, started in the middle of a connection by IDENTIFY.

A layer over bytes, not asyncio's `start_tls`: the connection keeps one transport, with one write
buffer, one flow control and one way to close; and bytes that arrived behind IDENTIFY are the first
of the handshake. Sources: nsqd/nsqd.go, buildTLSConfig; nsqd/client_v2.go, UpgradeTLS.
"""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass
from typing import cast

from gateway.broker.client import TlsState
from gateway.errors import SettingRefused, SettingsError
from gateway.tls import MIN_VERSIONS, Certificate

HANDSHAKE_TIMEOUT_S = 5.0

_READ_BYTES = 262_144
_POLICIES = ("", "require", "require-verify")
_REQUIRED = ("false", "true", "tcp-https")

# Only these have a name in nsqd's /stats (nsqd/client_v2.go, GetCipherSuite).
_NSQD_NAMES = {
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
}
_VERSIONS = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """TLS of the broker's TCP port, with nsqd's names and values; all files are PEM."""

    cert: str = ""
    key: str = ""
    client_auth_policy: str = ""
    root_ca_file: str = ""
    required: str = "false"
    min_version: str = "tls1.0"

    @property
    def is_required(self) -> bool:
        """True if TCP clients must use TLS; a policy for client certificates implies it."""
        return self.required != "false" or bool(self.client_auth_policy)

    def certificate(self) -> Certificate | None:
        """
        Return the certificate, not loaded yet; None if there is none.

        Raises:
            SettingsError: A value is unknown, or conflicts with another one.
        """
        _check("--tls-client-auth-policy", self.client_auth_policy, _POLICIES)
        _check("--tls-required", self.required, _REQUIRED)
        _check("--tls-min-version", self.min_version, tuple(MIN_VERSIONS))
        if not self.cert and not self.key:
            if self.is_required:
                reason = "TLS is required, so --tls-cert and --tls-key are, too"
                raise SettingRefused("--tls-required", reason)
            return None
        if self.client_auth_policy == "require" and not self.root_ca_file:
            # nsqd takes any certificate then. Python's ssl always verifies one that it asks for.
            reason = "require needs --tls-root-ca-file: client certificates are always verified"
            raise SettingRefused("--tls-client-auth-policy", reason)
        return Certificate(
            self.cert, self.key, min_version=self.min_version, alpn=(), configure=self._configure
        )

    def _configure(self, context: ssl.SSLContext) -> None:
        """Let *context* ask for client certificates, if there is a policy for them."""
        if not self.client_auth_policy:
            return
        context.verify_mode = ssl.CERT_REQUIRED
        if not self.root_ca_file:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
            return
        try:
            context.load_verify_locations(self.root_ca_file)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            allowed = f"a readable PEM file with certificates; {reason}"
            raise SettingsError("--tls-root-ca-file", self.root_ca_file, allowed=allowed) from error


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(name, value, allowed=", ".join(filter(None, allowed)))


class TlsLayer:
    """TLS of one connection, on the server's side; the handshake is part of `receive`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_established = False
        """True after the handshake."""
        self.is_at_end = False
        """True after the client has ended the stream with close_notify."""
        self.error: ssl.SSLError | None = None
        """Why the handshake failed, or what was received is not valid; nothing more is read."""

    def receive(self, data: bytes) -> bytes:
        """
        Continue the handshake, or decrypt *data*; return the clear bytes in front of any error.

        Then write what `take_outgoing` returns: bytes of the handshake, or the alert for an error.
        """
        self._incoming.write(data)
        clear: list[bytes] = []
        try:
            if not self.is_established:
                self._tls.do_handshake()
                self.is_established = True
            while piece := self._tls.read(_READ_BYTES):
                clear.append(piece)
            self.is_at_end = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_at_end = True
        except ssl.SSLError as error:
            self.error = error
        return clear[0] if len(clear) == 1 else b"".join(clear)

    def encrypt(self, data: bytes) -> bytes:
        """Return *data* encrypted; nothing after an error. Only after the handshake."""
        if data and self.error is None:
            self._tls.write(data)
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Return bytes of the handshake, an alert or a key update; they must be written."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the close_notify that ends the stream; empty before the handshake."""
        if self.is_established:
            # It raises because the client's own close_notify, the answer, has not come.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        return self._outgoing.read()

    def state(self) -> TlsState:
        """Return what /stats and auth servers are told."""
        name, _, _ = self._tls.cipher() or ("", "", 0)
        return TlsState(
            version=_VERSIONS.get(self._tls.version() or "", "Unknown 0"),
            cipher_suite=_NSQD_NAMES.get(name) or f"Unknown {self._cipher_number(name)}",
            common_name=self._common_name(),
        )

    def _cipher_number(self, name: str) -> int:
        ciphers = self._tls.context.get_ciphers()
        return next((each["id"] & 0xFFFF for each in ciphers if each["name"] == name), 0)

    def _common_name(self) -> str:
        certificate = self._tls.getpeercert() or {}
        for names in certificate.get("subject", ()):
            for key, value in cast("tuple[tuple[str, str], ...]", names):
                if key == "commonName":
                    return value
        return ""
