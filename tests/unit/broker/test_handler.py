"""Commands of clients and what they are answered, without a socket."""

from __future__ import annotations

import msgspec
import pytest

from gateway.broker.client import Client
from gateway.broker.handler import Disconnect, Effect, Handler, ResumeParsing, StepwisePublish
from gateway.broker.scheduler import BrokerLimits
from gateway.broker.topics import TopicRegistry
from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.protocol.commands import (
    STEP_MESSAGES,
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    MultiPublishStart,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.connection import ViolationReceived
from gateway.protocol.frames import CLOSE_WAIT, OK, ErrorFrame
from tests.support.brokers.broker_core import context, moment_at, mpub_bodies, receivers

UNKNOWN = b"0123456789abcdef"
OFFER = b'{"feature_negotiation":true,"msg_timeout":5000,"sample_rate":7}'


class Scene:
    """A handler, its registry, and clients that say something at a moment."""

    def __init__(self, limits: BrokerLimits | None = None, *, limit_bytes: int = 2**30) -> None:
        self.registry = TopicRegistry(context(limits, limit_bytes=limit_bytes))
        self.handler = Handler(self.registry)
        self.now = 0.0

    def client(self) -> Client:
        """Return one more client."""
        return self.handler.connect(remote_address="127.0.0.1:5000", at=moment_at(self.now))

    def say(self, client: Client, *commands: Command) -> list[Effect]:
        """Return the effects of *commands* that came in one read."""
        return self.handler.handle(client, commands, moment_at(self.now))

    def deliver(self, client: Client) -> list[bytes]:
        """Deliver what can be; return the ids that *client* got."""
        return [
            message.id
            for receiver, messages in self.registry.deliver(self.now)
            if receiver is client.consumer
            for message in messages
        ]


@pytest.fixture
def scene() -> Scene:
    """A broker with nsqd's defaults."""
    return Scene()


def test_identify_with_negotiation_returns_the_options(scene: Scene) -> None:
    """Then the connection is read on."""
    (resume,) = scene.say(scene.client(), Identify(OFFER))

    assert isinstance(resume, ResumeParsing)
    answer = msgspec.json.decode(resume.response.data)
    assert (5_000, 7, None) == (answer["msg_timeout"], answer["sample_rate"], resume.codec)


def test_identify_without_negotiation_is_ok(scene: Scene) -> None:
    """Its values hold all the same."""
    client = scene.client()

    assert [ResumeParsing(OK)] == scene.say(client, Identify(b'{"msg_timeout":5000}'))
    assert 5.0 == client.consumer.msg_timeout_s


@pytest.mark.parametrize(
    "body,description",
    [
        (b"[1]", "IDENTIFY failed to decode JSON body"),
        (b'{"sample_rate":100}', "IDENTIFY sample rate (100) is invalid"),
    ],
)
def test_a_wrong_identify_ends_the_connection(scene: Scene, body: bytes, description: str) -> None:
    """With nsqd's words."""
    effects = scene.say(scene.client(), Identify(body))

    assert [ErrorFrame("E_BAD_BODY", description), Disconnect()] == effects


def test_auth_is_not_wanted(scene: Scene) -> None:
    """The connection ends, as with an nsqd without auth server."""
    effects = scene.say(scene.client(), Auth(b"secret"))

    assert [ErrorFrame("E_AUTH_DISABLED", "AUTH disabled"), Disconnect()] == effects


def test_subscribing_makes_topic_and_channel(scene: Scene) -> None:
    """The client joins the channel."""
    client = scene.client()

    assert [OK] == scene.say(client, Subscribe("t", "c"))
    assert client.channel is scene.registry.find_channel("t", "c")


def test_subscribing_without_heartbeats_is_refused(scene: Scene) -> None:
    """Nothing is made by it."""
    client = scene.client()
    scene.say(client, Identify(b'{"heartbeat_interval":-1}'))

    error = ErrorFrame("E_INVALID", "cannot SUB with heartbeats disabled")
    assert [error, Disconnect()] == scene.say(client, Subscribe("t", "c"))
    assert {} == scene.registry.topics


def test_heartbeats_are_asked_for_before_the_names_of_sub(scene: Scene) -> None:
    """As in nsqd; the error of any other command stays."""
    client = scene.client()
    scene.say(client, Identify(b'{"heartbeat_interval":-1}'))

    for error, code, description in (
        (("E_BAD_TOPIC", "SUB topic name"), "E_INVALID", "cannot SUB with heartbeats disabled"),
        (("E_BAD_TOPIC", "PUB topic name"), "E_BAD_TOPIC", "PUB topic name"),
    ):
        violated = ViolationReceived(RemoteProtocolError(*error))
        effects = scene.handler.handle(client, [violated], moment_at(0))

        assert [ErrorFrame(code, description), Disconnect()] == effects


def test_the_line_of_an_mpub_makes_the_topic(scene: Scene) -> None:
    """It is there even if the body never comes."""
    assert [] == scene.say(scene.client(), MultiPublishStart("t"))
    assert ["t"] == list(scene.registry.topics)


def test_subscribing_to_a_full_channel_is_refused() -> None:
    """With the limit in the text."""
    scene = Scene(BrokerLimits(max_channel_consumers=1))
    scene.say(scene.client(), Subscribe("t", "c"))

    error = ErrorFrame("E_SUB_FAILED", "SUB failed consumers for t:c exceeds limit of 1")
    assert [error, Disconnect()] == scene.say(scene.client(), Subscribe("t", "c"))


def test_each_way_of_publishing_is_ok(scene: Scene) -> None:
    """One answer for each command, in order; NOP has none."""
    client = scene.client()

    effects = scene.say(
        client,
        Publish("t", b"1"),
        Nop(),
        MultiPublish("t", [b"2", b"3"]),
        DeferredPublish("t", 100, b"4"),
    )

    assert [OK, OK, OK] == effects
    assert (4, {"t": 4}) == (scene.registry.get_topic("t").message_count, client.publish_counts)


def test_a_large_mpub_is_answered_by_its_last_step(scene: Scene) -> None:
    """Then it counts as published."""
    client = scene.client()
    bodies = mpub_bodies([b"x"] * (STEP_MESSAGES + 1))

    (effect,) = scene.say(client, MultiPublish("t", bodies))

    assert isinstance(effect, StepwisePublish)
    next(effect.steps)
    next(effect.steps)
    assert {} == client.publish_counts
    with pytest.raises(StopIteration) as end:
        next(effect.steps)
    assert (OK, {"t": STEP_MESSAGES + 1}) == (end.value.value, client.publish_counts)


@pytest.mark.parametrize(
    "command,verb",
    [
        (Publish("t", b"1"), "PUB"),
        (DeferredPublish("t", 100, b"1"), "DPUB"),
        (MultiPublish("t", [b"1"]), "MPUB"),
        (MultiPublish("t", mpub_bodies([b"1"])), "MPUB"),
    ],
)
def test_publishing_beyond_the_memory_fails(command: Command, verb: str) -> None:
    """The text says "exiting", from which clients know that nothing was stored."""
    scene = Scene(limit_bytes=100)

    effects = scene.say(scene.client(), command)

    description = f"{verb} failed exiting: the memory limit of 100 bytes is reached"
    assert [ErrorFrame(f"E_{verb}_FAILED", description), Disconnect()] == effects


def test_a_message_is_delivered_and_finished(scene: Scene) -> None:
    """RDY and FIN have no answer."""
    client = scene.client()
    scene.say(client, Publish("t", b"1"), Subscribe("t", "c"))

    assert [] == scene.say(client, Ready(1))
    (message_id,) = scene.deliver(client)
    assert [] == scene.say(client, Finish(message_id))
    assert (0, 0) == (client.consumer.in_flight_count, scene.registry.get_topic("t").depth)


def test_a_requeued_message_is_delivered_again(scene: Scene) -> None:
    """At once without a delay, after it with one."""
    client = scene.client()
    scene.say(client, Publish("t", b"1"), Subscribe("t", "c"), Ready(1))
    (message_id,) = scene.deliver(client)

    assert [] == scene.say(client, Requeue(message_id, 0))
    assert [message_id] == scene.deliver(client)
    scene.say(client, Requeue(message_id, 500))
    assert [] == scene.deliver(client)
    scene.now = 0.5
    scene.registry.expire(scene.now)
    assert [message_id] == scene.deliver(client)


def test_a_touched_message_stays(scene: Scene) -> None:
    """Its timeout starts anew."""
    client = scene.client()
    scene.say(client, Publish("t", b"1"), Subscribe("t", "c"), Ready(1))
    (message_id,) = scene.deliver(client)

    scene.now = 50.0
    assert [] == scene.say(client, Touch(message_id))

    scene.now = 100.0
    scene.registry.expire(scene.now)
    assert 1 == client.consumer.in_flight_count


@pytest.mark.parametrize(
    "command,verb",
    [(Finish(UNKNOWN), "FIN"), (Requeue(UNKNOWN, 0), "REQ"), (Touch(UNKNOWN), "TOUCH")],
)
def test_an_unknown_id_is_refused_and_the_connection_stays(
    scene: Scene, command: Command, verb: str
) -> None:
    """The text is that of nsqd, with the id."""
    client = scene.client()

    effects = scene.say(client, Subscribe("t", "c"), command, Publish("t", b"1"))

    description = f"{verb} 0123456789abcdef failed ID not in flight"
    assert [OK, ErrorFrame(f"E_{verb}_FAILED", description), OK] == effects


def test_a_foreign_id_is_refused(scene: Scene) -> None:
    """Its owner keeps it."""
    owner, other = scene.client(), scene.client()
    scene.say(owner, Publish("t", b"1"), Subscribe("t", "c"), Ready(1))
    (message_id,) = scene.deliver(owner)
    scene.say(other, Subscribe("t", "c"))

    (error,) = scene.say(other, Finish(message_id))

    assert isinstance(error, ErrorFrame)
    assert error.description.endswith("failed client does not own message")
    assert 1 == owner.consumer.in_flight_count


def test_after_cls_no_message_is_delivered(scene: Scene) -> None:
    """Messages in flight can still be acknowledged."""
    client = scene.client()
    scene.say(client, MultiPublish("t", [b"1", b"2"]), Subscribe("t", "c"), Ready(2))
    ids = scene.deliver(client)

    assert [CLOSE_WAIT] == scene.say(client, StartClose())
    assert [] == scene.say(client, Requeue(ids[0], 0), Finish(ids[1]))
    assert [] == scene.deliver(client)


def test_nothing_is_executed_after_a_fatal_error(scene: Scene) -> None:
    """It is thrown away unread."""
    effects = scene.say(scene.client(), Auth(b"x"), Publish("t", b"1"))

    assert Disconnect() == effects[-1]
    assert {} == scene.registry.topics


def test_a_protocol_violation_is_answered_last(scene: Scene) -> None:
    """Commands before it are executed."""
    violated = ViolationReceived(RemoteProtocolError("E_INVALID", "invalid command X"))

    effects = scene.handler.handle(scene.client(), [Publish("t", b"1"), violated], moment_at(0.0))

    assert [OK, ErrorFrame("E_INVALID", "invalid command X"), Disconnect()] == effects


def test_a_refusal_without_code_is_no_frame(scene: Scene) -> None:
    """On a line that is too long nsqd closes without a word."""
    violated = ViolationReceived(RemoteProtocolError("", "a line of more than 16384 bytes"))

    assert [Disconnect()] == scene.handler.handle(scene.client(), [violated], moment_at(0.0))


def test_a_command_forbidden_in_this_state_is_a_local_error(scene: Scene) -> None:
    """The reader of commands does not let it in."""
    with pytest.raises(LocalProtocolError, match="not subscribed"):
        scene.say(scene.client(), Finish(UNKNOWN))


def test_a_blocked_client_gets_nothing_until_it_reads_again(scene: Scene) -> None:
    """Its messages stay queued."""
    client = scene.client()
    scene.say(client, Publish("t", b"1"), Subscribe("t", "c"))
    scene.handler.block(client)
    scene.say(client, Ready(1))
    assert [] == scene.deliver(client)

    scene.handler.unblock(client)

    assert 1 == len(scene.deliver(client))


def test_a_producer_can_be_blocked_too(scene: Scene) -> None:
    """It has no channel to be offered to."""
    client = scene.client()

    scene.handler.block(client)
    scene.handler.unblock(client)

    assert not client.consumer.is_blocked


def test_a_disconnected_client_is_removed(scene: Scene) -> None:
    """Its messages wait for their timeout, then another gets them."""
    lost, other = scene.client(), scene.client()
    scene.say(lost, Publish("t", b"1"), Subscribe("t", "c"), Ready(1))
    scene.deliver(lost)
    scene.say(other, Subscribe("t", "c"), Ready(1))

    scene.handler.disconnect(lost)

    assert [] == scene.deliver(other)
    scene.registry.expire(60.0)
    assert [other.consumer.id] == receivers(scene.registry.deliver(60.0))
