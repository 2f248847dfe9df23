"""Tests of `parse_lookup` and `parse_nodes`: both forms of answers, and invalid ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.lookupd import FoundNsqds, parse_lookup, parse_nodes
from gateway.errors import LookupFailed
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd

LOOKUPD = "127.0.0.1:4161"

Parse = Callable[[str, int, bytes], FoundNsqds]
BOTH = pytest.mark.parametrize("parse", [parse_lookup, parse_nodes], ids=["lookup", "nodes"])


def producer(host: object = "n1", tcp_port: object = 4150, **more: object) -> dict[str, Any]:
    """Return an entry as nsqlookupd writes it."""
    return {
        "remote_address": "10.0.0.1:50000",
        "hostname": "n1.example",
        "broadcast_address": host,
        "tcp_port": tcp_port,
        "http_port": 4151,
        "version": "1.3.0",
        **more,
    }


def body(*producers: object) -> bytes:
    return json.dumps({"channels": ["c"], "producers": producers}).encode()


def wrapped(document: object, status_code: int = 200, status_txt: str = "OK") -> bytes:
    """Return a body in the form before nsqlookupd 1.0."""
    envelope = {"status_code": status_code, "status_txt": status_txt, "data": document}
    return json.dumps(envelope).encode()


# What can be used


@BOTH
def test_every_nsqd_is_found_where_it_says_it_is(parse: Parse) -> None:
    """The broadcast address and the TCP port count, whatever else an entry has."""
    answer = body(producer("n1", 4150), producer("10.0.0.2", 4250, topology_zone="a"))

    assert {"n1:4150", "10.0.0.2:4250"} == set(parse(LOOKUPD, 200, answer))


@BOTH
def test_an_ipv6_host_stands_in_brackets(parse: Parse) -> None:
    assert {"[2001:db8::1]:4150"} == set(parse(LOOKUPD, 200, body(producer("2001:db8::1"))))


@BOTH
def test_the_old_envelope_says_the_same(parse: Parse) -> None:
    """Answers of an nsqlookupd before 1.0 are accepted."""
    answer = wrapped({"channels": [], "producers": [producer()]})

    assert {"n1:4150"} == set(parse(LOOKUPD, 200, answer))


@BOTH
@pytest.mark.parametrize("nobody", [[], None], ids=["empty", "null"])
def test_nobody_is_an_answer(parse: Parse, nobody: object) -> None:
    """Go encodes a nil list as null."""
    document = {"producers": nobody}

    assert {} == parse(LOOKUPD, 200, json.dumps(document).encode())
    assert {} == parse(LOOKUPD, 200, wrapped(document))


@pytest.mark.parametrize(
    "answer",
    [b'{"message":"TOPIC_NOT_FOUND"}', wrapped(None, 404, "TOPIC_NOT_FOUND")],
    ids=["new", "old"],
)
def test_a_topic_that_is_not_known_yet_is_an_answer(answer: bytes) -> None:
    """TOPIC_NOT_FOUND is an empty answer and no failure."""
    assert {} == parse_lookup(LOOKUPD, 404, answer)


def test_an_nsqd_where_the_topic_is_being_deleted_is_left_out() -> None:
    """Only nsqds tombstoned for this topic are omitted; the lists are parallel."""
    topics = ["a", "b"]
    answer = body(
        producer("n1", topics=topics, tombstones=[True, False]),
        producer("n2", topics=topics, tombstones=[False, False]),
    )

    assert {"n2:4150"} == set(parse_nodes(LOOKUPD, 200, answer, topic="a"))
    assert {"n1:4150", "n2:4150"} == set(parse_nodes(LOOKUPD, 200, answer, topic="b"))
    assert {"n1:4150", "n2:4150"} == set(parse_nodes(LOOKUPD, 200, answer))


@pytest.mark.nsqd
async def test_a_real_tombstone_is_read() -> None:
    """The answer is that of nsqlookupd 1.3.0 after POST /topic/tombstone."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
        httpx.AsyncClient() as http,
    ):
        await http.post(f"http://{nsqd.http_address}/topic/create?topic=t")
        await lookupd.log.match("REGISTER category:topic key:t")
        node = {"topic": "t", "node": nsqd.http_address}
        await http.post(f"http://{lookupd.http_address}/topic/tombstone", params=node)
        answer = await http.get(f"http://{lookupd.http_address}/nodes")

    read = LOOKUPD, answer.status_code, answer.content
    assert {} == parse_nodes(*read, topic="t")
    assert {nsqd.tcp_address} == set(parse_nodes(*read))


@BOTH
@pytest.mark.parametrize(
    "http_port,address",
    [(4151, "n1:4151"), (65_535, "n1:65535")]
    + [(other, None) for other in (0, -1, 65_536, "4151", 4151.5, None, True)],
)
def test_where_http_is_comes_along(parse: Parse, http_port: object, address: str | None) -> None:
    """An nsqd without HTTP, or with a unix socket for it, is still found by TCP."""
    answer = body(producer("n1", http_port=http_port))

    assert {"n1:4150": address} == parse(LOOKUPD, 200, answer)


# What cannot


@BOTH
@pytest.mark.parametrize(
    "bad",
    [
        1,
        None,
        {},
        producer(7),
        producer(""),
        producer("two words"),
        producer("n1:4150"),
        producer("n" * 256),
        producer("n1", 0),
        producer("n1", 65_536),
        producer("n1", "4150"),
        producer("n1", None),
        producer("n1", topics="t"),
    ],
    ids=lambda bad: json.dumps(bad)[:1] if not isinstance(bad, dict) else None,
)
def test_one_entry_that_is_wrong_costs_no_other(parse: Parse, bad: object) -> None:
    assert {"n2:4150"} == set(parse(LOOKUPD, 200, body(bad, producer("n2"))))


@BOTH
@pytest.mark.parametrize(
    "status, answer, reason, detail",
    [
        (500, body(producer()), "status", "answered with status 500"),
        (302, b"", "status", "answered with status 302"),
        (404, b"<html>404 page not found</html>", "status", "answered with status 404"),
        (404, b'{"message":"NOT_FOUND"}', "status", "answered with status 404"),
        (200, wrapped(None, 500, "INTERNAL_ERROR"), "status", "answered with status_code 500"),
        (200, b"", "malformed", "cannot be read: Input data was truncated"),
        (200, b"<p>", "malformed", "cannot be read: JSON is malformed: invalid character (byte 0)"),
        (200, body(producer())[:-1], "malformed", "cannot be read: Input data was truncated"),
        (200, b"[]", "malformed", "cannot be read: Expected `object`, got `array`"),
        (200, b"{}", "malformed", "answered without producers"),
        (200, wrapped(None), "malformed", "answered without producers"),
        (200, body(1, producer("")), "malformed", "none of its 2 producers can be read"),
        (
            200,
            b'{"producers":' + b"[" * 100_000,
            "malformed",
            "cannot be read: maximum recursion depth exceeded while deserializing an object",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_used_says_why(
    parse: Parse, status: int, answer: bytes, reason: str, detail: str
) -> None:
    """The error has the nsqlookupd's address, a reason for the metric, and a sentence."""
    with pytest.raises(LookupFailed) as caught:
        parse(LOOKUPD, status, answer)

    error = caught.value
    assert (LOOKUPD, reason, detail) == (error.address, error.reason, error.detail)
    assert f"nsqlookupd at {LOOKUPD}: {detail}" == str(error)


def test_all_nsqds_are_never_not_found() -> None:
    """A 404 on /nodes is not from nsqlookupd, whatever its body."""
    with pytest.raises(LookupFailed, match="answered with status 404"):
        parse_nodes(LOOKUPD, 404, b'{"message":"TOPIC_NOT_FOUND"}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
producers = st.fixed_dictionaries(
    {"broadcast_address": json_values, "tcp_port": json_values},
    optional={"topics": json_values, "tombstones": json_values},
)
documents = st.fixed_dictionaries(
    {"producers": st.lists(producers | json_values) | json_values},
    optional={"data": json_values, "status_code": json_values},
)
answers = st.binary() | st.one_of(json_values, documents).map(lambda it: json.dumps(it).encode())


@BOTH
@given(status=st.sampled_from([200, 404]), answer=answers)
def test_nothing_else_ever_comes_out(parse: Parse, status: int, answer: bytes) -> None:
    """Any bytes result in addresses or LookupFailed."""
    try:
        addresses = parse(LOOKUPD, status, answer)
    except LookupFailed:
        return
    assert all(":" in address for address in addresses)
