"""
One WebSocket subscriber: what NSQ and the client say becomes actions and frames.

Nothing here waits or knows a socket. The shell tells what happened and when (`now`, monotonic
seconds), carries out the actions that come back, in order, and sends what `next_frame` gives. The
contract is docs/websocket.md; every sentence of it about frames, ids and the window is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gateway.errors import InvalidRequest
from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.session.actions import (
    Acks,
    Action,
    Authenticate,
    EndReason,
    EndSocket,
    PauseReading,
    Ready,
    Requeue,
    ResumeReading,
)
from gateway.session.answering import Answering
from gateway.session.auth import Authentication, auth_first
from gateway.session.endings import Endings
from gateway.session.messages import (
    CommandIn,
    ErrorOut,
    Ref,
    Unreadable,
    close_wait,
    decode_frame,
    encode_frame,
    sources_changed,
    subscribed,
)
from gateway.session.options import SessionOptions
from gateway.session.outbox import Outbox
from gateway.session.patience import Patience
from gateway.session.window import Batch, Window

_SHOWN_CMD = 32
"""Characters of an unknown verb that come back."""


class Session:
    """The state of one subscriber; see the module."""

    def __init__(self, options: SessionOptions, *, now: float) -> None:
        self.options = options
        self.delivered = 0
        """Deliveries that have gone into frames."""
        self._window = Window(options.max_in_flight)
        self._outbox = Outbox(options.topic, options.channel)
        self._sources: dict[int, Answer] = {}
        self._ready = -1
        """The RDY that was last asked for."""
        self._is_subscribed = False
        self._endings = Endings(
            now=now,
            slow_consumer_s=options.slow_consumer_s,
            broker_outage_s=options.broker_outage_s,
        )
        self._is_ended = False
        self._writing: list[list[str]] = []
        """With ack=auto: the deliveries in the frame that is being written."""
        self._answering = Answering(
            self._window, self._outbox, finishes_by_itself=options.finishes_by_itself
        )
        self._patience = Patience(now=now)
        self._auth = Authentication(has_secret=options.has_secret)
        self._behind_auth: Iterator[CommandIn | Unreadable] = iter(())
        """What stood behind AUTH in its frame, until AUTH is answered."""
        self._handlers: dict[str, Callable[[CommandIn, Acks, float], None]] = {
            "FIN": self._answering.finish,
            "REQ": self._answering.requeue,
            "TOUCH": self._answering.touch,
            "RDY": self._set_ready,
            "CLS": self._start_close,
            "NOP": self._nop,
            "AUTH": self._authenticate,
        }

    # From NSQ

    def source_opened(
        self, source: int, answer: Answer, authorization: Authorization | None = None
    ) -> list[Action]:
        """Tell the client: the first time that it is subscribed, later that a broker came."""
        self._sources[source] = answer
        self._endings.broker_came()
        self._answer_auth(authorization)
        if self._is_subscribed:
            self._outbox.add_answer(sources_changed(len(self._sources), []))
        else:
            self._tell_subscribed(answer.msg_timeout)
        return self._changes()

    def no_source_yet(self, msg_timeout_ms: int, now: float) -> list[Action]:
        """Tell the client that it is subscribed, although no broker has the topic so far."""
        self._endings.last_broker_went(now)
        self._answer_auth(None)
        if not self._is_subscribed:
            self._tell_subscribed(msg_timeout_ms)
        return self._changes()

    def _tell_subscribed(self, msg_timeout_ms: int) -> None:
        self._is_subscribed = True
        names = (self.options.topic, self.options.channel)
        self._outbox.add_answer(subscribed(names, self._window.size, msg_timeout_ms))

    def source_lost(self, source: int, now: float) -> list[Action]:
        """Tell the client which of its deliveries the broker will give to somebody again."""
        self._sources.pop(source, None)
        if not self._sources:
            self._endings.last_broker_went(now)
        self._outbox.take_messages(source)
        lost_ids = self._window.lose(source)
        self._outbox.add_answer(sources_changed(len(self._sources), lost_ids))
        return self._consequences([], now)

    def arrived(self, source: int, messages: list[Message], now: float) -> list[Action]:
        """Take *messages* of *source*; after CLS or the end they go back at once."""
        answer = self._sources.get(source)
        if answer is None or self._endings.is_closing or self._is_ended:
            return [Requeue(source, [message.id for message in messages], 0)]
        batch = Batch(
            source,
            now=now,
            timeout_s=answer.msg_timeout / 1000,
            ceiling=now + answer.max_msg_timeout / 1000,
        )
        self._window.supersede(source, messages)
        self._outbox.add_messages(batch, messages)
        return self._watch_buffer(now)

    def answer_refused(self, frame: ErrorFrame) -> None:
        """Tell the client that NSQ refused an earlier answer of its (which came too late)."""
        self._answering.refused_by_broker(frame)

    # To the client

    @property
    def has_frame(self) -> bool:
        """Whether something waits for the client."""
        return bool(self._outbox)

    @property
    def waiting_bytes(self) -> int:
        """What waits for the client."""
        return self._outbox.size_bytes

    def next_frame(self, now: float) -> str | None:
        """Return the next text frame, made of what is there; None when nothing is."""
        lines, deliveries = self._outbox.take(self._window, now)
        self.delivered += sum(map(len, deliveries))
        if self.options.finishes_by_itself:
            self._writing = deliveries
        return encode_frame(lines) if lines else None

    def frame_written(self, now: float) -> list[Action]:
        """Go on after the frame is written: with ack=auto its messages are finished now."""
        actions: list[Action] = []
        acks = Acks(actions)
        for ids in self._writing:
            self._answering.let_go("FIN", ids, acks, now)
        self._writing = []
        acks.flush()
        return self._consequences(actions, now)

    def _watch_buffer(self, now: float) -> list[Action]:
        """Stop the sources above the bound, and let them go on below it."""
        is_over = self._outbox.size_bytes > self.options.buffer_bytes
        if is_over and not self._endings.is_slow:
            self._endings.client_is_slow(now)
            return [PauseReading()]
        if not is_over and self._endings.is_slow:
            self._endings.client_has_caught_up()
            return [ResumeReading()]
        return []

    # From the client

    def receive(self, text: str, now: float) -> list[Action]:
        """Carry out the commands of one text frame."""
        commands = iter(decode_frame(text))
        return self._first(commands, now) if self._auth.is_first else self._obey(commands, now)

    def _obey(self, commands: Iterable[CommandIn | Unreadable], now: float) -> list[Action]:
        actions: list[Action] = []
        acks = Acks(actions)
        for command in commands:
            if self._is_ended:
                break
            if isinstance(command, Unreadable):
                self._misuse(command.cmd, command.ref, command.problem, now)
            elif (handler := self._handlers.get(command.cmd)) is None:
                known = ", ".join(self._handlers)
                problem = f"{command.cmd[:_SHOWN_CMD]!r} is no command; known are {known}"
                self._misuse(command.cmd, command.ref, problem, now)
            else:
                try:
                    handler(command, acks, now)
                except InvalidRequest as error:
                    self._misuse(command.cmd, command.ref, error.detail, now)
            if self._patience.is_lost:
                acks.flush()
                actions += self._end(EndReason.TOO_MANY_ERRORS)
        acks.flush()
        return self._consequences(actions, now)

    def _misuse(self, cmd: str | None, ref: Ref, problem: str, now: float) -> None:
        """Answer what is no command here, and count it."""
        self._patience.count(now)
        shown = cmd if cmd is None else cmd[:_SHOWN_CMD]
        self._outbox.add_answer(ErrorOut(shown, ref, "E_INVALID", problem, retryable=False))

    def _set_ready(self, command: CommandIn, _acks: Acks, _now: float) -> None:
        self._answering.require_acks(command)
        limit = self.options.max_in_flight_limit
        if command.count is None or not 0 <= command.count <= limit:
            text = f"RDY count is {command.count}; allowed: 0 to {limit} messages"
            raise InvalidRequest("E_INVALID", text)
        self._window.size = command.count
        self._answering.answer_ok(command)

    def _start_close(self, command: CommandIn, _acks: Acks, now: float) -> None:
        if self._endings.is_asked_by_client:
            raise InvalidRequest("E_INVALID", "CLS was said before")
        timeouts = [answer.msg_timeout for answer in self._sources.values()]
        self._endings.close_by(now + max(timeouts, default=0) / 1000, EndReason.DONE)
        answer = close_wait("client", ref=command.ref, reconnect_after_ms=None)
        self._outbox.add_answer(answer)

    def _nop(self, command: CommandIn, _acks: Acks, _now: float) -> None:
        self._answering.answer_ok(command)

    # AUTH

    def want_auth(self, now: float) -> list[Action]:
        """Learn that a broker wants a secret: use what the client gave, or wait for its AUTH."""
        self._endings.broker_came()
        secret = self._auth.want(now, is_subscribed=self._is_subscribed)
        return [] if secret is None else [Authenticate(secret)]

    def auth_failed(
        self, code: str, message: str, reason: EndReason, *, retryable: bool = False
    ) -> list[Action]:
        """Tell the client why there is no subscription with its secret, and end."""
        if self._is_ended:
            return []
        self._outbox.add_answer(self._auth.fail(code, message, retryable=retryable))
        return self._end(reason)

    def go_on(self, now: float) -> list[Action]:
        """Carry out what stood behind AUTH in its frame, after the subscription with it."""
        commands, self._behind_auth = self._behind_auth, iter(())
        return self._obey(commands, now)

    def _first(self, commands: Iterator[CommandIn | Unreadable], now: float) -> list[Action]:
        """Take AUTH, and keep what stands behind it until it is answered."""
        actions: list[Action] = []
        for command in commands:
            if command.cmd != "AUTH":
                self._outbox.add_answer(auth_first(command))
                return actions + self._end(EndReason.NO_AUTH)
            actions += self._obey((command,), now)
            if not self._auth.is_first:
                self._behind_auth = commands
            if self._is_ended or not self._auth.is_first:
                break
        return actions

    def _authenticate(self, command: CommandIn, acks: Acks, _now: float) -> None:
        secret = self._auth.give(command)
        if secret is None:
            self._answer_auth(None)
        else:
            acks.then(Authenticate(secret))

    def _answer_auth(self, authorization: Authorization | None) -> None:
        """Give the answer to AUTH when it is due."""
        if (answer := self._auth.settle(authorization)) is not None:
            self._outbox.add_answer(answer)

    # Time, and the end

    def _consequences(self, actions: list[Action], now: float) -> list[Action]:
        """Put around *actions* what has become right with them."""
        # RDY comes first: what is requeued behind a lower one does not come straight back.
        before = self._changes()
        return before + actions + self._watch_buffer(now) + self._end_when_done(now)

    def _changes(self) -> list[Action]:
        """Return the RDY that has become right, if it is not what was last asked for."""
        if self._is_ended or not self._is_subscribed:
            return []
        actions: list[Action] = []
        ready = max(0, self._window.room - self._outbox.expired)
        if self._endings.is_closing:
            ready = 0
            # Not sent and no longer wanted: somebody else may have them.
            actions = self._requeues(self._outbox.take_messages(), 0)
        if ready != self._ready:
            self._ready = ready
            # Before the requeues, or they would come straight back.
            actions.insert(0, Ready(ready))
        return actions

    def _end_when_done(self, now: float) -> list[Action]:
        """End after CLS or a drain, when nothing is in flight or the time for it has passed."""
        reason = self._endings.closed_reason(in_flight=len(self._window), now=now)
        return [] if reason is None else self._end(reason)

    def _end(self, reason: EndReason) -> list[Action]:
        """Want the socket closed, once."""
        if self._is_ended:
            return []
        self._is_ended = True
        return [EndSocket(reason)]

    def wake(self, now: float) -> list[Action]:
        """Do what is due by now; see `next_wake`."""
        self._window.expire(now)
        self._outbox.expire(now)
        actions = self._consequences([], now)
        if self._auth.is_overdue(now) and not self._is_ended:
            self._outbox.add_answer(auth_first(None))
            actions += self._end(EndReason.NO_AUTH)
        reason = self._endings.due_reason(now)
        return actions if reason is None else actions + self._end(reason)

    def next_wake(self) -> float | None:
        """Return when `wake` has something to do, monotonic seconds; None while it has not."""
        if self._is_ended:
            return None
        due = (
            self._window.next_expiry(),
            self._outbox.next_expiry(),
            self._endings.next_moment(),
            self._auth.next_moment(),
        )
        return min((moment for moment in due if moment is not None), default=None)

    def drain(self, *, close_at: float, reconnect_after_ms: int) -> list[Action]:
        """Tell the client that its socket closes by *close_at*; answers are taken until then."""
        self._endings.close_by(close_at, EndReason.DRAINED)
        self._outbox.add_answer(close_wait("drain", reconnect_after_ms=reconnect_after_ms))
        return self._changes()

    def close(self, now: float) -> list[Action]:
        """End: hand back at once what is not finished, oldest first; idempotent."""
        self._is_ended = True
        delay_ms = self.options.requeue_on_close_ms
        left = self._window.take_all(now)
        for source, unsent in self._outbox.take_messages().items():
            left.setdefault(source, []).extend(unsent)
        # What was not read from the brokers goes back too, when it arrives.
        resume = [ResumeReading()] if self._endings.is_slow else []
        return [Ready(0), *self._requeues(left, delay_ms), *resume]

    def _requeues(self, ids: dict[int, list[bytes]], delay_ms: int) -> list[Action]:
        return [Requeue(source, those, delay_ms) for source, those in ids.items() if those]
