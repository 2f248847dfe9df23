"""The real nsqd refuses the same bytes with the same frames, byte for byte."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.protocol.commands import Identify
from gateway.protocol.frames import OK, ErrorFrame, Response
from gateway.protocol.identify import (
    IdentifyRequest,
    identify_response,
    negotiate,
    parse_identify_request,
)
from gateway.protocol.states import State
from gateway.protocol.wire import MAGIC, Limits
from tests.support.brokers.nsqd import RealNsqd, as_current_nsqd, real_nsqd
from tests.support.brokers.nsqd_errors import NSQD_ERRORS, OFFER_REFUSALS

pytestmark = [pytest.mark.nsqd, pytest.mark.asyncio(loop_scope="module")]

_WAIT_S = 60.0

# How a client gets into each state, and what nsqd answers on the way. Each error has a channel of
# its own: nsqd deletes an ephemeral one after its last client has left, and meanwhile refuses SUB.
_PREAMBLES = {
    State.INIT: (b"", b""),
    State.SUBSCRIBED: (
        b"SUB witness c%d#ephemeral\n",
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
    ),
    State.CLOSING: (
        b"SUB witness c%d#ephemeral\nCLS\n",
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT",
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nsqd() -> AsyncIterator[RealNsqd]:
    """One real nsqd with its defaults; no test leaves anything in it that another one sees."""
    async with real_nsqd() as daemon:
        yield daemon


async def response_to(nsqd: RealNsqd, data: bytes, *, ends: bool) -> bytes:
    """Return all that nsqd says to *data* before it closes; *ends*: we say that it was all."""
    host, _, port = nsqd.tcp_address.rpartition(":")
    async with asyncio.timeout(_WAIT_S):
        parser, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            return as_current_nsqd(await parser.read())
        finally:
            writer.close()


async def answered_by(nsqd: RealNsqd, offer: bytes) -> bytes:
    """Return the frame that answers an IDENTIFY with the body *offer*."""
    host, _, port = nsqd.tcp_address.rpartition(":")
    async with asyncio.timeout(_WAIT_S):
        parser, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(MAGIC + Identify(offer).encode())
            head = await parser.readexactly(4)
            return head + as_current_nsqd(await parser.readexactly(struct.unpack(">I", head)[0]))
        finally:
            writer.close()


async def test_nsqd_sends_the_same_error_frames(nsqd: RealNsqd) -> None:
    """Every row of our table is nsqd's last frame for the same bytes."""
    for number, error in enumerate(NSQD_ERRORS):
        preamble, answers = _PREAMBLES[error.state]
        if preamble:
            preamble %= number

        response = await response_to(nsqd, MAGIC + preamble + error.data, ends=error.at_eof)

        assert answers + error.frame == response, error


async def test_nsqd_refuses_the_same_identify_requests(nsqd: RealNsqd) -> None:
    """nsqd has the same error for each of them."""
    for body, text in OFFER_REFUSALS.items():
        response = await response_to(nsqd, MAGIC + Identify(body).encode(), ends=False)

        assert ErrorFrame("E_BAD_BODY", f"IDENTIFY {text}").encode() == response, body


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b'{"feature_negotiation":false,"client_id":"a\xff"}',
        b'{"feature_negotiation":true}',
        b'{"Feature_Negotiation":true,"HEARTBEAT_INTERVAL":null,"unknown":{"sample_rate":[1e400]}}',
        b'{"feature_negotiation":true,"sample_rate":99,"msg_timeout":1000,"heartbeat_interval":-1}',
        b'{"feature_negotiation":true,"output_buffer_size":64,"output_buffer_timeout":25}',
        b'{"feature_negotiation":true,"output_buffer_size":-1,"output_buffer_timeout":100}',
        b'{"feature_negotiation":true,"output_buffer_timeout":-1}',
        b'{"feature_negotiation":true,"msg_timeout":5000,"MSG_TIMEOUT":null}',
        b'{"feature_negotiation":true,"deflate_level":3,"sample_rate":-0}',
        IdentifyRequest(client_id="c", feature_negotiation=True).to_json(),
    ],
)
async def test_nsqd_answers_an_offer_with_the_same_frame(nsqd: RealNsqd, body: bytes) -> None:
    """The embedded broker's answer has nsqd's keys, order and values."""
    limits = Limits()
    offer = parse_identify_request(body)
    holds = negotiate(offer, limits)
    ours = Response(identify_response(holds, limits).to_json()) if offer.feature_negotiation else OK

    assert ours.encode() == await answered_by(nsqd, body)


@pytest.mark.parametrize(
    "magic", [b"  V1", b"V2  ", b"\x00\x00\x00\x00", b"GET /ping HTTP/1.1\r\n\r\n"[:4]]
)
async def test_nsqd_refuses_another_magic_the_same(nsqd: RealNsqd, magic: bytes) -> None:
    """Four other bytes are E_BAD_PROTOCOL, a code alone."""
    response = await response_to(nsqd, magic, ends=False)

    assert b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL" == response


async def test_nsqd_closes_on_a_long_line_without_a_frame(nsqd: RealNsqd) -> None:
    """16 384 bytes without a newline among them end the connection with no frame."""
    assert b"" == await response_to(nsqd, MAGIC + b"NOP " + b"x" * 16_380, ends=False)


@pytest.mark.parametrize("half", [b"", b"  V", b"  V2", b"  V2NOP\nPUB t"])
async def test_nsqd_sends_nothing_for_an_incomplete_line(nsqd: RealNsqd, half: bytes) -> None:
    """A client that goes in the middle of an opening or a line hears nothing."""
    assert b"" == await response_to(nsqd, half, ends=True)


@pytest.mark.parametrize(
    "data",
    [
        b"NOP " + b"x" * 16_379 + b"\n",
        b"NOP\r\n",
        b"SUB witness c#ephemeral\nRDY\nRDY \nRDY 18446744073709551617\nCLS\nRDY -1\n",
        b"PUB witness and more\n\x00\x00\x00\x01x",
        b"DPUB witness \n\x00\x00\x00\x01x",
        b"DPUB witness 18446744073709551616\n\x00\x00\x00\x01x",
        b"DPUB witness 18446744073710\n\x00\x00\x00\x01x",
        b"MPUB witness\n\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01x",
    ],
)
async def test_nsqd_accepts_what_we_accept(nsqd: RealNsqd, data: bytes) -> None:
    """Odd commands are no mistakes: what nsqd says last is about the line after them."""
    response = await response_to(nsqd, MAGIC + data + b"?\n", ends=False)

    assert response.endswith(ErrorFrame("E_INVALID", "invalid command ?").encode())
    assert 1 == response.count(b"\x00\x00\x00\x01E_")
