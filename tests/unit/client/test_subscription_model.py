"""
Run random histories of one consumer on several nsqds, each a small model of nsqd.

The real `RdyDistributor`, `DeliveryTracker` and `SendTime` run on a clock that only the test moves.
Commands and messages take time on the wire; nsqd times messages out, pauses channels and exits;
reading pauses. `NSQ_GATEWAY_FUZZ_S` is the number of seconds for which new histories are tried.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
from gateway.client.rdy import SETTLE_S, RdyDistributor, RdyOptions
from gateway.protocol.frames import Message
from gateway.protocol.identify import IdentifyResponse
from tests.support.brokers.rdy_model import MAX_TIMEOUT_S, ONE_WAY_S, TIMEOUT_S, Nsqd
from tests.support.fuzz import fuzz_rounds

TICK_S = 0.25


class Model(RuleBasedStateMachine):
    """The consumer and its brokers."""

    in_flight_counts = True
    """If False, only RDY is counted and moves at once, as in an earlier version."""
    knows_send_time = True
    """If False, deadlines start when messages are read, as in an earlier version."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.numbers = count()
        self.sources = count(1)
        self.random = Random(7)
        self.refused = 0
        self.answers_in_time: set[tuple[int, int]] = set()
        self.is_reading = True
        self.limit = 0
        self.limit_holds_until = 0.0
        self.nsqds: dict[int, Nsqd] = {}
        self.deliveries: list[Delivery] = []
        self.rdy = RdyDistributor(
            0,
            RdyOptions(max_backoff_duration_s=4.0),
            random=self.random.random,
            in_flight=lambda: self.tracker.in_flight_by_source(),  # noqa: PLW0108 - made below
        )
        self.tracker = DeliveryTracker(
            DeliveryOptions(max_attempts=0), self.rdy, self, topic="t", channel="c"
        )

    # Time

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Schedule *action* for a time."""
        heapq.heappush(self.events, (moment, next(self.order), do))

    def run_until(self, end: float) -> None:
        """Run everything that is due, in order."""
        while True:
            due = self.rdy.next_wake()
            overdue = self.tracker.next_deadline()
            moments = [each for each in (due, overdue) if each is not None]
            own = max(self.now, min(moments)) if moments else math.inf
            first = self.events[0][0] if self.events else math.inf
            if min(first, own) > end:
                break
            if first <= own:
                moment, _, do = heapq.heappop(self.events)
                self.now = max(self.now, moment)
                do()
            else:
                self.now = own
                self.wake()
            self.check()
        self.now = max(self.now, end)

    def wake(self) -> None:
        """Run the timers of the shell."""
        overdue = self.tracker.overdue(self.now)
        if overdue:
            self.write(self.rdy.rebalance(self.now))
        self.write(self.rdy.wake(self.now))

    # The shell

    def write(self, changes: Sequence[tuple[int, int]]) -> None:
        """Write RDY."""
        for source, ready in changes:
            nsqd = self.nsqds[source]
            nsqd.command(lambda nsqd=nsqd, ready=ready: nsqd.set_ready(ready))  # type: ignore[misc]

    def refuse(self, nsqd: Nsqd, number: int) -> None:
        """Read nsqd's refusal of a TOUCH."""
        if nsqd.is_open:
            self.tracker.refused(nsqd.source, b"%016x" % number, "TOUCH")
            self.write(self.rdy.rebalance(self.now))
            self.deliveries = [each for each in self.deliveries if each.is_in_flight]

    def read(self, nsqd: Nsqd) -> None:
        """Read everything in the socket as one read."""
        if not self.is_reading or not nsqd.unread:
            return
        read, nsqd.unread = list(nsqd.unread), deque()
        most = max(1, nsqd.max_rdy)
        polled_at = TICK_S * math.floor(max(0.0, self.now - 0.01) / TICK_S)
        sent_after = nsqd.send_time.on_read(self.now, polled_at, most, is_full=False)
        nsqd.send_time.count(len(read))
        assert sent_after - ONE_WAY_S <= read[0][1], "a deadline later than nsqd's"
        row = self.rdy.share_of(nsqd.source)
        ids = [b"%016x" % number for number, _ in read]
        if row.ready == 0 and not self.rdy.has_room_for_late(nsqd.source, len(read), self.now):
            self.carry_out([SendReq(nsqd.source, ids, 0)])
            return
        row.last_message_at = self.now
        messages = [Message(0, 1, each, b"") for each in ids]
        # What the wire takes is not known there; here it is.
        since = sent_after - ONE_WAY_S if self.knows_send_time else None
        came, _ = self.tracker.arrived(nsqd.source, messages, self.now, sent_after=since)
        sent_at = dict(read)
        for delivery in came:
            number = int(delivery.id, 16)
            due, _ = nsqd.in_flight.get(number, (math.inf, 0.0))
            assert delivery.deadline <= due, "a deadline later than nsqd's"
            # Nobody can know that nsqd has taken an answer to an earlier delivery for this one.
            is_answered = (number, sent_at[number]) in nsqd.answered
            assert due < math.inf or is_answered, "handed out after nsqd had timed it out"
        self.deliveries += came
        if row.granted > row.ready and self.rdy.is_over:
            self.write(self.rdy.rebalance(self.now))

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Write *actions*."""
        for action in actions:
            nsqd = self.nsqds[action.source]
            match action:
                case SendRdy(source, ready):
                    self.write([(source, ready)])
                case SendFin(_, ids) | SendReq(_, ids, _):
                    is_requeued = isinstance(action, SendReq)
                    for each in ids:
                        nsqd.command(
                            lambda nsqd=nsqd, number=int(each, 16), is_requeued=is_requeued: (  # type: ignore[misc]
                                nsqd.answer(number, is_requeued=is_requeued)
                            )
                        )
                    if self.rdy.is_short:
                        self.write(self.rdy.answered(len(ids), self.now))
                case SendTouch(_, ids):
                    for each in ids:
                        nsqd.command(
                            lambda nsqd=nsqd, number=int(each, 16): nsqd.touch(number)  # type: ignore[misc]
                        )

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN."""
        self.carry_out(self.tracker.finished(deliveries, self.now))

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write REQ."""
        self.carry_out(
            self.tracker.requeued(deliveries, self.now, delay_ms=delay_ms, backoff=backoff)
        )

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH."""
        self.carry_out(self.tracker.touched(deliveries, self.now))

    # What happens

    @initialize(window=st.sampled_from([1, 2, 4, 10]), brokers=st.integers(1, 3))
    def begin(self, window: int, brokers: int) -> None:
        """Start a consumer, with messages at every nsqd."""
        self.set_window(window)
        for left in reversed(range(brokers)):
            self.open(max_rdy=2_500, way=0.9, depth=12, expected=left)

    @precondition(lambda self: len(self.nsqds) < 5)
    @rule(
        max_rdy=st.sampled_from([1, 3, 2_500]),
        way=st.sampled_from([0.0, 0.001, 0.9]),
        depth=st.sampled_from([0, 1, 12]),
        expected=st.sampled_from([0, 0, 0, 2]),
    )
    def open(self, max_rdy: int, way: float, depth: int, expected: int) -> None:
        """Open a connection to an nsqd, while others are expected."""
        source = next(self.sources)
        self.nsqds[source] = Nsqd(self, source, max_rdy, way * ONE_WAY_S)
        answer = IdentifyResponse(
            max_rdy_count=max_rdy,
            msg_timeout=int(TIMEOUT_S * 1000),
            max_msg_timeout=int(MAX_TIMEOUT_S * 1000),
        )
        self.tracker.add_source(source, f"127.0.0.1:{source}", answer)
        self.write(
            self.rdy.add_source(source, max_rdy_count=max_rdy, now=self.now, expected=expected)
        )
        for _ in range(depth):
            self.nsqds[source].publish(next(self.numbers))

    @rule()
    def expect_nobody(self) -> None:
        """Let the expected connections fail."""
        self.write(self.rdy.expect(0, self.now))

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Lose a connection."""
        nsqd = self.nsqds.pop(data.draw(st.sampled_from(sorted(self.nsqds))))
        nsqd.is_open = False
        lost = set(self.tracker.remove_source(nsqd.source))
        self.deliveries = [each for each in self.deliveries if each not in lost]
        self.write(self.rdy.remove_source(nsqd.source, self.now))

    @rule(window=st.sampled_from([0, 1, 2, 3, 10]))
    def set_window(self, window: int) -> None:
        """Change the window; messages of an earlier RDY may still exceed a smaller one."""
        self.limit = max(self.limit, window)
        self.limit_holds_until = self.now + SETTLE_S
        self.write(self.rdy.set_window(window, self.now))

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data(), messages=st.integers(1, 12))
    def publish(self, data: st.DataObject, messages: int) -> None:
        """Publish to one nsqd."""
        nsqd = self.nsqds[data.draw(st.sampled_from(sorted(self.nsqds)))]
        for _ in range(messages):
            nsqd.publish(next(self.numbers))

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), how=st.sampled_from(["FIN", "FIN", "REQ", "backoff", "TOUCH"]))
    def answer(self, data: st.DataObject, how: str) -> None:
        """Answer some of the unanswered deliveries."""
        held = data.draw(st.integers(1, len(self.deliveries)))
        some, self.deliveries = self.deliveries[:held], self.deliveries[held:]
        if how == "TOUCH":
            self.touch(some)
            self.deliveries += some
            return
        claim(some)
        if how == "FIN":
            self.finish(some)
        else:
            self.requeue(some, delay_ms=0, backoff=how == "backoff")

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data())
    def pause_channel(self, data: st.DataObject) -> None:
        """Pause a channel or resume it."""
        nsqd = self.nsqds[data.draw(st.sampled_from(sorted(self.nsqds)))]
        nsqd.is_paused = not nsqd.is_paused
        nsqd.pump()

    @rule()
    def pause_or_resume_reading(self) -> None:
        """Pause reading or resume it."""
        self.is_reading = not self.is_reading
        for nsqd in self.nsqds.values():
            if self.is_reading:
                nsqd.send_time.on_reading_resumed(self.now, max(1, nsqd.max_rdy))
            else:
                nsqd.send_time.pause(TICK_S * math.floor(max(0.0, self.now - 0.01) / TICK_S))
        self.write(self.rdy.set_reading(is_reading=self.is_reading, now=self.now))
        for nsqd in list(self.nsqds.values()):
            self.read(nsqd)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.3, 1.0, 6.0, 12.0]))
    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.run_until(self.now + seconds)

    # What holds

    @invariant()
    def check(self) -> None:
        """Messages in flight over all nsqds, and those that may arrive, fit into the window."""
        # A TOUCH that is late counts again until it is refused: nsqd does not, nor is it here.
        held = {
            int(delivery.id, 16)
            for source, origin in self.tracker._sources.items()
            for delivery in origin.held.values()
            if not delivery.arrival.is_overdue
            and int(delivery.id, 16) in self.nsqds[source].in_flight
        }
        # Sent and not read yet; what has timed out unread is dropped, and does not count. What was
        # sent again while its earlier delivery is held, and touched, is one message.
        unread = {
            number
            for nsqd in self.nsqds.values()
            for number, sent_at in nsqd.unread
            if number in nsqd.in_flight and nsqd.in_flight[number][1] == sent_at
        }
        # A window that was made smaller holds once what was granted before is used up.
        granted = sum(
            max(self.rdy.share_of(nsqd.source).granted, len(nsqd.in_flight))
            for nsqd in self.nsqds.values()
        )
        if granted <= self.rdy.window and self.now > self.limit_holds_until:
            self.limit = self.rdy.window
        assert len(held | unread) <= max(self.limit, self.rdy.window)
        assert self.rdy.total <= self.rdy.window

    @precondition(lambda self: self.nsqds)
    @rule()
    def nothing_starves(self) -> None:
        """A consumer that answers at once gets all messages of every nsqd."""
        if not self.is_reading:
            self.pause_or_resume_reading()
        for nsqd in self.nsqds.values():
            nsqd.is_paused = False
            nsqd.pump()
        if self.rdy.window == 0:
            self.set_window(1)
        self.expect_nobody()
        end = self.now + 600.0
        while self.now < end and (
            self.deliveries or any(each.depth or each.in_flight for each in self.nsqds.values())
        ):
            if self.deliveries:
                some, self.deliveries = self.deliveries, []
                claim(some)
                self.finish(some)
            self.run_until(self.now + 0.1)

        left = {each.source: len(each.depth) + len(each.in_flight) for each in self.nsqds.values()}
        assert not any(left.values()), f"starved: {left}"

    def teardown(self) -> None:
        """Nothing is left of a stopped consumer."""
        for source in list(self.nsqds):
            self.nsqds.pop(source).is_open = False
            self.tracker.remove_source(source)
            self.rdy.remove_source(source, self.now)
        assert (0, 0) == (self.tracker.in_flight, self.rdy.total)


@pytest.mark.fuzz
def test_a_consumer_keeps_its_window_over_several_nsqd_in_every_history() -> None:
    """See `Model`; a failure prints the history and how to repeat it."""
    examples = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        print_blob=True,
        database=None,
        report_multiple_bugs=False,
    )
    for _ in fuzz_rounds():
        run_state_machine_as_test(Model, settings=examples)


class Drawn:
    """Replays the values drawn in a printed history."""

    def __init__(self, value: int) -> None:
        self.value = value

    def draw(self, strategy: object, label: object = None) -> int:
        """Return the next value."""
        del strategy, label
        return self.value


def test_a_message_that_is_sent_again_while_it_is_held_and_touched_is_one_message() -> None:
    """While it is unread, a TOUCH of its first delivery counts: nsqd has one in flight."""
    model = Model()
    model.begin(window=2, brokers=2)
    model.open(depth=1, expected=0, max_rdy=1, way=0.0)
    model.lose(data=Drawn(1))
    model.wait(seconds=12.0)
    model.publish(data=Drawn(2), messages=1)
    model.open(depth=0, expected=0, max_rdy=1, way=0.0)
    model.pause_or_resume_reading()
    model.lose(data=Drawn(4))
    model.set_window(window=1)
    model.check()
    model.wait(seconds=12.0)
    model.lose(data=Drawn(2))
    model.wait(seconds=0.01)
    model.answer(data=Drawn(1), how="TOUCH")

    model.check()

    model.pause_or_resume_reading()
    model.check()
    assert 1 == len(model.nsqds[3].in_flight) == model.tracker.in_flight
    model.teardown()


def test_an_answer_that_nsqd_takes_for_an_unread_delivery_leaves_that_to_be_handed_out() -> None:
    """The message times out before REQ arrives; the unread delivery is no longer in flight."""
    model = Model()
    model.begin(window=10, brokers=1)
    model.wait(seconds=1.0)
    due = min(due for due, _ in model.nsqds[1].in_flight.values())
    model.run_until(due - 0.02)
    model.answer(data=Drawn(10), how="REQ")

    model.run_until(due + 0.2)

    assert any(sent_at == pytest.approx(due) for _, sent_at in model.nsqds[1].answered)
    model.teardown()
