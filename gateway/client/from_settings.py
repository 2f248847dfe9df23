"""Convert settings to options of the client, and read the secrets and certificates they name."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import NamedTuple

from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import LookupOptions
from gateway.client.handshake import DEFAULT_USER_AGENT
from gateway.credentials import Secret, is_valid_bearer, read_secret_file
from gateway.errors import SettingsError
from gateway.protocol.identify import IdentifyRequest
from gateway.session.auth import MAX_SECRET_BYTES
from gateway.session.leases import MAX_KEY_BYTES, MIN_KEY_BYTES
from gateway.settings.nsqd import NsqdSettings
from gateway.settings.serve import ServeSettings
from gateway.telemetry import get_logger
from gateway.tls import TlsOptions, export_certificate_expiry

logger = get_logger()

_ADMIN_SECRET_FILE = "--admin-secret-file"
_LEASE_KEY_FILE = "--lease-key-file"


@dataclass(frozen=True, kw_only=True)
class NsqdAccess:
    """Client options for nsqd and nsqlookupd, with all files read and checked."""

    secret: Secret | None
    """The gateway's own secret, as opposed to those of callers."""
    connection: ConnectionOptions
    """Options without a secret: connections may use the gateway's or a caller's."""
    lookup: LookupOptions
    """Options with the gateway's own secret."""


def read_access(settings: NsqdSettings) -> NsqdAccess:
    """
    Read the files that *settings* name; log a warning if everyone can read the secret file.

    Raises:
        SettingsError: A file is missing or invalid.
    """
    secret = read_secret(settings.auth_secret, settings.auth_secret_file)
    tls = _tls_options(settings)
    if tls is not None:
        tls.context()  # fail now, instead of reporting every nsqd as unreachable
        if tls.cert_file is not None:
            export_certificate_expiry("nsqd", tls.cert_file)
    return NsqdAccess(
        secret=secret,
        connection=ConnectionOptions(
            offer=_offer(settings), connect_timeout_ms=settings.dial_timeout_ms, tls=tls
        ),
        lookup=LookupOptions(
            lookupd_http_addresses=settings.lookupd_http_address,
            poll_interval_s=settings.lookupd_poll_interval_s,
            poll_jitter=settings.lookupd_poll_jitter,
            secret=secret,
        ),
    )


def read_secret(secret: Secret | None, path: str | None) -> Secret | None:
    """
    Return *secret*, or the one in the file at *path*; log a warning if everyone can read the file.

    Raises:
        SettingsError: The file is missing or invalid.
    """
    if path is None:
        return secret
    secret, warning = read_secret_file(path)
    if warning is not None:
        logger.warning("secret file readable by everyone", advice=warning)
    return secret


class NsqdAddresses(NamedTuple):
    """Addresses (host:port) of the nsqds in the settings, or of the embedded broker."""

    tcp: tuple[str, ...]
    http: tuple[str, ...]


def read_admin_secret(settings: ServeSettings) -> Secret | None:
    """
    Read the secret for administration from the file named in *settings*; return None without one.

    Log a warning if everyone can read the file.

    Raises:
        SettingsError: The file is missing, or a header cannot carry its content.
    """
    path = settings.admin_secret_file
    if path is None:
        return None
    secret, warning = read_secret_file(path, _ADMIN_SECRET_FILE)
    if warning is not None:
        logger.warning("secret file readable by everyone", advice=warning)
    if not is_valid_bearer(secret) or len(secret.reveal()) > MAX_SECRET_BYTES:
        allowed = (
            f"the path of a file with 1 to {MAX_SECRET_BYTES} bytes of visible ASCII without "
            "spaces, because it is sent in a header"
        )
        raise SettingsError(_ADMIN_SECRET_FILE, path, allowed=allowed)
    return secret


def read_lease_key(settings: ServeSettings) -> bytes | None:
    """
    Read the key of --lease-key-file; return None without the file.

    Raises:
        SettingsError: The file is missing, or the key too short or too long.
    """
    path = settings.lease_key_file
    if path is None:
        return None
    secret, warning = read_secret_file(path, _LEASE_KEY_FILE)
    if warning is not None:
        logger.warning("secret file readable by everyone", advice=warning)
    key = secret.reveal()
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        allowed = f"the path of a file with {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes"
        raise SettingsError(_LEASE_KEY_FILE, path, allowed=f"{allowed}; it has {len(key)}")
    return key


def _offer(settings: NsqdSettings) -> IdentifyRequest:
    return IdentifyRequest(
        client_id=settings.client_id,
        hostname=settings.hostname or socket.gethostname(),
        user_agent=settings.user_agent or DEFAULT_USER_AGENT,
        feature_negotiation=True,
        heartbeat_interval=settings.heartbeat_interval_ms,
        snappy=settings.nsqd_snappy,
        deflate=settings.nsqd_deflate,
        deflate_level=settings.nsqd_deflate_level if settings.nsqd_deflate else 0,
        topology_region=settings.topology_region,
        topology_zone=settings.topology_zone,
    )


def _tls_options(settings: NsqdSettings) -> TlsOptions | None:
    if not settings.nsqd_tls_v1:
        return None
    return TlsOptions(
        root_ca_file=settings.nsqd_tls_root_ca_file,
        cert_file=settings.nsqd_tls_cert,
        key_file=settings.nsqd_tls_key,
        min_version=settings.nsqd_tls_min_version,
        insecure_skip_verify=settings.nsqd_tls_insecure_skip_verify,
    )
