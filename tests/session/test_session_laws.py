"""What holds for every session, whatever NSQ, the client and the clock do."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.protocol.identify import Answer
from gateway.session.actions import (
    Action,
    EndReason,
    EndSocket,
    Finish,
    PauseReading,
    Publish,
    PutOff,
    Ready,
    Refusal,
    Requeue,
    ResumeReading,
    Touch,
)
from gateway.session.inbox import COMMANDS_A_TURN
from gateway.session.options import SessionOptions
from gateway.session.session import Session
from gateway.session.window import MARGIN_S
from tests.support.deliveries import Json, lines, message

MAX_ATTEMPTS = 5
MAX_TIMEOUT_S = 70.0
"""TOUCH reaches no further than this after a delivery."""

SIZES = st.lists(st.integers(1, 900), min_size=1, max_size=4)
VERBS = st.sampled_from(["FIN", "FIN", "FIN", "REQ", "TOUCH"])
OTHERS = st.sampled_from(
    [
        {"cmd": "RDY", "count": 0},
        {"cmd": "RDY", "count": 3},
        {"cmd": "RDY", "count": 7},
        {"cmd": "RDY", "count": -1},
        {"cmd": "NOP"},
        {"cmd": "NOP", "ref": None},
        {"cmd": "AUTH", "secret": "s"},
        {"cmd": "PUB", "topic": "t", "body": "b" * 100},
        {"cmd": "DPUB", "topic": "t", "body": "b", "defer_ms": 5},
        {"cmd": "MPUB", "topic": "t", "bodies": ["b", "c"]},
        {"cmd": "PUB", "topic": "no topic", "body": "b"},
        {"cmd": "FIN"},
        {"cmd": "FIN", "ids": []},
        {"cmd": "JUMP"},
    ]
)


class Sessions(RuleBasedStateMachine):
    """
    A broker and a client around one session, with a clock that only moves on.

    The broker delivers no more than RDY allows, and answers each delivery at most once: by FIN, by
    REQ, by its timeout, or with the end of the connection. The client says anything at any time.
    """

    @initialize(auto=st.booleans(), size=st.integers(1, 5))
    def subscribe(self, auto: bool, size: int) -> None:  # noqa: FBT001 - hypothesis draws it
        """Open a session on two sources with different timeouts."""
        options = SessionOptions(
            topic="t",
            channel="c",
            max_in_flight=size,
            max_in_flight_limit=7,
            finishes_by_itself=auto,
            buffer_bytes=2_000,
            publish_bytes=300,
            max_attempts=MAX_ATTEMPTS,
            command_rate_limit=300,
        )
        self.is_auto, self.largest = auto, size
        self.now, self.numbers, self.refs, self.sources = 0.0, count(1), count(1), 0
        self.ready, self.is_reading, self.is_ended, self.is_closed = 0, True, False, False
        self.in_flight: dict[tuple[int, bytes], tuple[float, float]] = {}
        """What the broker waits for: deadline and ceiling by (source, message id)."""
        self.timeouts: dict[int, float] = {}
        self.got: list[str] = []
        """Every delivery id that the client has read."""
        self.finished: set[bytes] = set()
        """What the client has finished, or the gateway after it was written."""
        self.forwarded: Counter[tuple[int, bytes]] = Counter()
        self.asked: set[int] = set()
        self.told: Counter[int] = Counter()
        self.publishes: list[Publish] = []
        self.session = Session(options, now=0.0)
        self.open_source(60.0)
        self.open_source(5.0)

    # The broker

    @rule(timeout_s=st.sampled_from([5.0, 60.0]))
    def open_source(self, timeout_s: float) -> None:
        """Let a broker come."""
        self.sources += 1
        self.timeouts[self.sources] = timeout_s
        answer = Answer(msg_timeout=int(timeout_s * 1000), max_msg_timeout=70_000)
        self.do(self.session.source_opened(self.sources, answer))

    @precondition(lambda self: len(self.timeouts) > 1)
    @rule(data=st.data())
    def lose_source(self, data: st.DataObject) -> None:
        """Let a broker go."""
        source = data.draw(st.sampled_from(sorted(self.timeouts)))
        del self.timeouts[source]
        self.in_flight = {key: at for key, at in self.in_flight.items() if key[0] != source}
        self.do(self.session.source_lost(source, self.now))

    @precondition(lambda self: self.timeouts and self.is_reading)
    @rule(data=st.data(), sizes=SIZES, attempts=st.sampled_from([1, 1, 1, 6]))
    def deliver(self, data: st.DataObject, sizes: list[int], attempts: int) -> None:
        """Let a broker deliver new messages, as far as RDY allows."""
        source = data.draw(st.sampled_from(sorted(self.timeouts)))
        batch = []
        for size in sizes[: max(0, self.ready - len(self.in_flight))]:
            batch.append(message(next(self.numbers), b"x" * size, attempts=attempts))
            deadline = self.now + self.timeouts[source]
            self.in_flight[source, batch[-1].id] = deadline, self.now + MAX_TIMEOUT_S
        if batch:
            self.do(self.session.arrived(source, batch, self.now))

    @precondition(lambda self: self.publishes)
    @rule(is_refused=st.booleans())
    def answer_publish(self, is_refused: bool) -> None:  # noqa: FBT001 - hypothesis draws it
        """Let NSQ answer the oldest publish."""
        refusal = Refusal("NO_BROKER", "none", retryable=True) if is_refused else None
        self.do(self.session.published(self.publishes.pop(0), refusal))

    # The client

    @rule()
    def read(self) -> None:
        """Let the client take a frame."""
        if self.is_closed or (frame := self.session.next_frame(self.now)) is None:
            return
        written = set()
        for each in lines(frame):
            if each["type"] == "message":
                assert each["attempts"] <= MAX_ATTEMPTS
                self.got.append(each["id"])
                written.add(each["id"][:16].encode())
            elif isinstance(each["ref"], int):
                self.told[each["ref"]] += 1
        if self.is_auto:
            self.finished |= written
        self.do(self.session.frame_written(self.now))

    @rule(data=st.data(), others=st.lists(OTHERS, max_size=3), has_ref=st.booleans())
    def say(
        self,
        data: st.DataObject,
        others: list[Json],
        has_ref: bool,  # noqa: FBT001 - hypothesis draws it
    ) -> None:
        """Let the client answer some of what it has got, late and twice too, and say more."""
        said = [dict(each) for each in others]
        ids = st.lists(st.sampled_from([*self.got[-9:], "x"]), min_size=1, max_size=4)
        for verb, those in data.draw(st.lists(st.tuples(VERBS, ids), max_size=4)):
            said.append(
                {"cmd": verb, "ids": those} if len(those) > 1 else {"cmd": verb, "id": those[0]}
            )
        for each in data.draw(st.permutations(said)):
            self.note(each, has_ref=has_ref)
        self.hear("\n".join(map(json.dumps, said)))

    @rule()
    def say_much(self) -> None:
        """Let the client say more than a turn takes."""
        said = [{"cmd": "NOP"} for _ in range(COMMANDS_A_TURN + 9)]
        for each in said:
            self.note(each, has_ref=True)
        self.hear("\n".join(map(json.dumps, said)))

    @rule(reason=st.sampled_from([EndReason.DONE, EndReason.DRAINED, EndReason.AGED]))
    def begin_to_close(self, reason: EndReason) -> None:
        """Let the client say CLS, or the gateway drain, or find the socket old."""
        if reason is EndReason.DRAINED or reason is EndReason.AGED:
            self.do(self.session.drain(reason, close_at=self.now + 20.0, reconnect_after_ms=1))
        else:
            close: Json = {"cmd": "CLS"}
            self.note(close, has_ref=True)
            self.hear(json.dumps(close))

    def note(self, said: Json, *, has_ref: bool) -> None:
        """Remember what is to be expected of a command."""
        if has_ref and "ref" not in said:
            said["ref"] = next(self.refs)
            if not self.is_ended:
                self.asked.add(said["ref"])
        if said["cmd"] == "FIN" and not self.is_auto:
            ids = said.get("ids") or [said.get("id") or ""]
            self.finished |= {each[:16].encode() for each in ids}
        if said["cmd"] == "RDY":
            self.largest = max(self.largest, said["count"])

    def hear(self, text: str) -> None:
        """Give a frame to the session."""
        self.do(self.session.receive(text, self.now))

    # The clock

    @rule(gap_s=st.floats(0.0, 40.0))
    def wait(self, gap_s: float) -> None:
        """Let time pass; the shell wakes the session when it asked for it."""
        end = self.now + gap_s
        while (due := self.session.next_wake()) is not None and due <= end:
            self.now = max(self.now, due)
            self.time_out()
            self.do(self.session.wake(self.now))
        self.now = end
        self.time_out()

    def time_out(self) -> None:
        """Let the broker give to somebody else what is past its deadline."""
        self.in_flight = {key: at for key, at in self.in_flight.items() if at[0] > self.now}

    # What the session wants

    def do(self, actions: list[Action]) -> None:
        """Carry out what the session wants, as the broker does."""
        for action in actions:
            match action:
                case Finish(source, ids):
                    assert self.finished.issuperset(ids)
                    self.settle(source, ids)
                case Requeue(source, ids) | PutOff(source, ids):
                    self.settle(source, ids)
                case Touch(source, ids):
                    for digits in ids:
                        deadline, ceiling = self.in_flight[source, digits]
                        assert deadline > self.now
                        later = min(self.now + self.timeouts[source], ceiling)
                        self.in_flight[source, digits] = later, ceiling
                case Ready(ready):
                    self.ready = ready
                case Publish():
                    self.publishes.append(action)
                case PauseReading() | ResumeReading():
                    self.is_reading = isinstance(action, ResumeReading)
                case EndSocket():
                    assert not self.is_ended
                    self.is_ended = True
                    self.close()

    def settle(self, source: int, ids: list[bytes]) -> None:
        """Take answers: none of them twice, too late, or on another source."""
        for digits in ids:
            self.forwarded[source, digits] += 1
            assert self.in_flight.pop((source, digits))[0] > self.now

    def close(self) -> None:
        """Close as the shell does."""
        self.is_ended = self.is_closed = True
        self.do(self.session.close(self.now))
        # What is left the broker times out: it has passed its deadline, or is within the margin.
        assert all(at[0] - MARGIN_S <= self.now for at in self.in_flight.values())

    @invariant()
    def an_answer_is_given_once(self) -> None:
        """FIN or REQ, and one of them only."""
        assert all(times == 1 for times in self.forwarded.values())

    @invariant()
    def no_ref_is_answered_twice(self) -> None:
        """And none that was not given."""
        assert all(times == 1 for times in self.told.values())
        assert self.told.keys() <= self.asked

    @invariant()
    def the_window_is_kept(self) -> None:
        """The client never holds more than it has asked for at any time."""
        assert len(self.session._window) <= self.largest
        assert self.ready <= 7

    @invariant()
    def the_bytes_add_up(self) -> None:
        """Nothing waits exactly when nothing is counted."""
        assert self.session.has_frame == (self.session._outbox.size_bytes > 0)

    def teardown(self) -> None:
        """Let all that waits be done: every ref is answered; then close, and all is handed back."""
        if not hasattr(self, "session"):
            return
        for _ in range(100):
            while self.session.has_frame and not self.is_ended:
                self.read()
            if self.publishes:
                self.answer_publish(is_refused=False)
            if not self.session.is_listening and (due := self.session.next_wake()) is not None:
                self.wait(max(0.0, due - self.now))
        if not self.is_ended:
            assert self.asked == self.told.keys()
            self.close()


TestSessions = Sessions.TestCase
