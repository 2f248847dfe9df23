"""
Certificates for one test: an authority, servers, clients and an untrusted party.

All are PEM files in a temporary folder; keys of theirs open nothing outside of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

_YESTERDAY = datetime.now(tz=UTC) - timedelta(days=1)
_LAST_YEAR = _YESTERDAY - timedelta(days=365)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A certificate with its chain and its key."""

    cert_file: str
    key_file: str

    @property
    def nsqd_flags(self) -> tuple[str, str]:
        """The flags with which nsqd serves this certificate."""
        return f"--tls-cert={self.cert_file}", f"--tls-key={self.key_file}"


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """All identities; signed by the authority in *root_ca_file*, except `stranger`."""

    root_ca_file: str
    server: Identity
    """Server certificate for 127.0.0.1 and localhost."""
    misnamed: Identity
    """Server certificate for another host."""
    expired: Identity
    """Server certificate for 127.0.0.1 and localhost, expired yesterday."""
    client: Identity
    """Client certificate with the common name ``gateway``."""
    stranger_ca_file: str
    """CA that signed none of the certificates above."""
    stranger: Identity
    """Client certificate signed by that CA."""

    def mutual_flags(self, policy: str = "require-verify") -> tuple[str, ...]:
        """Return the flags that make nsqd require a client certificate from this CA."""
        return (
            *self.server.nsqd_flags,
            f"--tls-client-auth-policy={policy}",
            f"--tls-root-ca-file={self.root_ca_file}",
        )


@contextmanager
def certificates() -> Iterator[Certificates]:
    """Create the certificates, and delete their files when the block ends."""
    authority, stranger = trustme.CA(), trustme.CA()
    here = ("127.0.0.1", "localhost")
    expired = authority.issue_cert(*here, not_before=_LAST_YEAR, not_after=_YESTERDAY)
    caller = "gateway.example"  # Go refuses a certificate that names nobody but its subject
    client = authority.issue_cert(caller, common_name="gateway")
    impostor = stranger.issue_cert(caller, common_name="gateway")
    with tempfile.TemporaryDirectory(prefix="certificates-") as name:
        folder = Path(name)
        yield Certificates(
            root_ca_file=_written(folder / "ca.pem", authority.cert_pem),
            server=_identity(folder / "server", authority.issue_cert(*here)),
            misnamed=_identity(folder / "misnamed", authority.issue_cert("elsewhere.example")),
            expired=_identity(folder / "expired", expired),
            client=_identity(folder / "client", client),
            stranger_ca_file=_written(folder / "stranger_ca.pem", stranger.cert_pem),
            stranger=_identity(folder / "stranger", impostor),
        )


def _identity(folder: Path, issued: trustme.LeafCert) -> Identity:
    folder.mkdir()
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return Identity(
        cert_file=_written(folder / "cert.pem", trustme.Blob(chain)),
        key_file=_written(folder / "key.pem", issued.private_key_pem),
    )


def _written(path: Path, blob: trustme.Blob) -> str:
    blob.write_to_path(str(path))
    return str(path)
