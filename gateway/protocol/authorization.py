"""
What a broker answers to AUTH.

Source: the protocol specification, section AUTH; nsqd/protocol_v2.go, AUTH.
"""

from __future__ import annotations

import msgspec

from gateway.errors import RemoteProtocolError


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """Who the broker takes the client for; keys in nsqd's order."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0
    """How many grants the auth server named."""

    def to_json(self) -> bytes:
        """Return the data of the response frame."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Authorization)


def parse_authorization(data: bytes) -> Authorization:
    """
    Read the answer to AUTH.

    Raises:
        RemoteProtocolError: *data* is not such JSON.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        msg = f"the answer to AUTH is not the JSON it should be: {error}"
        raise RemoteProtocolError("E_INVALID", msg) from error
