"""
Random histories of one socket on several nsqd: the client never has more than its window.

The real `SessionSocket`, `Session` and `RdyDistributor` run on a clock that only the test moves,
beside a model of each nsqd. `NSQ_GATEWAY_FUZZ_S` is for how many seconds new histories are tried.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import pytest

from gateway.client.rdy import RdyDistributor, RdyOptions
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.session import Session
from gateway.session.types import (
    Action,
    FinishDeliveries,
    RequeueDeliveries,
    SessionOptions,
    SetReady,
    TouchDeliveries,
)
from gateway.web.subscribe.session_socket import no_event
from tests.support.brokers.rdy_model import MAX_TIMEOUT_S, ONE_WAY_S, TIMEOUT_S, Nsqd
from tests.support.fuzz import fuzz_seeds, print_seed
from tests.support.websocket.model_socket import ModelLoop, ModelSocket

SEEDS = 60
STEPS = 60
TICK_S = 0.25
ANSWER = IdentifyResponse(
    msg_timeout=int(TIMEOUT_S * 1000), max_msg_timeout=int(MAX_TIMEOUT_S * 1000)
)


class World:
    """A client, its socket, what splits the window, and several nsqd."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.loop = ModelLoop()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order, self.numbers, self.sources = count(), count(), count(1)
        self.refused = 0
        self.nsqds: dict[int, Nsqd] = {}
        self.read_at: dict[int, tuple[Nsqd, float]] = {}
        """By number of a message: its nsqd, and when it sent what was read of it last."""
        self.held: dict[str, tuple[Nsqd, float]] = {}
        """What the client has not answered: its nsqd, and when that has sent it."""
        options = SessionOptions(
            topic="t", channel="c", max_in_flight=size, broker_outage_s=1e6, slow_consumer_s=1e6
        )
        self.socket = ModelSocket(self.loop, options, self.carry_out, lambda: None)
        session: Session = self.socket.session
        self.plan = RdyDistributor(
            0, RdyOptions(), random=Random(7).random, in_flight=session.in_flight_by_source
        )
        self.socket.tell(no_event)

    # Time

    @property
    def now(self) -> float:
        """The moment."""
        return self.loop.now

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self.events, (moment, next(self.order), do))

    def wait(self, seconds: float) -> None:
        """Let everything happen that is due, in order."""
        end = self.now + seconds
        while True:
            plan_due = self.plan.next_wake()
            first = self.events[0][0] if self.events else end + 1
            due = min(first, self.loop.due, end + 1 if plan_due is None else plan_due)
            if due > end:
                break
            self.loop.now = max(self.now, due)
            if first <= due:
                heapq.heappop(self.events)[2]()
            elif self.loop.due <= due:
                self.loop.fire()
            else:
                self.write(self.plan.wake(self.now))
            self.check()
        self.loop.now = end

    # The subscription

    def open(self, depth: int, way: float, expected: int = 0) -> None:
        """Join an nsqd with messages."""
        source = next(self.sources)
        nsqd = self.nsqds[source] = Nsqd(self, source, 2_500, way * ONE_WAY_S)
        self.socket.tell(lambda _: self.socket.session.on_source_opened(source, ANSWER))
        self.write(
            self.plan.add_source(source, max_rdy_count=2_500, now=self.now, expected=expected)
        )
        self.take()
        for _ in range(depth):
            nsqd.publish(next(self.numbers))

    def lose(self, source: int) -> None:
        """Lose a connection."""
        self.nsqds.pop(source).is_open = False
        self.socket.tell(self.socket.session.on_source_lost, source)
        self.write(self.plan.remove_source(source, self.now))
        self.take()

    def write(self, changes: Sequence[tuple[int, int]]) -> None:
        """Write RDY where the connection is there still."""
        for source, ready in changes:
            if nsqd := self.nsqds.get(source):
                nsqd.command(lambda nsqd=nsqd, ready=ready: nsqd.set_ready(ready))  # type: ignore[misc]

    def carry_out(self, action: Action) -> None:
        """Do what the session wants, as a subscription does."""
        match action:
            case SetReady(window):
                self.write(self.plan.set_window(window, self.now))
            case FinishDeliveries() | RequeueDeliveries():
                nsqd = self.nsqds[action.source]
                for each in action.ids:
                    nsqd.command(
                        lambda number=int(each, 16): nsqd.answer(  # type: ignore[misc]
                            number, is_requeued=isinstance(action, RequeueDeliveries)
                        )
                    )
                if self.plan.is_short:
                    self.write(self.plan.answered(len(action.ids), self.now))
            case TouchDeliveries():
                nsqd = self.nsqds[action.source]
                for each in action.ids:
                    nsqd.command(lambda number=int(each, 16): nsqd.touch(number))  # type: ignore[misc]
            case _:
                raise AssertionError(action)

    def read(self, nsqd: Nsqd) -> None:
        """Take all that is in the socket, as one read."""
        read, nsqd.unread = list(nsqd.unread), deque()
        polled_at = TICK_S * max(0.0, self.now - 0.01) // TICK_S
        since = nsqd.send_time.on_read(self.now, polled_at, 2_500, is_full=False) - ONE_WAY_S
        nsqd.send_time.count(len(read))
        row = self.plan.share_of(nsqd.source)
        ids = [b"%016x" % number for number, _ in read]
        self.read_at |= {number: (nsqd, sent_at) for number, sent_at in read}
        if row.ready == 0 and not self.plan.has_room_for_late(nsqd.source, len(read), self.now):
            for number, _ in read:
                nsqd.command(lambda number=number: nsqd.answer(number, is_requeued=True))  # type: ignore[misc]
            return
        row.last_message_at = self.now
        messages = [Message(0, 1, each, b"") for each in ids]
        session = self.socket.session
        self.socket.tell(lambda _: session.on_messages(nsqd.source, messages, self.now, since))
        if row.granted > row.ready and self.plan.is_over:
            self.write(self.plan.rebalance(self.now))
        self.take()

    def refuse(self, nsqd: Nsqd, number: int) -> None:
        """Read that a TOUCH was refused."""
        if nsqd.is_open:
            frame = ErrorFrame("E_TOUCH_FAILED", f"TOUCH {number:016x} failed ID not in flight")
            self.socket.tell(lambda _: self.socket.session.on_ack_refused(frame, nsqd.source))
            self.write(self.plan.rebalance(self.now))
            self.take()

    # The client

    def take(self) -> None:
        """Let the client read all that was sent to it."""
        web = self.socket.web
        while web.frames:
            for line in web.read():
                if line["type"] == "message":
                    self.held[line["id"]] = self.read_at[int(line["id"].partition("-")[0], 16)]
                    continue
                gone = line["data"].get("lost_ids", []) if line["type"] == "response" else []
                if line["type"] == "error":
                    gone = line.get("ids") or [line.get("id")]
                for delivery_id in gone:
                    self.held.pop(delivery_id, None)

    def say(self, verb: str, ids: Sequence[str]) -> None:
        """Let the client answer *ids*."""
        if verb != "TOUCH":
            for each in ids:
                del self.held[each]
        self.socket.on_text(json.dumps({"cmd": verb, "ids": list(ids)}))
        self.take()
        self.check()

    # What holds

    def check(self) -> None:
        """What the client has, and what each nsqd may still send, fits into the window."""
        held = {(int(each.partition("-")[0], 16), sent) for each, (_, sent) in self.held.items()}
        may_come = 0
        for nsqd in self.nsqds.values():
            in_flight = {(number, sent) for number, (_, sent) in nsqd.in_flight.items()}
            # What the client has answered, or was refused, is its no more, although nsqd has not
            # read that yet.
            unread = {each for each in in_flight if self.read_at.get(each[0]) != (nsqd, each[1])}
            may_come += max(nsqd.ready, len(in_flight & held | unread))
            # Nobody can know that nsqd has taken an answer to an earlier delivery for this one.
            held -= in_flight | nsqd.answered
        timed_out = len(held)
        assert timed_out + may_come <= self.size, (timed_out, may_come)


def drawn(rng: Random, of: Sequence[str]) -> list[str]:
    """Return some of *of*, at least one."""
    return rng.sample(of, rng.randint(1, len(of)))


def step(world: World, rng: Random) -> None:
    """Let one thing happen."""
    what = rng.random()
    if world.held and what < 0.4:
        verb = rng.choice(["FIN", "FIN", "REQ", "TOUCH", "TOUCH", "TOUCH"])
        source = rng.choice(list(world.held.values()))[0]
        theirs = [each for each, (nsqd, _) in world.held.items() if nsqd is source]
        ids = drawn(rng, list(world.held)) if rng.random() < 0.5 else theirs
        world.say(verb, ids)
    elif what < 0.45 and len(world.nsqds) < 4:
        world.open(rng.choice([0, 3, 60]), rng.choice([0.001, 0.9]))
    elif what < 0.47 and len(world.nsqds) > 1:
        world.lose(rng.choice(list(world.nsqds)))
    elif what < 0.6:
        nsqd = rng.choice(list(world.nsqds.values()))
        for _ in range(rng.choice([1, 5, 60])):
            nsqd.publish(next(world.numbers))
    elif what < 0.8 and world.held:
        # Around the next time that nsqd times something out.
        due = [each[0] for nsqd in world.nsqds.values() for each in nsqd.in_flight.values()]
        if due:
            world.wait(max(0.0, min(due) - rng.choice([0.5, 0.3, 0.2, 0.05, -0.05]) - world.now))
    else:
        world.wait(rng.choice([0.01, 0.1, 0.3, 1.0, 6.0, 12.0]))
    world.check()


@pytest.mark.fuzz
def test_a_client_never_has_more_than_its_window_over_several_nsqd() -> None:
    """However many time out at one nsqd while others go on; and nothing starves."""
    for seed in fuzz_seeds(SEEDS):
        rng = Random(seed)
        with print_seed(seed):
            world = World(rng.choice([1, 2, 5, 10, 50]))
            for left in reversed(range(rng.randint(2, 3))):
                world.open(60, rng.choice([0.001, 0.9]), left)
            for _ in range(STEPS):
                step(world, rng)
            end = world.now + 900.0
            while world.now < end and any(n.depth or n.in_flight for n in world.nsqds.values()):
                if world.held:
                    world.say("FIN", list(world.held))
                world.wait(0.1)
            left_over = [len(n.depth) + len(n.in_flight) for n in world.nsqds.values()]
            assert not any(left_over), f"starved: {left_over}"


def test_what_times_out_at_one_nsqd_leaves_no_room_beside_what_another_has_in_flight() -> None:
    """Ten of ten are held, five of each; one nsqd's time out, the other's are touched."""
    world = World(10)
    for left in (1, 0):
        world.open(50, 0.9, left)
    world.wait(10.0)
    second = [each for each, (nsqd, _) in world.held.items() if nsqd.source == 2]
    assert (10, 5) == (len(world.held), len(second))
    world.say("TOUCH", second)

    world.wait(15.0)

    assert 10 == len(world.held)
    world.say("FIN", second[:2])
    world.wait(1.0)
    assert 10 == len(world.held)
    assert 2 == sum(nsqd.source == 1 for nsqd, _ in world.held.values()) - 5
