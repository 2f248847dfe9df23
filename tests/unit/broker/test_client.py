"""A client as the broker sees it."""

from __future__ import annotations

from gateway.broker.channel import Channel
from gateway.broker.client import Client
from gateway.protocol import identify
from gateway.protocol.identify import IdentifyRequest
from gateway.protocol.states import State
from gateway.protocol.wire import Limits
from tests.support.brokers.broker_core import consumer, context

LIMITS = Limits()


def client(remote_address: str = "10.0.0.7:4711") -> Client:
    """Return the client of a new connection."""
    options = identify.default_options(LIMITS)
    return Client(consumer(), options, remote_address=remote_address, connect_ts=0)


def test_before_identify_a_client_has_the_name_of_its_host() -> None:
    """As nsqd shows it in /stats; an IPv6 host has no brackets."""
    assert ("10.0.0.7", "10.0.0.7") == (client().client_id, client().hostname)
    assert "::1" == client("[::1]:4711").hostname


def test_identify_sets_the_identity() -> None:
    """Also when it says nothing."""
    peer = client()

    peer.identify(
        IdentifyRequest(client_id="me", user_agent="test/1"), identify.default_options(LIMITS)
    )

    assert ("me", "", "test/1") == (peer.client_id, peer.hostname, peer.user_agent)


def test_deliveries_follow_the_first_identify() -> None:
    """A second one is answered, and changes nothing of them."""
    peer = client()
    for add_waiting in (
        IdentifyRequest(msg_timeout=1_000, sample_rate=10),
        IdentifyRequest(msg_timeout=2_000),
    ):
        peer.identify(add_waiting, identify.negotiate(add_waiting, LIMITS))

    assert (1.0, 10) == (peer.consumer.msg_timeout_s, peer.consumer.sample_rate)
    assert (2_000, 0) == (peer.options.msg_timeout_ms, peer.options.sample_rate)


def test_the_state_follows_sub_and_cls() -> None:
    """SUB, then CLS."""
    peer = client()
    states = [peer.state]
    peer.channel = Channel("t", "c", context())
    states.append(peer.state)
    peer.is_closing = True
    states.append(peer.state)

    assert [State.INIT, State.SUBSCRIBED, State.CLOSING] == states


def test_publishes_are_counted_by_topic() -> None:
    """One number for each topic."""
    peer = client()
    peer.count_published("a", 1)
    peer.count_published("b", 2)
    peer.count_published("a", 3)

    assert {"a": 4, "b": 2} == peer.publish_counts
