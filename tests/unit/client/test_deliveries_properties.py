"""Property tests of `DeliveryTracker`: nothing is lost or answered twice; RDY stays in bounds."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.client.deliveries import Delivery
from gateway.protocol.frames import Message
from gateway.protocol.identify import IdentifyResponse
from tests.support.brokers.simulated_consumer import SimulatedConsumer
from tests.support.websocket.session_messages import message


class AnyLife(RuleBasedStateMachine):
    """Brokers with RDY and timeouts, handlers with any answers, and lost connections."""

    def __init__(self) -> None:
        super().__init__()
        answer = IdentifyResponse(msg_timeout=10_000, max_msg_timeout=25_000)
        self.draws = [0.3, 0.9, 0.0, 0.6]
        self.dialogue = SimulatedConsumer(6, random=self.draw, answer=answer)
        self.last_source = 0
        self.last_message = 0
        self.came: dict[int, Delivery] = {}
        """Create deliveries by number; each message is delivered once."""
        self.source_of: dict[int, int] = {}
        self.answered_in_time: set[int] = set()
        self.lost: set[int] = set()
        self.handed_back: set[int] = set()
        self.lost_answers = 0

    def draw(self) -> float:
        """Return the next drawn value, in a cycle."""
        self.draws.append(self.draws.pop(0))
        return self.draws[0]

    def unanswered(self) -> list[int]:
        """Return the numbers of deliveries that may be answered."""
        return [number for number, delivery in self.came.items() if not delivery.is_answered]

    def answer(self, numbers: list[int]) -> None:
        """Record the result of answering *numbers*."""
        gone = self.lost | self.handed_back
        self.answered_in_time |= set(numbers) - gone
        self.lost_answers += len(set(numbers) & gone)

    @rule()
    def open(self) -> None:
        """Open a source."""
        self.last_source += 1
        self.dialogue.open(self.last_source)

    @precondition(lambda self: self.dialogue.brokers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Lose a source; its unanswered deliveries are returned."""
        source = data.draw(st.sampled_from(sorted(self.dialogue.brokers)))
        lost = self.dialogue.lose(source)
        numbers = {int(delivery.id, 16) for delivery in lost}
        assert numbers == {
            number
            for number in self.unanswered()
            if self.source_of[number] == source and number not in self.lost | self.handed_back
        }
        self.lost |= numbers

    @precondition(lambda self: any(self.room(source) for source in self.dialogue.brokers))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Deliver as many messages as RDY allows, or fewer."""
        with_room = [source for source in self.dialogue.brokers if self.room(source)]
        source = data.draw(st.sampled_from(with_room))
        count = data.draw(st.integers(1, self.room(source)))
        row: list[Message] = []
        for _ in range(count):
            self.last_message += 1
            self.source_of[self.last_message] = source
            row.append(message(self.last_message))
        for delivery in self.dialogue.deliver(*row, source=source):
            self.came[int(delivery.id, 16)] = delivery

    def room(self, source: int) -> int:
        """Return how many messages the broker may deliver."""
        broker = self.dialogue.brokers[source]
        return max(0, broker.ready - len(broker.in_flight))

    @precondition(lambda self: self.unanswered())
    @rule(data=st.data(), how=st.sampled_from(["finish", "requeue"]))
    def answer_some(self, data: st.DataObject, how: str) -> None:
        """Finish or requeue a list of deliveries of any sources."""
        numbers = data.draw(st.lists(st.sampled_from(self.unanswered()), min_size=1, unique=True))
        deliveries = [self.came[number] for number in numbers]
        if how == "finish":
            self.dialogue.finish_together(deliveries)
        else:
            self.dialogue.requeue_together(deliveries)
        self.answer(numbers)

    @precondition(lambda self: self.unanswered())
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        """Touch a delivery: its new deadline is not earlier, and within the ceiling."""
        delivery = self.came[data.draw(st.sampled_from(self.unanswered()))]
        before = delivery.deadline
        delivery.touch()
        assert before <= delivery.deadline <= delivery.arrival.sent_after + 25.0

    @rule()
    def hand_back(self) -> None:
        """Requeue all unanswered deliveries."""
        self.handed_back |= set(self.unanswered()) - self.lost
        self.dialogue.hand_back()

    @rule(count=st.integers(0, 8))
    def set_window(self, count: int) -> None:
        """Change the window."""
        self.dialogue.set_window(count)

    @rule(seconds=st.floats(0.0, 9.0))
    def advance(self, seconds: float) -> None:
        """Advance the clock; overdue deliveries are returned once, by deadline."""
        self.dialogue.advance(seconds)
        tracker, now = self.dialogue.tracker, self.dialogue.now
        for delivery in tracker.overdue(now):
            assert delivery.is_in_flight
            assert delivery.deadline <= now
        assert [] == tracker.overdue(now)
        assert (tracker.next_deadline() or math.inf) > now

    @invariant()
    def nothing_is_lost_or_answered_twice(self) -> None:
        """Each delivery is tracked, was answered once, or its connection has ended."""
        on_the_wire = Counter(
            (source, int(command.split()[1], 16))
            for _, source, command in self.dialogue.heard
            if command.startswith(("FIN", "REQ"))
        )
        # Those that were timed out are not handed back on the wire.
        expected = {(self.source_of[number], number) for number in self.answered_in_time}
        may_be = {(self.source_of[number], number) for number in self.handed_back}
        assert expected <= set(on_the_wire) <= expected | may_be
        assert all(count == 1 for count in on_the_wire.values())
        gone = self.answered_in_time | self.lost | self.handed_back
        assert len(self.came) - len(gone) == self.dialogue.tracker.in_flight
        assert self.lost_answers == self.dialogue.tracker.lost_count

    @invariant()
    def rdy_is_within_the_window(self) -> None:
        """The written RDY counts sum up to the total, and not to more than the window."""
        ready = sum(broker.ready for broker in self.dialogue.brokers.values())
        assert ready == self.dialogue.rdy.total <= self.dialogue.rdy.window


TestAnyLife = AnyLife.TestCase
