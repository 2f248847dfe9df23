"""
TLS in both roles: the certificate of the public port, and connections to nsqd.

The certificate of the public port is reloaded when its files change. If the new files are invalid,
the log has the reason and the previous certificate stays in use.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from gateway.errors import SettingsError
from gateway.files import FileFingerprint, FileUnusable, file_fingerprint, read_small_file
from gateway.telemetry import gauge, get_logger

TlsVersion: TypeAlias = Literal["tls1.0", "tls1.1", "tls1.2", "tls1.3"]
"""The values of nsqd's --tls-min-version, from the oldest."""

_VERSIONS = (
    ssl.TLSVersion.TLSv1,
    ssl.TLSVersion.TLSv1_1,
    ssl.TLSVersion.TLSv1_2,
    ssl.TLSVersion.TLSv1_3,
)

MIN_VERSIONS: dict[str, ssl.TLSVersion] = dict(zip(get_args(TlsVersion), _VERSIONS, strict=True))
"""Minimum versions for `ssl.SSLContext`, by their names in nsqd."""


logger = get_logger()

CHECK_INTERVAL_S = 5.0
"""Time between checks for changed files."""

_EXPIRY = gauge(
    "certificate_expiry_timestamp_seconds",
    "Expiry of a certificate, in seconds since 1970, by use: listener or nsqd.",
    ["use"],
)
_SEQUENCE, _UTC_TIME, _EXPLICIT_VERSION = 0x30, 0x17, 0xA0


class Certificate:
    """
    The certificate and private key of a listener, reloaded when their PEM files change.

    Renewals are recognized whether the file is overwritten, replaced, or behind a symbolic link to
    another folder, as for Secrets in Kubernetes. *alpn* are the protocols that listeners offer;
    *configure* is called with each new context, for example to ask for client certificates.
    """

    def __init__(
        self,
        cert_file: str,
        key_file: str,
        *,
        min_version: str = "tls1.2",
        alpn: Sequence[str] = ("http/1.1",),
        configure: Callable[[ssl.SSLContext], None] = lambda _context: None,
    ) -> None:
        self._min_version = min_version
        self._alpn = alpn
        self._configure = configure
        self.context = self._new_context()
        """Context for a listener; each handshake uses the newest certificate."""
        self.context.sni_callback = self._on_client_hello
        self._files = cert_file, key_file
        self._current = self.context
        self._loaded_files: tuple[FileFingerprint, ...] | None = None
        """Fingerprints of the files in use."""
        self._logged_error = ""
        """The last logged reason why the files are invalid."""
        self._timer: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """
        Load the certificate and its key, and use them for every handshake from now on.

        Raises:
            SettingsError: A file is unreadable, or the key does not match; the previous certificate
                stays in use.
        """
        # Take the fingerprints before the contents, so that a change in between is noticed. Store
        # them only after success: without a free file descriptor the same files load later.
        found = self._fingerprints()
        context, expires_at = self._load()
        self._loaded_files, self._logged_error = found, ""
        is_first = self._current is self.context
        self._current = context
        _EXPIRY.labels("listener").set(expires_at)
        logger.info(
            "certificate loaded" if is_first else "certificate reloaded",
            file=self._files[0],
            expires=datetime.fromtimestamp(expires_at, UTC).isoformat(),
        )

    def check(self) -> None:
        """Check that the files are valid, without using them; raises like `load`."""
        self._load()

    def _load(self) -> tuple[ssl.SSLContext, float]:
        """Load both files; return a context and the certificate's expiry. Raises SettingsError."""
        cert_file, key_file = self._files
        expires_at = _expiry_in("--tls-cert", cert_file)
        _bytes_of("--tls-key", key_file)
        # A new context each time: if the files are invalid, the one in use is not affected.
        context = self._new_context()
        try:
            # Without a password callback OpenSSL prompts for a passphrase on the terminal.
            context.load_cert_chain(cert_file, key_file, password=lambda: "")
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            allowed = f"the private key of {cert_file}, without a passphrase; {reason}"
            raise SettingsError("--tls-key", key_file, allowed=allowed) from error
        return context, expires_at

    def watch(self) -> None:
        """Reload the files when they have changed; check every `CHECK_INTERVAL_S` until `close`."""
        self._timer = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._on_timer)

    def close(self) -> None:
        """Stop watching the files for changes; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        # First: whatever happens below, the checks go on.
        self.watch()
        if self._fingerprints() == self._loaded_files:
            return
        try:
            self.load()
        except SettingsError as error:
            # Log a reason once: the fingerprints still differ at the next check.
            before, self._logged_error = self._logged_error, str(error)
            if self._logged_error != before:
                logger.error(  # noqa: TRY400 - a traceback adds nothing
                    "certificate reload failed, keeping the previous one", reason=str(error)
                )

    def _on_client_hello(
        self,
        connection: Any,  # noqa: ANN401 - SSLSocket or SSLObject
        _name: str | None,
        _context: ssl.SSLContext,
    ) -> None:
        """Use the newest certificate for this handshake; OpenSSL calls this in every handshake."""
        connection.context = self._current

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with warnings.catch_warnings():
            # The ssl module warns of TLS 1.0 and 1.1; whoever asks for them means it.
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = MIN_VERSIONS[self._min_version]
        if self._alpn:
            context.set_alpn_protocols(self._alpn)
        # Renegotiation lets a client cause expensive handshakes again and again.
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._configure(context)
        return context

    def _fingerprints(self) -> tuple[FileFingerprint, ...]:
        return tuple(map(file_fingerprint, self._files))


def certificate_expiry(cert_file: str) -> float:
    """
    Return the expiry of the first certificate in *cert_file*, in seconds since 1970.

    Raises:
        SettingsError: The file has no valid certificate.
    """
    return _expiry_in("the certificate", cert_file)


def export_certificate_expiry(use: str, cert_file: str) -> None:
    """Export the expiry of the certificate in *cert_file* for *use*; each scrape reads the file."""

    def now() -> float:
        try:
            return certificate_expiry(cert_file)
        except SettingsError:
            return 0.0  # the connection that uses the file logs the reason

    _EXPIRY.labels(use).set_function(now)


def _bytes_of(name: str, path: str) -> bytes:
    """Return the contents of the file at *path*; errors (SettingsError) call it *name*."""
    try:
        return read_small_file(path)
    except FileUnusable as error:
        raise _unusable(name, path, error) from error


def _expiry_in(name: str, path: str) -> float:
    text = _bytes_of(name, path)
    begin = text.find(b"-----BEGIN CERTIFICATE-----")
    end_mark = b"-----END CERTIFICATE-----"
    end = text.find(end_mark, begin)
    if begin < 0 or end < 0:
        raise _unusable(name, path, "it contains no certificate")
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(end_mark)].decode("ascii"))
        return _not_after(der)
    except (ValueError, IndexError) as error:
        raise _unusable(name, path, "its certificate is invalid") from error


def _not_after(der: bytes) -> float:
    """
    Return notAfter of a certificate in DER.

    Certificate and TBSCertificate are sequences; the latter has version (optional), serial number,
    signature, issuer, validity (RFC 5280 §4.1). The standard library only decodes certificates of
    a verified peer or of a CA (`SSLContext.get_ca_certs`), and `cryptography` is no dependency.
    """
    certificate = _members(der)[0][1]
    members = _members(_members(certificate)[0][1])
    # A certificate of version 1 has no version field.
    if members[0][0] == _EXPLICIT_VERSION:
        del members[0]
    kind, validity = members[3]
    if kind != _SEQUENCE:
        raise ValueError("validity is not a sequence")
    kind, text = _members(validity)[1]
    # RFC 5280 §4.1.2.5: UTCTime for dates until 2049, GeneralizedTime for later ones.
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _members(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element of *data* (DER, X.690 §8.1)."""
    members = []
    offset = 0
    while offset < len(data):
        tag, size = data[offset], data[offset + 1]
        offset += 2
        # The long form (X.690 §8.1.3.5): the low bits are the number of bytes of the length.
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[offset : offset + count], "big")
            offset += count
        members.append((tag, data[offset : offset + size]))
        offset += size
    return members


def _unusable(name: str, path: str, reason: object) -> SettingsError:
    return SettingsError(name, path, allowed=f"a readable PEM file; {reason}")


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """TLS options of a connection to nsqd; all files are PEM."""

    root_ca_file: str | None = None
    """Root certificates; None: the system's."""
    cert_file: str | None = None
    """Client certificate (mutual TLS)."""
    key_file: str | None = None
    """Private key of *cert_file*; None: it is in the same file."""
    min_version: str = "tls1.2"
    """One of `MIN_VERSIONS`."""
    insecure_skip_verify: bool = False
    """Do not verify the certificate; for tests only."""

    def context(self) -> ssl.SSLContext:
        """
        Return a context with these options, from a cache; after a file has changed, a new one.

        Raises:
            SettingsError: A file is invalid, or the version is unknown.
        """
        files = (self.root_ca_file, self.cert_file, self.key_file)
        return _context(self, tuple(map(file_fingerprint, files)))


@functools.lru_cache(maxsize=16)
def _context(options: TlsOptions, fingerprints: tuple[FileFingerprint, ...]) -> ssl.SSLContext:
    del fingerprints  # part of the cache key
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.min_version not in MIN_VERSIONS:
        allowed = ", ".join(MIN_VERSIONS)
        raise SettingsError("nsqd_tls_min_version", options.min_version, allowed=allowed)
    context.minimum_version = MIN_VERSIONS[options.min_version]
    if options.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.root_ca_file is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(options.root_ca_file)
        except OSError as error:
            raise _unusable_file("nsqd_tls_root_ca_file", options.root_ca_file, error) from error
    if options.cert_file is not None:
        try:
            # Without a password callback OpenSSL prompts for a passphrase on the terminal.
            context.load_cert_chain(options.cert_file, options.key_file, password=lambda: "")
        except OSError as error:
            raise _unusable_file("nsqd_tls_cert", options.cert_file, error) from error
    elif options.key_file is not None:
        allowed = "a key together with its certificate, nsqd_tls_cert"
        raise SettingsError("nsqd_tls_key", options.key_file, allowed=allowed)
    return context


def _unusable_file(name: str, path: str, error: OSError) -> SettingsError:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return SettingsError(name, path, allowed=f"a readable PEM file; {reason or error}")
