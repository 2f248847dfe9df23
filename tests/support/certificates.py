"""
Certificates made for one test: who signs, who serves, who calls, and who should not be trusted.

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
    """A certificate with what it is signed by, and its key."""

    cert_file: str
    key_file: str

    @property
    def nsqd_flags(self) -> tuple[str, str]:
        """What makes an nsqd serve with it."""
        return f"--tls-cert={self.cert_file}", f"--tls-key={self.key_file}"


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """Everybody; signed by the authority in *root_ca_file*, but for the stranger."""

    root_ca_file: str
    server: Identity
    """For 127.0.0.1 and localhost."""
    misnamed: Identity
    """For another host."""
    expired: Identity
    """For 127.0.0.1 and localhost, until yesterday."""
    client: Identity
    """For a client that names itself ``gateway``."""
    stranger_ca_file: str
    """An authority that signed none of the above."""
    stranger: Identity
    """A client that the stranger signed."""

    def mutual_flags(self, policy: str = "require-verify") -> tuple[str, ...]:
        """Return what makes an nsqd ask clients for a certificate of ours."""
        return (
            *self.server.nsqd_flags,
            f"--tls-client-auth-policy={policy}",
            f"--tls-root-ca-file={self.root_ca_file}",
        )


@contextmanager
def certificates() -> Iterator[Certificates]:
    """Make them, and remove their files when the block ends."""
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
