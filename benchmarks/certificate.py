"""A new certificate for nsqd in each run."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import trustme


@dataclass(frozen=True)
class Certificate:
    """A certificate for loopback and its issuer, as PEM files."""

    root_ca_file: str
    key_and_cert_file: str


@contextlib.contextmanager
def certificate() -> Iterator[Certificate]:
    """Create a certificate; remove its files when the block ends."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    with tempfile.TemporaryDirectory() as folder:
        made = Certificate(f"{folder}/ca.pem", f"{folder}/nsqd.pem")
        authority.cert_pem.write_to_path(made.root_ca_file)
        issued.private_key_and_cert_chain_pem.write_to_path(made.key_and_cert_file)
        yield made
