"""
One WebSocket subscriber: what NSQ and the client say becomes actions and frames.

Nothing here waits or knows a socket. The shell tells what happened and when (`now`, monotonic
seconds), carries out the actions that come back, in order, and sends what `next_frame` gives. The
contract is docs/websocket.md; every sentence of it about frames, ids and the window is kept here.
"""

from __future__ import annotations

import math

from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.session.account import Holdings
from gateway.session.actions import (
    Action,
    Authenticate,
    Cause,
    EndReason,
    EndSocket,
    LeaveReason,
    PauseReading,
    Publish,
    Ready,
    Refusal,
    Requeue,
    ResumeReading,
    requeues,
)
from gateway.session.auth import auth_first
from gateway.session.dialogue import Dialogue
from gateway.session.endings import Endings
from gateway.session.messages import (
    channel_gone,
    close_wait,
    encode_frame,
)
from gateway.session.options import SessionOptions
from gateway.session.outbox import Outbox
from gateway.session.putting_off import put_off
from gateway.session.standing import Standing
from gateway.session.window import Batch, Window

_WHY: dict[LeaveReason, str] = {EndReason.DRAINED: "drain", EndReason.AGED: "age"}


class Session:
    """The state of one subscriber; see the module."""

    __slots__ = (
        "_dialogue",
        "_endings",
        "_is_ended",
        "_outbox",
        "_ready",
        "_sources",
        "_standing",
        "_window",
        "_writing",
        "delivered",
        "options",
    )

    def __init__(self, options: SessionOptions, *, now: float) -> None:
        self.options = options
        self.delivered = 0
        """Deliveries that have gone into frames."""
        self._window = Window(options.max_in_flight, options.account)
        self._outbox = Outbox(options.topic, options.channel, options.account)
        self._sources: dict[int, Answer] = {}
        self._ready = -1
        """The RDY that was last asked for."""
        self._standing = Standing(self._outbox, self._sources)
        self._is_ended = False
        self._endings = Endings(
            now=now,
            slow_consumer_s=options.slow_consumer_s,
            broker_outage_s=options.broker_outage_s,
        )
        self._writing: list[list[str]] = []
        """With ack=auto: the deliveries in the frame that is being written."""
        self._dialogue = Dialogue(options, self._window, self._outbox, self._endings, self._sources)

    @property
    def channel(self) -> str:
        """The channel as frames name it; a viewer's is known only once it is subscribed."""
        return self._outbox.channel

    @channel.setter
    def channel(self, channel: str) -> None:
        """Name the channel, before the client is told that it is subscribed."""
        self._outbox.channel = channel

    # From NSQ

    def source_opened(
        self, source: int, answer: Answer, authorization: Authorization | None = None
    ) -> list[Action]:
        """Tell the client: the first time that it is subscribed, later that a broker came."""
        self._sources[source] = answer
        self._endings.broker_came()
        self._dialogue.answer_auth(authorization)
        if self._standing.is_told:
            self._standing.tell_state([])
        else:
            self._tell_subscribed(answer.msg_timeout)
        return self._changes()

    def no_source_yet(self, msg_timeout_ms: int, now: float) -> list[Action]:
        """Tell the client that it is subscribed, although no broker has the topic so far."""
        self._endings.last_broker_went(now)
        self._dialogue.answer_auth(None)
        if not self._standing.is_told:
            self._tell_subscribed(msg_timeout_ms)
        return self._changes()

    def _tell_subscribed(self, msg_timeout_ms: int) -> None:
        self._dialogue.msg_timeout_ms = msg_timeout_ms
        self._standing.tell_subscribed(self._window.size, msg_timeout_ms)

    def source_lost(self, source: int, now: float) -> list[Action]:
        """Tell the client which of its deliveries the broker will give to somebody again."""
        self._sources.pop(source, None)
        if not self._sources:
            self._endings.last_broker_went(now)
        self._outbox.take_messages(source)
        self._standing.tell_state(self._window.lose(source))
        return self._consequences([], now)

    def sources_left(self, now: float) -> list[Action]:
        """Hand back what all sources have delivered: they are left, to be subscribed to anew."""
        self._ready = 0  # what is right comes with the subscription
        actions: list[Action] = [] if self.options.is_viewer else [Ready(0)]
        unsent = self._outbox.take_messages()
        for source in list(self._sources):
            ids = self._window.answerable(source, now) + unsent.get(source, [])
            if ids:
                actions.append(Requeue(source, ids, 0, Cause.RESUBSCRIBE))
            del self._sources[source]
            self._standing.tell_state(self._window.lose(source))
        self._endings.last_broker_went(now)
        return actions

    def arrived(self, source: int, messages: list[Message], now: float) -> list[Action]:
        """Take *messages* of *source*; after CLS or the end they go back at once."""
        answer = self._sources.get(source)
        is_ending = self._endings.is_closing or self._is_ended
        if answer is None or is_ending:
            cause = self._endings.cause if is_ending else Cause.RESUBSCRIBE
            return [Requeue(source, [message.id for message in messages], 0, cause)]
        actions: list[Action] = []
        options = self.options
        if options.max_attempts:
            actions, messages = put_off(source, messages, options)
            if not messages:
                return actions
        ceiling = now + answer.max_msg_timeout / 1000
        timeout_s = answer.msg_timeout / 1000
        window, outbox = self._window, self._outbox
        if window.overdue:
            window.supersede(source, messages)
        deadline = min(now + timeout_s, ceiling)
        outbox.add_messages(Batch(source, timeout_s, deadline, ceiling), messages)
        if outbox.size_bytes > options.buffer_bytes:
            actions += self._watch_buffer(now)
        return actions

    def answer_refused(self, frame: ErrorFrame) -> None:
        """Tell the client that NSQ refused an earlier answer of its (which came too late)."""
        self._dialogue.answering.refused_by_broker(frame)

    def published(self, publish: Publish, refusal: Refusal | None) -> list[Action]:
        """Answer *publish*, an earlier action of this session: OK, or why not."""
        self._dialogue.published(publish, refusal)
        return self._end_when_done(-math.inf)

    def channel_gone(self) -> list[Action]:
        """Tell the client that its channel was deleted, and end."""
        if self._is_ended:
            return []
        self._outbox.add_answer(channel_gone((self._outbox.topic, self._outbox.channel)))
        return self._end(EndReason.CHANNEL_GONE)

    def paused(self, is_paused: bool) -> list[Action]:  # noqa: FBT001 - a state, as it is told
        """Tell the client that NSQ holds the messages of its channel back, or does so no more."""
        if self._standing.pause(is_paused) and not self._is_ended:
            self._standing.tell_state([])
        return []

    # To the client

    @property
    def has_frame(self) -> bool:
        """Whether something waits for the client."""
        return bool(self._outbox)

    def next_frame(self, now: float) -> bytes | None:
        """
        Return the next text frame, made of what is there; None when nothing is.

        It has no newline at its end.
        """
        lines, deliveries = self._outbox.take(self._window, now)
        for ids in deliveries:
            self.delivered += len(ids)
        if self.options.finishes_by_itself:
            self._writing += deliveries
        return encode_frame(lines) if lines else None

    def frame_written(self, now: float) -> list[Action]:
        """Go on after the frame is written: with ack=auto its messages are finished now."""
        actions: list[Action] = []
        if self._writing:
            actions = self._dialogue.answering.finish_written(self._writing, now)
            self._writing = []
        return self._consequences(actions, now)

    def _watch_buffer(self, now: float) -> list[Action]:
        """Stop the sources above the bound, and let them go on below it."""
        is_over = self._outbox.size_bytes > self.options.buffer_bytes
        if is_over is self._endings.is_slow:
            return []
        if is_over:
            self._endings.client_is_slow(now)
        else:
            self._endings.client_has_caught_up()
        if self.options.is_viewer:
            return []  # its sources are not its own
        return [PauseReading() if is_over else ResumeReading()]

    # From the client

    @property
    def is_listening(self) -> bool:
        """
        Whether what the client says is carried out at once; else reading from it should pause.

        It is not while commands wait for their turn, while AUTH is tried, while more answers wait
        than may, or while too much is being published. What it says nevertheless waits here.
        """
        return self._dialogue.is_listening

    def receive(self, text: str, now: float) -> list[Action]:
        """Carry out the commands of one text frame, or what one turn takes of them."""
        return [] if self._is_ended else self._said(self._dialogue.receive(text, now), now)

    def go_on(self, now: float) -> list[Action]:
        """Carry out what stood behind AUTH, after the subscription with it."""
        return self._said(self._dialogue.go_on(now), now)

    def _said(self, actions: list[Action], now: float) -> list[Action]:
        """Put what follows to the *actions* that the client wants."""
        if self._dialogue.ended_by is not None:
            actions += self._end(self._dialogue.ended_by)
        return self._consequences(actions, now)

    # AUTH

    @property
    def kept_secret(self) -> Secret | None:
        """What the client gave by AUTH while nobody wanted it; None once it subscribes with it."""
        return self._dialogue.auth.kept

    def want_auth(self, now: float) -> list[Action]:
        """Learn that a broker wants a secret: use what the client gave, or wait for its AUTH."""
        if self._is_ended:
            return []
        self._endings.broker_came()
        secret = self._dialogue.auth.want(now, is_subscribed=self._standing.is_told)
        return [] if secret is None else [Authenticate(secret)]

    def auth_failed(
        self, code: str, message: str, reason: EndReason, *, retryable: bool = False
    ) -> list[Action]:
        """Tell the client why there is no subscription with its secret, and end."""
        if self._is_ended:
            return []
        self._outbox.add_answer(self._dialogue.auth.fail(code, message, retryable=retryable))
        return self._end(reason)

    # Time, and the end

    def _consequences(self, actions: list[Action], now: float) -> list[Action]:
        """Put around *actions* what has become right with them."""
        outbox, endings = self._outbox, self._endings
        ready = self._window.size - len(self._window.overdue) - outbox.expired
        if (
            ready == self._ready
            and not endings.is_closing
            and not endings.is_slow
            and outbox.size_bytes <= self.options.buffer_bytes
        ):
            return actions
        # RDY comes first: what is requeued behind a lower one does not come straight back.
        before = self._changes()
        return before + actions + self._watch_buffer(now) + self._end_when_done(now)

    def _changes(self) -> list[Action]:
        """Return the RDY that has become right, if it is not what was last asked for."""
        if self._is_ended or not self._standing.is_told or self.options.is_viewer:
            return []
        actions: list[Action] = []
        ready = max(0, self._window.room - self._outbox.expired)
        if self._endings.is_closing:
            ready = 0
            # Not sent and no longer wanted: somebody else may have them.
            actions = requeues(self._outbox.take_messages(), 0, self._endings.cause)
        if ready != self._ready:
            self._ready = ready
            # Before the requeues, or they would come straight back.
            actions.insert(0, Ready(ready))
        return actions

    def _end_when_done(self, now: float) -> list[Action]:
        """End after CLS or a drain, when nothing is open or the time for it has passed."""
        reason = self._endings.closed_reason(is_open=self.is_open, now=now)
        return [] if reason is None else self._end(reason)

    def _end(self, reason: EndReason) -> list[Action]:
        """Want the socket closed, once."""
        if self._is_ended:
            return []
        self._is_ended = True
        self._dialogue.stop()
        return [EndSocket(reason)]

    def wake(self, now: float) -> list[Action]:
        """Do what is due by now; see `next_wake`."""
        self._window.expire(now)
        self._outbox.expire(now)
        actions = self._said([] if self._is_ended else self._dialogue.go_on(now), now)
        if now >= self._dialogue.auth.due and not self._is_ended:
            self._outbox.add_answer(auth_first(None))
            actions += self._end(EndReason.NO_AUTH)
        reason = self._endings.due_reason(now)
        return actions if reason is None else actions + self._end(reason)

    def next_wake(self) -> float | None:
        """
        Return when `wake` has something to do, monotonic seconds; None while it has not.

        It is not in the future where commands wait for their turn.
        """
        if self._is_ended:
            return None
        due = self._endings.due
        for other in (self._window.due, self._outbox.due, self._dialogue.auth.due):
            if other < due:  # noqa: PLR1730 - asked after every event, and min() takes its time
                due = other
        if self._dialogue.inbox is not None:
            due = min(due, self._dialogue.due)
        return None if due == math.inf else due

    @property
    def holdings(self) -> Holdings:
        """What there is now, and what it came to."""
        return Holdings(len(self._window), self._outbox.size_bytes, self._window.timed_out)

    @property
    def is_open(self) -> bool:
        """Whether the client has something to answer, or waits for an answer itself."""
        return len(self._window) > 0 or self._dialogue.is_busy

    def drain(
        self, reason: LeaveReason, *, close_at: float, reconnect_after_ms: int
    ) -> list[Action]:
        """Tell the client, once, that it closes at *close_at*; when AGED, once it is not open."""
        if self._endings.close_by(close_at, reason) and not self._is_ended:
            self._outbox.add_answer(close_wait(_WHY[reason], reconnect_after_ms=reconnect_after_ms))
        return self._changes() + self._end_when_done(-math.inf)

    def close(self, now: float) -> list[Action]:
        """End: hand back at once what is not finished, oldest first; idempotent."""
        self._is_ended = True
        self._dialogue.stop()
        delay_ms = self.options.requeue_on_close_ms
        left = self._window.take_all(now)
        for source, unsent in self._outbox.take_messages().items():
            left.setdefault(source, []).extend(unsent)
        if self.options.is_viewer:
            return []
        # What was not read from the brokers goes back too, when it arrives.
        resume = [ResumeReading()] if self._endings.is_slow else []
        return [Ready(0), *requeues(left, delay_ms, self._endings.cause), *resume]
