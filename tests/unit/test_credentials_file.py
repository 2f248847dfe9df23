"""A secret in a file: which bytes are it, and what is said of the file."""

from pathlib import Path

import pytest

from gateway.credentials import Secret, read_secret_file
from gateway.errors import SettingsError


def secret_file(folder: Path, text: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    "text,expected",
    [
        (b"word", b"word"),
        (b"word\n", b"word"),
        (b"word\r\n", b"word"),
        (b"word\n\n", b"word\n"),
        (b" two words ", b" two words "),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_only_the_last_newline_is_no_part_of_the_secret(
    text: bytes, expected: bytes, tmp_path: Path
) -> None:
    """An editor puts it there; everything else is meant."""
    assert (Secret(expected), None) == read_secret_file(secret_file(tmp_path, text))


@pytest.mark.parametrize("mode,is_told", [(0o600, False), (0o440, False), (0o644, True)])
def test_a_file_that_everybody_may_read_is_told_about(
    mode: int, *, is_told: bool, tmp_path: Path
) -> None:
    """The group may: that is how a container without root is given one."""
    path = secret_file(tmp_path, b"word", mode)

    warning = read_secret_file(path)[1]

    assert is_told is (warning is not None and path in warning and "mode 644" in warning)


@pytest.mark.parametrize(
    "text,reason", [(b"", "empty"), (b"\n", "empty"), (b"x" * 65_537, "65536")]
)
def test_what_is_no_secret_is_refused(text: bytes, reason: str, tmp_path: Path) -> None:
    """Somebody named the wrong file, or forgot to fill it."""
    with pytest.raises(SettingsError, match=f"--auth-secret-file.*{reason}"):
        read_secret_file(secret_file(tmp_path, text))


@pytest.mark.parametrize("path", ["/nowhere/secret", "/", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(path: str) -> None:
    with pytest.raises(SettingsError, match="the path of a file with the secret; "):
        read_secret_file(path)


def test_the_setting_that_names_the_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^--admin-secret-file is '/nowhere/secret'; "):
        read_secret_file("/nowhere/secret", "--admin-secret-file")
