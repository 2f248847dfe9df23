"""A consumer and its nsqds without sockets: real bytes, and a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.client.deliveries import (
    Action,
    Delivery,
    DeliveryOptions,
    DeliveryTracker,
    SendFin,
    SendRdy,
    SendReq,
    SendTouch,
    claim,
)
from gateway.client.rdy import RdyDistributor, RdyOptions
from gateway.protocol import commands as v2
from gateway.protocol.frames import OK, Message, Response
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse
from tests.support.brokers.connected_pair import ConnectedPair

TOPIC, CHANNEL = "orders", "billing"


@dataclass
class SimulatedNsqd:
    """One nsqd: the commands it received, its RDY, and the messages in flight."""

    pair: ConnectedPair
    ready: int = 0
    in_flight: set[bytes] = field(default_factory=set)


class SimulatedConsumer:
    """
    A consumer as in go-nsq's tests: window, RDY distribution and deliveries.

    Time starts at 0. Like nsqd, a broker does not deliver above RDY.
    """

    def __init__(
        self,
        window: int,
        ready: RdyOptions | None = None,
        tracker: DeliveryOptions | None = None,
        *,
        random: Callable[[], float] = lambda: 0.0,
        answer: IdentifyResponse | None = None,
    ) -> None:
        self.now = 0.0
        self.heard: list[tuple[float, int, str]] = []
        """(time, source, command) of each command received by brokers, without bodies."""
        self.most_ready = 0
        """Maximum over time of the sum of RDY at all brokers."""
        self.rdy = RdyDistributor(
            window,
            ready or RdyOptions(),
            random=random,
            in_flight=lambda: self.tracker.in_flight_by_source(),  # noqa: PLW0108 - made below
        )
        self.tracker = DeliveryTracker(
            tracker or DeliveryOptions(), self.rdy, self, topic=TOPIC, channel=CHANNEL
        )
        self.gave_up: list[Delivery] = []
        self.brokers: dict[int, SimulatedNsqd] = {}
        self._answer = answer or IdentifyResponse()

    # What brokers heard

    def commands(self, *, since: int = 0) -> list[str]:
        """Return all commands, in order."""
        return [command for _, _, command in self.heard[since:]]

    def addressed(self, *, since: int = 0) -> list[str]:
        """Return all commands, in order, each with its source in front: ``1: RDY 5``."""
        return [f"{source}: {command}" for _, source, command in self.heard[since:]]

    def timed(self, *, since: int = 0) -> list[tuple[float, str]]:
        """Return all commands, in order, each with its time."""
        return [(at, command) for at, _, command in self.heard[since:]]

    # What happens

    def open(self, source: int = 1, *, max_rdy_count: int = 2_500) -> None:
        """Connect *source*: IDENTIFY, SUB, and the RDY that follows."""
        broker = self.brokers[source] = SimulatedNsqd(ConnectedPair())
        answer = IdentifyResponse(
            max_rdy_count=max_rdy_count,
            msg_timeout=self._answer.msg_timeout,
            max_msg_timeout=self._answer.max_msg_timeout,
        )
        self._say(source, v2.Identify(IdentifyRequest(feature_negotiation=True).to_json()))
        broker.pair.answer(Response(answer.to_json()))
        self._say(source, v2.Subscribe(TOPIC, CHANNEL))
        broker.pair.answer(OK)
        self.tracker.add_source(source, f"127.0.0.1:{4150 + source}", answer)
        changes = self.rdy.add_source(source, max_rdy_count=max_rdy_count, now=self.now)
        self._write_ready(changes)
        self._settle()

    def _settle(self) -> None:
        """Apply every RDY written so far at its broker, as go-nsq assumes."""
        for source in self.brokers:
            row = self.rdy.share_of(source)
            row.settles_at = min(row.settles_at, self.now)
        self._write_ready(self.rdy.rebalance(self.now))

    def lose(self, source: int = 1) -> list[Delivery]:
        """Close the connection; return the messages that can no longer be acknowledged."""
        del self.brokers[source]
        lost = self.tracker.remove_source(source)
        self._write_ready(self.rdy.remove_source(source, self.now))
        return lost

    def deliver(self, *messages: Message, source: int = 1) -> list[Delivery]:
        """Deliver *messages* from *source* in one read; drop those above max attempts."""
        broker = self.brokers[source]
        broker.in_flight.update(message.id for message in messages)
        assert len(broker.in_flight) <= broker.ready, "nsqd would not deliver it"
        arrived = [each for each in broker.pair.deliver(messages) if isinstance(each, Message)]
        self.rdy.share_of(source).last_message_at = self.now
        deliveries, given_up = self.tracker.arrived(source, arrived, self.now)
        for delivery in given_up:
            self.gave_up.append(delivery)
            delivery.finish()
        return deliveries

    def set_window(self, count: int) -> None:
        """Change the window while running."""
        self._write_ready(self.rdy.set_window(count, self.now))

    def advance(self, seconds: float) -> None:
        """Advance time by *seconds*, and run everything that becomes due."""
        until = self.now + seconds
        while (due := self.rdy.next_wake()) is not None and due <= until:
            self.now = max(self.now, due)
            self._write_ready(self.rdy.wake(self.now))
        self.now = until

    def hand_back(self) -> None:
        """Requeue all unacknowledged messages."""
        self._carry_out(self.tracker.hand_back(self.now))

    # Answers

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN at once."""
        self._carry_out(self.tracker.finished(deliveries, self.now))

    def finish_together(self, deliveries: Sequence[Delivery]) -> None:
        """Claim *deliveries*, and write FIN at once."""
        claim(deliveries)
        self.finish(deliveries)

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write REQ at once."""
        self._carry_out(
            self.tracker.requeued(deliveries, self.now, delay_ms=delay_ms, backoff=backoff)
        )

    def requeue_together(self, deliveries: Sequence[Delivery]) -> None:
        """Claim *deliveries*, and write REQ at once."""
        claim(deliveries)
        self.requeue(deliveries, delay_ms=None, backoff=True)

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH at once."""
        self._carry_out(self.tracker.touched(deliveries, self.now))

    # The wire

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SendRdy(source, count):
                    self._write_ready([(source, count)])
                case SendFin(source, ids):
                    self._let_go(source, ids)
                    self._say(source, *map(v2.Finish, ids))
                    self._write_ready(self.rdy.answered(len(ids), self.now))
                case SendReq(source, ids, delay_ms):
                    self._let_go(source, ids)
                    self._say(source, *[v2.Requeue(each, delay_ms) for each in ids])
                    self._write_ready(self.rdy.answered(len(ids), self.now))
                case SendTouch(source, ids):
                    self._say(source, *map(v2.Touch, ids))

    def _write_ready(self, changes: Iterable[tuple[int, int]]) -> None:
        for source, count in changes:
            self._say(source, v2.Ready(count))
            self.brokers[source].ready = count
            self.most_ready = max(
                self.most_ready, sum(broker.ready for broker in self.brokers.values())
            )

    def _let_go(self, source: int, ids: Iterable[bytes]) -> None:
        self.brokers[source].in_flight.difference_update(ids)

    def _say(self, source: int, *commands: v2.Command) -> None:
        for heard in self.brokers[source].pair.ask(*commands):
            assert isinstance(heard, v2.Command), heard
            line = heard.encode().partition(b"\n")[0].decode()
            self.heard.append((self.now, source, line))
