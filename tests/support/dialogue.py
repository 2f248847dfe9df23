"""A consumer and its brokers without sockets: real bytes between them, a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.client.consumption import (
    Action,
    Consumption,
    ConsumptionOptions,
    Delivery,
    Finish,
    Ready,
    Requeue,
    Touch,
    claim,
)
from gateway.client.ready import ReadyOptions, ReadyPlan
from gateway.protocol import commands as v2
from gateway.protocol.frames import OK, Message, Response
from gateway.protocol.identify import Answer, Offer
from tests.support.pair import Pair

TOPIC, CHANNEL = "orders", "billing"


@dataclass
class Broker:
    """One nsqd: what it heard, the RDY that holds there, and what is in flight."""

    pair: Pair
    ready: int = 0
    in_flight: set[bytes] = field(default_factory=set)


class Dialogue:
    """
    What go-nsq's Consumer is to its tests: a window, a plan, deliveries, and nothing gathered.

    Time starts at 0. Each broker takes part only as nsqd would: it refuses to deliver above RDY.
    """

    def __init__(
        self,
        window: int,
        ready: ReadyOptions | None = None,
        consumption: ConsumptionOptions | None = None,
        *,
        random: Callable[[], float] = lambda: 0.0,
        answer: Answer | None = None,
    ) -> None:
        self.now = 0.0
        self.heard: list[tuple[float, int, str]] = []
        """(time, source, command) as brokers heard them, each without its body."""
        self.most_ready = 0
        """The highest sum of RDY that ever held over all brokers."""
        self.plan = ReadyPlan(window, ready or ReadyOptions(), random=random)
        self.consumption = Consumption(
            consumption or ConsumptionOptions(), self.plan, self, topic=TOPIC, channel=CHANNEL
        )
        self.gave_up: list[Delivery] = []
        self.brokers: dict[int, Broker] = {}
        self._answer = answer or Answer()

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
        broker = self.brokers[source] = Broker(Pair())
        answer = Answer(
            max_rdy_count=max_rdy_count,
            msg_timeout=self._answer.msg_timeout,
            max_msg_timeout=self._answer.max_msg_timeout,
        )
        self._say(source, v2.Identify(Offer(feature_negotiation=True).to_json()))
        broker.pair.answer(Response(answer.to_json()))
        self._say(source, v2.Subscribe(TOPIC, CHANNEL))
        broker.pair.answer(OK)
        self.consumption.source_opened(source, f"127.0.0.1:{4150 + source}", answer)
        changes = self.plan.source_opened(source, max_rdy_count=max_rdy_count, now=self.now)
        self._write_ready(changes)

    def lose(self, source: int = 1) -> list[Delivery]:
        """End the connection; return what can be answered no more."""
        del self.brokers[source]
        lost = self.consumption.source_lost(source)
        self._write_ready(self.plan.source_lost(source, self.now))
        return lost

    def deliver(self, *messages: Message, source: int = 1) -> list[Delivery]:
        """Let *source* deliver *messages* in one read; what is above its attempts is given up."""
        broker = self.brokers[source]
        broker.in_flight.update(message.id for message in messages)
        assert len(broker.in_flight) <= broker.ready, "nsqd would not deliver it"
        arrived = [each for each in broker.pair.deliver(messages) if isinstance(each, Message)]
        self.plan.row(source).last_message_at = self.now
        deliveries, given_up = self.consumption.arrived(source, arrived, self.now)
        for delivery in given_up:
            self.gave_up.append(delivery)
            delivery.finish()
        return deliveries

    def set_window(self, count: int) -> None:
        """Change the window while running."""
        self._write_ready(self.plan.set_window(count, self.now))

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, and everything happen that is due in them, at its time."""
        until = self.now + seconds
        while (due := self.plan.next_wake()) is not None and due <= until:
            self.now = max(self.now, due)
            self._write_ready(self.plan.wake(self.now))
        self.now = until

    def hand_back(self) -> None:
        """Give back what is not answered."""
        self._carry_out(self.consumption.hand_back(self.now))

    # Answers

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN at once."""
        self._carry_out(self.consumption.finished(deliveries, self.now))

    def finish_together(self, deliveries: Sequence[Delivery]) -> None:
        """Claim *deliveries*, and write FIN at once."""
        claim(deliveries)
        self.finish(deliveries)

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write REQ at once."""
        self._carry_out(
            self.consumption.requeued(deliveries, self.now, delay_ms=delay_ms, backoff=backoff)
        )

    def requeue_together(self, deliveries: Sequence[Delivery]) -> None:
        """Claim *deliveries*, and write REQ at once."""
        claim(deliveries)
        self.requeue(deliveries, delay_ms=None, backoff=True)

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH at once."""
        self._carry_out(self.consumption.touched(deliveries, self.now))

    # The wire

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Ready(source, count):
                    self._write_ready([(source, count)])
                case Finish(source, ids):
                    self._let_go(source, ids)
                    self._say(source, *map(v2.Finish, ids))
                case Requeue(source, ids, delay_ms):
                    self._let_go(source, ids)
                    self._say(source, *[v2.Requeue(each, delay_ms) for each in ids])
                case Touch(source, ids):
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
