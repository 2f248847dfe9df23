"""What a connection to a broker asks of TLS."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass

from gateway.errors import SettingsError
from gateway.file_stamp import Stamp, stamp_of
from gateway.tls_versions import MIN_VERSIONS


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """Whom to trust, and who we are; all files are PEM."""

    root_ca_file: str | None = None
    """The authorities that may have signed the broker's certificate; None: the system's."""
    cert_file: str | None = None
    """Our own certificate, where the broker asks for one (mutual TLS)."""
    key_file: str | None = None
    """Its key; None: it stands in *cert_file*."""
    min_version: str = "tls1.2"
    """One of `MIN_VERSIONS`."""
    insecure_skip_verify: bool = False
    """Whether any certificate will do, under any name: only to try things out."""

    def context(self) -> ssl.SSLContext:
        """
        Return what TLS needs; a file that has changed since is read again.

        Raises:
            SettingsError: A file cannot be used, or the version is unknown.
        """
        files = (self.root_ca_file, self.cert_file, self.key_file)
        return _context(self, tuple(map(stamp_of, files)))


@functools.lru_cache(maxsize=16)
def _context(options: TlsOptions, stamps: tuple[Stamp, ...]) -> ssl.SSLContext:
    del stamps  # a part of the key: a certificate that was renewed is read again
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
            raise _unusable("nsqd_tls_root_ca_file", options.root_ca_file, error) from error
    if options.cert_file is not None:
        try:
            # Without an answer for a key with a passphrase OpenSSL would ask on the terminal.
            context.load_cert_chain(options.cert_file, options.key_file, password=lambda: "")
        except OSError as error:
            raise _unusable("nsqd_tls_cert", options.cert_file, error) from error
    elif options.key_file is not None:
        allowed = "a key beside its certificate, nsqd_tls_cert"
        raise SettingsError("nsqd_tls_key", options.key_file, allowed=allowed)
    return context


def _unusable(name: str, path: str, error: OSError) -> SettingsError:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return SettingsError(name, path, allowed=f"a PEM file that can be read; {reason or error}")
