"""host:port, as it is written in settings."""

import pytest

from gateway.addresses import has_loopback_host, join_address, split_address


@pytest.mark.parametrize(
    "address,expected",
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        ("nsqd.example:0", ("nsqd.example", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_split_at_its_last_colon(address: str, expected: tuple[str, int]) -> None:
    """Host and port come apart, and an IPv6 host loses its brackets."""
    assert expected == split_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "4150",
        ":4150",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "host:²",
        "::1:4150",
        "h:1 ",
        "a b:1",
        "a#b:1",
        "é:1",
        "host\n:1",
        "[zz]:1",
        "[]:1",
        "[127.0.0.1]:1",
    ],
)
def test_what_is_no_address_is_refused_with_what_is_expected(address: str) -> None:
    """The text shows the value and the range of ports."""
    with pytest.raises(ValueError, match="host:port with a port of 0 to 65535") as caught:
        split_address(address)

    assert repr(address) in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:4150", "[::1]:4150"])
def test_join_is_the_inverse_of_split(address: str) -> None:
    assert address == join_address(*split_address(address))


@pytest.mark.parametrize(
    "address,expected",
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.0.2.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(address: str, *, expected: bool) -> None:
    """A name other than localhost is never taken for loopback: it may change its meaning."""
    assert expected == has_loopback_host(address)
