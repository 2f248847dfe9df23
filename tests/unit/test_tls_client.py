"""What a connection asks of TLS follows the files, and a file that cannot be used is named."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.tls import TlsOptions
from tests.support.certificates import Certificates, certificates


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


@pytest.fixture
def trusted(certs: Certificates, tmp_path: Path) -> Path:
    """Return a file with that authority, which a test may change."""
    return Path(shutil.copy(certs.root_ca_file, tmp_path / "ca.pem"))


def authorities(options: TlsOptions) -> list[bytes]:
    return options.context().get_ca_certs(binary_form=True)


def test_files_that_stay_as_they_are_are_read_once(trusted: Path) -> None:
    """A crowd that connects shares one context."""
    options = TlsOptions(root_ca_file=str(trusted))

    assert options.context() is options.context()


def test_a_file_that_was_written_anew_is_read_again(certs: Certificates, trusted: Path) -> None:
    options = TlsOptions(root_ca_file=str(trusted))
    before = authorities(options)
    shutil.copy(certs.stranger_ca_file, trusted)

    assert 1 == len(before)
    assert before != authorities(options)


def test_a_file_that_another_took_the_place_of_is_read_again(
    certs: Certificates, trusted: Path
) -> None:
    """Though it has the same time, as what an archive or an image brings along."""
    options = TlsOptions(root_ca_file=str(trusted))
    before = authorities(options)
    times = trusted.stat()
    other = Path(shutil.copy(certs.stranger_ca_file, trusted.with_suffix(".new")))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(trusted)

    assert before != authorities(options)


def test_a_link_that_was_turned_is_read_again(certs: Certificates, tmp_path: Path) -> None:
    """As Kubernetes does it with a Secret that is mounted."""
    link = tmp_path / "ca.pem"
    link.symlink_to(certs.root_ca_file)
    options = TlsOptions(root_ca_file=str(link))
    before = authorities(options)
    link.unlink()
    link.symlink_to(certs.stranger_ca_file)

    assert before != authorities(options)


def test_a_file_that_is_half_written_is_named_and_read_again_when_it_is_whole(
    certs: Certificates, trusted: Path
) -> None:
    """The error names the setting and the file; nothing of it is kept."""
    options = TlsOptions(root_ca_file=str(trusted))
    trusted.write_text("-----BEGIN CERTIFICATE-----\nhalf")
    with pytest.raises(SettingsError, match=f"nsqd_tls_root_ca_file.*{trusted}"):
        options.context()
    shutil.copy(certs.root_ca_file, trusted)

    assert 1 == len(authorities(options))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = TlsOptions(root_ca_file=str(tmp_path / "none.pem"))

    with pytest.raises(SettingsError, match="No such file or directory"):
        options.context()


def test_a_key_without_its_certificate_is_refused(certs: Certificates) -> None:
    """A key alone says nothing about who we are."""
    with pytest.raises(SettingsError, match="nsqd_tls_key"):
        TlsOptions(key_file=certs.client.key_file).context()


def test_a_version_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"tls1\.2, tls1\.3"):
        TlsOptions(min_version="ssl3").context()


def test_any_certificate_will_do_only_when_told_so(certs: Certificates) -> None:
    """The name is compared and the signature checked, unless both are left out."""
    strict = TlsOptions(root_ca_file=certs.root_ca_file).context()
    lax = TlsOptions(insecure_skip_verify=True).context()

    assert (True, ssl.CERT_REQUIRED) == (strict.check_hostname, strict.verify_mode)
    assert (False, ssl.CERT_NONE) == (lax.check_hostname, lax.verify_mode)
