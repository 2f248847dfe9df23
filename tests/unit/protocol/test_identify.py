"""IDENTIFY in both roles: offers as Go's JSON reads them, answers as nsqd writes them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RemoteProtocolError
from gateway.protocol.identify import (
    IdentifyRequest,
    IdentifyResponse,
    NegotiatedOptions,
    default_options,
    identify_response,
    negotiate,
    parse_auth_response,
    parse_identify_request,
    parse_identify_response,
)
from gateway.protocol.wire import Limits
from tests.support.brokers.nsqd_errors import OFFER_REFUSALS

NSQD_ANSWER = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
    b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
    b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
    b'"output_buffer_timeout":250}'
)

# Offers


def test_offer_has_the_keys_of_the_specification() -> None:
    offer = IdentifyRequest(client_id="c", feature_negotiation=True, heartbeat_interval=-1)

    assert (
        b'{"client_id":"c","hostname":"","user_agent":"","feature_negotiation":true,'
        b'"heartbeat_interval":-1,"output_buffer_size":0,"output_buffer_timeout":0,'
        b'"sample_rate":0,"msg_timeout":0,"tls_v1":false,"snappy":false,"deflate":false,'
        b'"deflate_level":0,"topology_region":"","topology_zone":""}'
    ) == offer.to_json()


@given(
    st.builds(
        IdentifyRequest,
        hostname=st.text(),
        feature_negotiation=st.booleans(),
        heartbeat_interval=st.integers(-(2**63), 2**63 - 1),
        sample_rate=st.integers(-(2**31), 2**31 - 1),
    )
)
def test_request_survives_encoding_and_parsing(offer: IdentifyRequest) -> None:
    assert offer == parse_identify_request(offer.to_json())


@pytest.mark.parametrize(
    "body,offer",
    [
        (b"{}", IdentifyRequest()),
        (b"null", IdentifyRequest()),
        (b' \r\n{ "client_id" : "c" }\t', IdentifyRequest(client_id="c")),
        (b'{"Client_ID":"c","SNAPPY":true}', IdentifyRequest(client_id="c", snappy=True)),
        ('{"deflate_level":1,"to\u212aen":1}'.encode(), IdentifyRequest(deflate_level=1)),
        (b'{"client_id":null,"heartbeat_interval":null,"tls_v1":null}', IdentifyRequest()),
        (b'{"client_id":"a","CLIENT_ID":"b"}', IdentifyRequest(client_id="b")),
        (b'{"client_id":"a","CLIENT_ID":null}', IdentifyRequest(client_id="a")),
        (b'{"short_id":"a","long_id":1,"x":{"client_id":[1e400,"\xff"]}}', IdentifyRequest()),
        (b'{"hostname":"a\xffb"}', IdentifyRequest(hostname="a\ufffdb")),
        (b'{"user_agent":"\\u00e9\\n"}', IdentifyRequest(user_agent="\u00e9\n")),
        (b'{"hostname":"\\ud800\\\\ud800"}', IdentifyRequest(hostname="\ufffd\\ud800")),
        (b'{"hostname":"\\uD83D\\uDE00\\udc00"}', IdentifyRequest(hostname="\U0001f600\ufffd")),
        ('{"ho\u017ftname":"a"}'.encode(), IdentifyRequest(hostname="a")),
        (b'{"topology_zone":1,"topology_region":[]}', IdentifyRequest()),
        (b'{"heartbeat_interval":-0}', IdentifyRequest()),
        (b'{"msg_timeout":9223372036854775807}', IdentifyRequest(msg_timeout=2**63 - 1)),
        (b'{"msg_timeout":-9223372036854775808}', IdentifyRequest(msg_timeout=-(2**63))),
        (b'{"sample_rate":-2147483648}', IdentifyRequest(sample_rate=-(2**31))),
    ],
)
def test_offer_is_read_as_go_reads_it(body: bytes, offer: IdentifyRequest) -> None:
    """Case does not matter, null is absent, what is unknown or no UTF-8 does no harm."""
    assert offer == parse_identify_request(body)


@pytest.mark.parametrize("depth", [10_001, 1_000_000])
def test_json_too_deep_is_refused(depth: int) -> None:
    """A body of brackets is no JSON that anybody reads, and costs no stack."""
    with pytest.raises(RemoteProtocolError, match="E_BAD_BODY IDENTIFY failed to decode JSON"):
        parse_identify_request(b'{"x":' + b"[" * depth)


def test_invalid_requests_have_nsqds_errors() -> None:
    """Invalid JSON, a wrong type or a value out of range is E_BAD_BODY with the reason."""
    for body, text in OFFER_REFUSALS.items():
        with pytest.raises(RemoteProtocolError) as caught:
            negotiate(parse_identify_request(body), Limits())

        assert ("E_BAD_BODY", f"IDENTIFY {text}") == (caught.value.code, caught.value.description)


@given(st.binary() | st.text('{}[]":,0123.e-+\\nulltrue', max_size=40).map(str.encode))
def test_any_body_is_an_offer_or_a_refusal(body: bytes) -> None:
    """Nothing that a client can send as a body raises anything else."""
    try:
        parse_identify_request(body)
    except RemoteProtocolError as error:
        assert "E_BAD_BODY IDENTIFY failed to decode JSON body" == str(error)  # noqa: PT017


# What then holds


def test_defaults_hold_without_identify() -> None:
    """A client that never identifies has the broker's defaults."""
    expected = NegotiatedOptions(
        heartbeat_interval_ms=30_000,
        output_buffer_size_bytes=16_384,
        output_buffer_timeout_ms=250,
        sample_rate=0,
        msg_timeout_ms=60_000,
    )

    assert expected == default_options(Limits())


def test_values_at_the_ends_of_their_ranges_are_negotiated() -> None:
    """The lowest and the highest value of each range is accepted unchanged."""
    ranges = ((1_000, 60_000), (25, 30_000), (64, 65_536), (0, 99), (1_000, 900_000))
    for heartbeat, buffer_timeout, buffer_size, rate, msg_timeout in itertools.product(*ranges):
        request = IdentifyRequest(
            heartbeat_interval=heartbeat,
            output_buffer_timeout=buffer_timeout,
            output_buffer_size=buffer_size,
            sample_rate=rate,
            msg_timeout=msg_timeout,
        )
        expected = NegotiatedOptions(
            heartbeat_interval_ms=heartbeat,
            output_buffer_size_bytes=buffer_size,
            output_buffer_timeout_ms=buffer_timeout,
            sample_rate=rate,
            msg_timeout_ms=msg_timeout,
        )

        assert expected == negotiate(request, Limits())


def test_heartbeats_can_be_off() -> None:
    """-1 turns heartbeats off."""
    assert negotiate(IdentifyRequest(heartbeat_interval=-1), Limits()).heartbeat_interval_ms is None


def test_flushing_by_time_can_be_off() -> None:
    """-1 leaves the output buffer to fill."""
    holds = negotiate(IdentifyRequest(output_buffer_timeout=-1), Limits())

    assert (None, 16_384) == (holds.output_buffer_timeout_ms, holds.output_buffer_size_bytes)


def test_unbuffered_output_is_not_flushed_by_time() -> None:
    """Without a buffer there is nothing to flush, whatever timeout was asked for."""
    holds = negotiate(IdentifyRequest(output_buffer_size=-1, output_buffer_timeout=100), Limits())

    assert (None, 0) == (holds.output_buffer_timeout_ms, holds.output_buffer_size_bytes)


def test_an_unbuffered_connection_may_ask_for_a_timeout_later() -> None:
    """Only the IDENTIFY that turns the buffer off turns its timeout off."""
    limits = Limits()
    unbuffered = negotiate(IdentifyRequest(output_buffer_size=-1), limits)
    holds = negotiate(IdentifyRequest(output_buffer_timeout=100), limits, unbuffered)

    assert (100, 0) == (holds.output_buffer_timeout_ms, holds.output_buffer_size_bytes)


# Answers


def test_answer_to_a_modest_offer_is_nsqds() -> None:
    """The answer has nsqd's keys in nsqd's order, and its values."""
    limits = Limits()

    assert NSQD_ANSWER == identify_response(default_options(limits), limits).to_json()


def test_response_has_the_negotiated_options() -> None:
    """Values that were asked for come back; off is 0, and unbuffered a buffer of one byte."""
    limits = Limits(max_rdy_count=7, max_msg_timeout_ms=800_000)
    offer = IdentifyRequest(output_buffer_size=-1, sample_rate=5, msg_timeout=1_000)

    answer = identify_response(negotiate(offer, limits), limits)

    assert (
        IdentifyResponse(
            max_rdy_count=7,
            version="1.3.0",
            max_msg_timeout=800_000,
            msg_timeout=1_000,
            deflate_level=6,
            max_deflate_level=6,
            sample_rate=5,
            output_buffer_size=1,
            output_buffer_timeout=0,
        )
        == answer
    )


def test_answer_is_read_back() -> None:
    """The client parses what the broker encodes."""
    expected = IdentifyResponse(version="1.3.0", deflate_level=6, max_deflate_level=6)

    assert expected == parse_identify_response(NSQD_ANSWER)


def test_keys_of_a_newer_nsqd_are_skipped() -> None:
    """An answer may hold more than is known."""
    assert IdentifyResponse(snappy=True) == parse_identify_response(
        b'{"snappy":true,"topology_zone":"z"}'
    )


def test_plain_ok_means_the_defaults() -> None:
    """Without feature negotiation the answer is OK, and nothing is upgraded."""
    assert IdentifyResponse() == parse_identify_response(b"OK")


@pytest.mark.parametrize(
    "answer,count",
    [
        (IdentifyResponse(), 0),
        (IdentifyResponse(tls_v1=True), 1),
        (IdentifyResponse(snappy=True), 1),
        (IdentifyResponse(deflate=True), 1),
        (IdentifyResponse(tls_v1=True, deflate=True), 2),
    ],
)
def test_answer_upgrades_by_each_layer_that_it_names(answer: IdentifyResponse, count: int) -> None:
    assert (count, count > 0) == (answer.upgrade_count, answer.upgrades)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ok",
        b"OK ",
        b"[]",
        b"null",
        b'{"max_rdy_count":"x"}',
        b'{"tls_v1":1}',
        b'{"version":"\xff"}',
        b'{"x":' + b"[" * 100_000,
        b'{"snappy":true,"deflate":true}',
    ],
)
def test_other_answer_is_the_brokers_mistake(data: bytes) -> None:
    """A response that is invalid or enables two kinds of compression is refused."""
    with pytest.raises(RemoteProtocolError, match=r"^E_INVALID the response to IDENTIFY"):
        parse_identify_response(data)


@pytest.mark.parametrize(
    "data", [b"", b"OK", b'{"identity": 1}', b'{"identity": "\xff"}', b"[" * 2_000]
)
def test_an_answer_to_auth_that_is_none_is_a_fault_of_the_broker(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the response to AUTH is invalid"):
        parse_auth_response(data)


def test_an_empty_answer_to_auth_grants_nothing() -> None:
    answer = parse_auth_response(b"{}")

    assert ("", "", 0) == (answer.identity, answer.identity_url, answer.permission_count)
