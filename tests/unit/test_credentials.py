"""A secret says who it is without saying what it is."""

from __future__ import annotations

from gateway.credentials import Secret


def test_a_secret_shows_the_fingerprint_in_place_of_itself() -> None:
    """Whatever way a log line or a traceback comes to its text."""
    secret = Secret(b"hunter2")

    assert ["Secret(f52fbd32)"] * 3 == [repr(secret), str(secret), f"{secret}"]
    assert b"hunter2" == secret.reveal()


def test_secrets_of_the_same_bytes_are_one_key() -> None:
    pools = {Secret(b"a"): 1}

    assert 1 == pools[Secret(b"a")]
    assert Secret(b"b") not in pools
    assert Secret(b"a") != b"a"
