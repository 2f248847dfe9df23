"""
One WebSocket subscriber as a state machine: events in, actions and text frames out.

The caller reports each event with its time (`now`, monotonic seconds), executes the returned
actions in order, and sends the frames that `next_frame` returns. docs/websocket.md is the contract.

"Broker" means nsqd. A *source* is the number of one nsqd connection of the subscription; a new
connection, even to the same nsqd, is a new source. The SUB, NOP and CLS that the gateway sends are
response frames to the client.

States, in `Lifecycle`:

| event | OPENING | SUBSCRIBED | CLOSE_WAIT | ENDED |
| --- | --- | --- | --- | --- |
| `on_subscribed`: SUB is sent | SUBSCRIBED | stays | stays | stays |
| `begin_close`: CLS, drain, maximum age | CLOSE_WAIT | CLOSE_WAIT | the earlier deadline | stays |
| `end`: a timer, an error, a close | ENDED | ENDED | ENDED | stays |
| messages arrive | are requeued | are delivered | are requeued | are requeued |
| the client's commands | AUTH, publishes | all | all; RDY stays 0 | are dropped |
| responses to the client | are sent | are sent | are sent | are dropped |
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence

from gateway.credentials import Secret
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.session.auth import auth_first
from gateway.session.command_runner import CommandRunner
from gateway.session.json_frames import (
    ErrorOut,
    Ref,
    ResponseOut,
    channel_gone_error,
    close_wait_response,
    encode_frame,
    status_response,
    subscribed_response,
)
from gateway.session.types import (
    Action,
    CloseReason,
    CloseSocket,
    DelayedRequeue,
    DrainReason,
    PauseReading,
    PublishBodies,
    Refusal,
    RequeueCause,
    ResubscribeWithSecret,
    ResumeReading,
    SessionOptions,
    SessionStats,
    SetReady,
    requeue_actions,
)
from gateway.session.window import DeliveryBatch, Outbox, Window


class SessionState(enum.Enum):
    """The state of a session; the module's docstring has its transitions."""

    OPENING = "not subscribed yet, or waiting for AUTH"
    SUBSCRIBED = "messages are delivered"
    CLOSE_WAIT = "no more messages are delivered; acknowledgments are accepted"
    ENDED = "all deliveries are requeued; nothing more is sent"


# A tuple: hashing an enum member is a Python call, and each message tests this three times.
_CLOSING = (SessionState.CLOSE_WAIT, SessionState.ENDED)


class Lifecycle:
    """
    The state of a session, and its timers: broker outage, slow client, pending close.

    Deadlines are monotonic seconds; `math.inf` means that the timer is stopped.
    """

    __slots__ = (
        "_broker_outage_s",
        "_close_deadline",
        "_close_reason",
        "_is_gateway_closing",
        "_outage_deadline",
        "_slow_consumer_s",
        "_slow_deadline",
        "due",
        "is_subscribed",
        "state",
    )

    def __init__(self, *, now: float, slow_consumer_s: float, broker_outage_s: float) -> None:
        self.state = SessionState.OPENING
        self.is_subscribed = False
        """True once SUB was sent to the client; a close may begin before that."""
        self._slow_consumer_s = slow_consumer_s
        self._broker_outage_s = broker_outage_s
        self._outage_deadline = now + broker_outage_s
        self._slow_deadline = math.inf
        self._close_deadline = math.inf
        self._close_reason: CloseReason | None = None
        self._is_gateway_closing = False
        """True once the gateway has begun to close the socket, for a drain or its age."""
        self.due = self._outage_deadline
        """The earliest deadline of the three timers."""

    # States

    def on_subscribed(self) -> None:
        """Note that SUB was sent; enter SUBSCRIBED, except after a close has begun."""
        self.is_subscribed = True
        if self.state is SessionState.OPENING:
            self.state = SessionState.SUBSCRIBED

    @property
    def wants_messages(self) -> bool:
        """True while arriving messages are delivered; otherwise they are requeued."""
        return self.state not in _CLOSING

    @property
    def is_ended(self) -> bool:
        """True once the session has ended."""
        return self.state is SessionState.ENDED

    def end(self) -> bool:
        """Enter ENDED; return False if the session had ended before."""
        is_new = self.state is not SessionState.ENDED
        self.state = SessionState.ENDED
        return is_new

    # Timers

    def _set_due(self) -> None:
        self.due = min(self._outage_deadline, self._slow_deadline, self._close_deadline)

    # No broker

    def on_broker(self) -> None:
        """Stop the broker outage timer."""
        self._outage_deadline = math.inf
        self._set_due()

    def on_last_broker_lost(self, now: float) -> None:
        """Start the broker outage timer."""
        self._outage_deadline = now + self._broker_outage_s
        self._set_due()

    # A slow client

    @property
    def is_slow(self) -> bool:
        """True while the slow client timer runs: more bytes wait for the client than allowed."""
        return self._slow_deadline < math.inf

    def on_slow_client(self, now: float) -> None:
        """Start the slow client timer."""
        self._slow_deadline = now + self._slow_consumer_s
        self._set_due()

    def on_client_caught_up(self) -> None:
        """Stop the slow client timer."""
        self._slow_deadline = math.inf
        self._set_due()

    # A close

    @property
    def is_client_closing(self) -> bool:
        """True once the client has sent CLS."""
        return self._close_reason is CloseReason.DONE

    @property
    def cause(self) -> RequeueCause:
        """The cause to report for messages that are requeued because of the close."""
        return RequeueCause.DRAIN if self._is_gateway_closing else RequeueCause.DISCONNECT

    def begin_close(self, deadline: float, reason: CloseReason) -> bool:
        """
        Enter CLOSE_WAIT, to end at *deadline* at the latest; an earlier deadline stays.

        Returns True in the first call whose *reason* is the gateway's (a drain, the maximum age),
        not the client's CLS: the gateway must then announce the close to the client.
        """
        if self.state is not SessionState.ENDED:
            self.state = SessionState.CLOSE_WAIT
        self._close_deadline = min(self._close_deadline, deadline)
        self._set_due()
        # A close that the client began ends as soon as it is idle, even during a drain.
        if self._close_reason is None or reason is CloseReason.DONE:
            self._close_reason = reason
        is_first = not self._is_gateway_closing and reason is not CloseReason.DONE
        self._is_gateway_closing = self._is_gateway_closing or is_first
        return is_first

    def closed_reason(self, *, is_open: bool, now: float) -> CloseReason | None:
        """
        Return the reason of the close if the session may end now; None if not, or without a close.

        *is_open* is `Session.is_open`: the client still holds deliveries or waits for a response.
        """
        # A drain spreads its closes over time, so even an idle socket waits for its deadline.
        waits = is_open or self._close_reason is CloseReason.DRAINED
        return None if waits and now < self._close_deadline else self._close_reason

    # Time

    def due_reason(self, now: float) -> CloseReason | None:
        """Return SLOW or NO_BROKER if that timer has expired; otherwise None."""
        if now >= self._slow_deadline:
            return CloseReason.SLOW
        if now >= self._outage_deadline:
            return CloseReason.NO_BROKER
        return None


_DELAY_PER_ATTEMPT_MS = 90_000
"""Delay of a requeue for each attempt above max_attempts."""


def split_over_attempts(
    source: int, messages: Sequence[Message], options: SessionOptions
) -> tuple[list[Action], list[Message]]:
    """
    Separate messages with more than max_attempts attempts from those to deliver.

    Returns the actions that requeue the former, and a list of the latter. The delay grows with the
    attempts, up to nsqd's --max-req-timeout.
    """
    max_attempts, longest_ms = options.max_attempts, options.limits.max_req_timeout_ms
    later: dict[int, list[bytes]] = {}
    others = []
    for message in messages:
        if message.attempts > max_attempts:
            later.setdefault(message.attempts - max_attempts, []).append(message.id)
        else:
            others.append(message)
    return [
        DelayedRequeue(source, ids, min(_DELAY_PER_ATTEMPT_MS * above, longest_ms))
        for above, ids in later.items()
    ], others


_CLOSE_WAIT: dict[DrainReason, str] = {
    CloseReason.DRAINED: "drain",
    CloseReason.AGED: "age",
}


class Session:
    """The session of one subscriber; the module's docstring has states and events."""

    __slots__ = (
        "_buffer_limit_bytes",
        "_is_paused",
        "_last_rdy",
        "_lifecycle",
        "_outbox",
        "_runner",
        "_sources",
        "_unfinished_batches",
        "_window",
        "delivered",
        "options",
    )

    def __init__(self, options: SessionOptions, *, now: float) -> None:
        self.options = options
        self.delivered = 0
        """Number of messages put into frames for the client."""
        self._window = Window(options.max_in_flight, options.observer)
        self._outbox = Outbox(options.topic, options.channel, options.observer)
        self._sources: dict[int, IdentifyResponse] = {}
        self._buffer_limit_bytes = options.buffer_bytes
        """Maximum bytes that wait for the client; `on_buffer_limit` lowers it for a while."""
        self._last_rdy = -1
        """The RDY of the last `SetReady`."""
        self._is_paused = False
        """True while the channel is paused at nsqd."""
        self._lifecycle = Lifecycle(
            now=now,
            slow_consumer_s=options.slow_consumer_s,
            broker_outage_s=options.broker_outage_s,
        )
        self._unfinished_batches: list[list[str]] = []
        """
        With ack=auto: the deliveries in frames that the socket has not written yet.

        One list of delivery ids for each batch.
        """
        self._runner = CommandRunner(options, self._window, self._outbox, self._sources)

    @property
    def channel(self) -> str:
        """The channel as frames to the client name it; empty for a viewer not subscribed yet."""
        return self._outbox.channel

    @channel.setter
    def channel(self, channel: str) -> None:
        """Set the channel; it must be known before SUB is sent."""
        self._outbox.channel = channel

    # From NSQ

    def on_source_opened(
        self, source: int, answer: IdentifyResponse, authorization: AuthResponse | None = None
    ) -> list[Action]:
        """
        Add a source, and tell the client: SUB for its first source, NOP with the status for others.

        *answer* is nsqd's response to IDENTIFY, *authorization* its response to AUTH; None if it
        required none. The response to the client's AUTH, if one is due, goes first.
        """
        self._sources[source] = answer
        self._lifecycle.on_broker()
        self._runner.respond_to_auth(authorization)
        # SUB goes only to a client that has none: after AUTH or a lost nsqd, it gets the status.
        if self._lifecycle.is_subscribed:
            self._send_status([])
        else:
            self._send_subscribed(answer.msg_timeout)
        return self._update_rdy()

    def on_no_source(self, msg_timeout_ms: int, now: float) -> list[Action]:
        """
        Called when the gateway has subscribed, but no nsqd has the topic yet.

        The client gets SUB as usual: messages follow once an nsqd has the topic. *msg_timeout_ms*
        is the timeout to name in SUB.
        """
        self._lifecycle.on_last_broker_lost(now)
        self._runner.respond_to_auth(None)
        if not self._lifecycle.is_subscribed:
            self._send_subscribed(msg_timeout_ms)
        return self._update_rdy()

    def _send_subscribed(self, msg_timeout_ms: int) -> None:
        """Send the client the SUB frame, and then the status if the channel is paused."""
        self._runner.msg_timeout_ms = msg_timeout_ms
        self._lifecycle.on_subscribed()
        names = (self._outbox.topic, self._outbox.channel)
        self._outbox.add_answer(subscribed_response(names, self._window.size, msg_timeout_ms))
        if self._is_paused:
            self._send_status([])

    def _send_status(self, lost_ids: list[str]) -> None:
        """Send the client NOP: status, and the ids of deliveries that it lost with a source."""
        nsqds = len(self._sources)
        self._outbox.add_answer(status_response(nsqds, lost_ids, is_paused=self._is_paused))

    def on_source_lost(self, source: int, now: float) -> list[Action]:
        """
        Remove a source, and send the client the ids of deliveries from it that it holds.

        The client can no longer acknowledge those; nsqd delivers their messages again.
        """
        self._sources.pop(source, None)
        if not self._sources:
            self._lifecycle.on_last_broker_lost(now)
        self._outbox.take_messages(source)
        self._send_status(self._window.lose(source))
        return self._add_follow_ups([], now)

    def drop_sources(self, now: float) -> list[Action]:
        """
        Remove all sources before a new subscription, and requeue their messages.

        The client is sent the ids of its deliveries: they are lost to it.
        """
        self._last_rdy = 0  # the first source of the new subscription sets RDY again
        # RDY 0 goes first, or nsqd would deliver the requeued messages back at once.
        actions: list[Action] = [] if self.options.is_viewer else [SetReady(0)]
        unsent = self._outbox.take_messages()
        for source in list(self._sources):
            ids = self._window.answerable(source, now) + unsent.get(source, [])
            actions += requeue_actions({source: ids}, 0, RequeueCause.RESUBSCRIBE)
            del self._sources[source]
            self._send_status(self._window.lose(source))
        self._lifecycle.on_last_broker_lost(now)
        return actions

    def on_messages(
        self, source: int, messages: list[Message], now: float, sent_after: float | None = None
    ) -> list[Action]:
        """
        Queue *messages* of *source* for the client; once a close has begun, requeue them.

        Their timeout at nsqd started at *sent_after* or later; None means *now*.
        """
        actions: list[Action] = []
        window, outbox, options = self._window, self._outbox, self.options
        if window.may_supersede:
            window.refuse_earlier_deliveries(source, messages)
            # Superseded deliveries are overdue, and lower RDY.
            if self._rdy != self._last_rdy:
                actions = self._update_rdy()
        # None: `drop_sources` has removed the source, but its connection is not closed yet.
        answer = self._sources.get(source)
        is_wanted = self._lifecycle.wants_messages
        if answer is None or not is_wanted:
            cause = RequeueCause.RESUBSCRIBE if is_wanted else self._lifecycle.cause
            return actions + requeue_actions({source: [each.id for each in messages]}, 0, cause)
        if options.max_attempts:
            requeue_delayed, messages = split_over_attempts(source, messages, options)
            actions += requeue_delayed
            if not messages:
                return actions
        batch = DeliveryBatch.of_source(source, answer, now if sent_after is None else sent_after)
        # Queued even if the buffer is full: nsqd has sent them, and counts them as in flight.
        outbox.add_messages(batch, messages)
        if outbox.size_bytes > self._buffer_limit_bytes:
            actions += self._check_buffer(now)
        return actions

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return by source the number of messages that nsqd counts as in flight."""
        by_source = self._window.in_flight()
        self._outbox.count_by_source(by_source)
        return by_source

    def on_ack_refused(self, frame: ErrorFrame, source: int | None = None) -> list[Action]:
        """
        Send the client the error with which nsqd refused its earlier FIN, REQ or TOUCH.

        *source* is the connection with the error; None if it may be any. A delivery whose TOUCH was
        refused is no longer in flight at nsqd: it leaves the window, and RDY rises.
        """
        sources = list(self._sources) if source is None else [source]
        self._runner.acks.on_broker_refused(frame, sources)
        # -inf: a close may be complete now, but only `wake` ends it because of its deadline.
        return self._update_rdy() + self._end_when_done(-math.inf)

    def on_published(self, publish: PublishBodies, refusal: Refusal | None) -> list[Action]:
        """
        Send the client the response to its publish: *refusal*, or OK if that is None.

        *publish* is an earlier action of this session.
        """
        self._runner.published(publish, refusal)
        return self._end_when_done(-math.inf)

    def on_channel_gone(self) -> list[Action]:
        """Send the client CHANNEL_GONE, and end: the channel was deleted at nsqd."""
        if self._lifecycle.is_ended:
            return []
        self._outbox.add_answer(channel_gone_error((self._outbox.topic, self._outbox.channel)))
        return self._end(CloseReason.CHANNEL_GONE)

    def on_paused(self, is_paused: bool) -> list[Action]:  # noqa: FBT001 - a listener's signature
        """Called when nsqd paused or unpaused the channel: send the client the status."""
        is_changed = is_paused is not self._is_paused and self._lifecycle.is_subscribed
        self._is_paused = is_paused
        # Before SUB nothing is sent: `_send_subscribed` reports a paused channel.
        if is_changed:
            self._send_status([])
        return []

    def use_leases(self, lease_of: Callable[[str, float], str]) -> None:
        """Add to each message the lease that *lease_of* returns for (delivery id, s left)."""
        self._outbox.lease_of = lease_of

    def acknowledge(
        self, verb: str, delivery_ids: list[str], delay_ms: int, now: float
    ) -> tuple[list[Action], list[str]]:
        """
        Apply FIN, REQ after *delay_ms*, or TOUCH to deliveries whose leases the client sent.

        Returns the actions, and the ids that are refused. For a client without commands.
        """
        if self._lifecycle.is_ended:
            return [], delivery_ids
        actions, refused = self._runner.acknowledge(verb, delivery_ids, delay_ms, now)
        return self._add_follow_ups(actions, now), refused

    # To the client

    @property
    def has_frame(self) -> bool:
        """True while `next_frame` has something to return."""
        return bool(self._outbox)

    def next_frame(self, now: float) -> bytes | None:
        """
        Return the next text frame for the client, without a newline at its end.

        Returns None if nothing waits.
        """
        lines, deliveries = self._outbox.take(self._window, now)
        for ids in deliveries:
            self.delivered += len(ids)
        # ack=auto: `on_writable` finishes them, once the transport has written the frame.
        if self.options.is_auto_ack:
            self._unfinished_batches += deliveries
        return encode_frame(lines) if lines else None

    def on_writable(self, now: float) -> list[Action]:
        """
        Return the actions that follow once the socket has written all frames so far.

        With ack=auto, these finish the messages in the frames. Must be called whenever the socket
        becomes writable, even if no frame was pending.
        """
        actions: list[Action] = []
        # The client reads again: messages that expired meanwhile no longer lower RDY.
        self._outbox.expired = 0
        # -1 has paused an empty buffer until now; see `on_buffer_limit`.
        self._buffer_limit_bytes = max(0, self._buffer_limit_bytes)
        if self._unfinished_batches:
            actions = self._runner.acks.finish_written(self._unfinished_batches, now)
            self._unfinished_batches = []
        return self._add_follow_ups(actions, now)

    @property
    def is_slow(self) -> bool:
        """True while more bytes wait for the client than its buffer may hold."""
        return self._lifecycle.is_slow

    def on_buffer_limit(self, now: float) -> list[Action]:
        """
        Stop reading from nsqd until the client has taken half of the bytes that wait for it.

        If none wait in the session, because the transport holds all of them, stop reading until the
        transport is writable.
        """
        if self._lifecycle.is_ended or self.options.is_viewer:
            return []
        size_bytes = self._outbox.size_bytes
        self._buffer_limit_bytes = min(
            self._buffer_limit_bytes, size_bytes // 2 if size_bytes else -1
        )
        return self._check_buffer(now)

    def _check_buffer(self, now: float) -> list[Action]:
        """Stop reading from nsqd if more bytes than the limit wait; otherwise read again."""
        is_over = self._outbox.size_bytes > self._buffer_limit_bytes
        if is_over is self._lifecycle.is_slow:
            return []
        if is_over:
            self._lifecycle.on_slow_client(now)
        else:
            self._lifecycle.on_client_caught_up()
            self._buffer_limit_bytes = self.options.buffer_bytes
        if self.options.is_viewer:
            return []  # other viewers share the sources
        return [PauseReading() if is_over else ResumeReading()]

    # From the client

    @property
    def wants_commands(self) -> bool:
        """
        True if the client's next command would run at once.

        Otherwise the caller should stop reading from the client: commands wait for their turn, AUTH
        is being verified, too many responses wait, or too many publishes have no response yet.
        Commands received anyway are queued.
        """
        return self._runner.wants_commands

    def receive(self, text: str, now: float) -> list[Action]:
        """Run the commands of one text frame, as many as one turn allows; queue the rest."""
        return (
            []
            if self._lifecycle.is_ended
            else self._after_commands(self._runner.receive(text, now), now)
        )

    def run_waiting(self, now: float) -> list[Action]:
        """Run the commands that were queued while the client's AUTH was being verified."""
        return self._after_commands(self._runner.run_waiting(now), now)

    def _after_commands(self, actions: list[Action], now: float) -> list[Action]:
        """End or begin to close if the commands require it, and add the actions that follow."""
        runner = self._runner
        if runner.close_deadline < math.inf and not self._lifecycle.is_client_closing:
            self._lifecycle.begin_close(runner.close_deadline, CloseReason.DONE)
        if runner.close_reason is not None:
            actions += self._end(runner.close_reason)
        return self._add_follow_ups(actions, now)

    # AUTH

    @property
    def unused_secret(self) -> Secret | None:
        """The secret of an AUTH that no broker has required; None once it is used."""
        return self._runner.auth.unused_secret

    def keep_unused(self, secret: Secret) -> None:
        """Keep *secret* for a broker that connects later and requires AUTH."""
        self._runner.auth.unused_secret = secret

    def set_auth_response(self, response: AuthResponse) -> None:
        """Let *response* be the response to the client's AUTH, instead of the broker's."""
        self._runner.auth.own_response = response

    def on_renewed(self, ref: Ref, response: AuthResponse) -> list[Action]:
        """Send the client the *response* to its renewed AUTH, which had *ref*."""
        self._outbox.add_answer(ResponseOut("AUTH", ref, response))
        return []

    def on_renewal_refused(self, ref: Ref, code: str, message: str, now: float) -> list[Action]:
        """
        Send the client the error of its renewed AUTH; the earlier secret goes on.

        Each counts towards the errors that end the session: checking a signature takes time.
        """
        self._runner.refuse(ErrorOut("AUTH", ref, code, message, retryable=False), now)
        return self._after_commands([], now)

    def on_secret_missing(self, now: float) -> list[Action]:
        """
        Called when a broker or --require-auth requires AUTH, and the subscription has no secret.

        Subscribe again with the client's unused secret; without one, wait for the client's AUTH.
        """
        if self._lifecycle.is_ended:
            return []
        # To wait for AUTH is no outage; it has a deadline of its own.
        self._lifecycle.on_broker()
        secret = self._runner.auth.require(now, is_subscribed=self._lifecycle.is_subscribed)
        return [] if secret is None else [ResubscribeWithSecret(secret)]

    def on_auth_failed(
        self, code: str, message: str, reason: CloseReason, *, retryable: bool = False
    ) -> list[Action]:
        """Send the client the error why subscribing with its secret failed, and end."""
        if self._lifecycle.is_ended:
            return []
        self._outbox.add_answer(self._runner.auth.take_error(code, message, retryable=retryable))
        return self._end(reason)

    # Time, and the end

    def _add_follow_ups(self, actions: list[Action], now: float) -> list[Action]:
        """Add to *actions* the RDY, pause and close actions that the new state requires."""
        outbox, lifecycle = self._outbox, self._lifecycle
        # The usual case after a FIN: nothing follows.
        if (
            self._rdy == self._last_rdy
            and lifecycle.wants_messages
            and not lifecycle.is_slow
            and outbox.size_bytes <= self.options.buffer_bytes
        ):
            return actions
        # RDY goes first: nsqd would deliver requeued messages back at once under a higher RDY.
        before = self._update_rdy()
        return before + actions + self._check_buffer(now) + self._end_when_done(now)

    @property
    def _rdy(self) -> int:
        """
        The RDY to send while messages are wanted.

        RDY is lower by the overdue and the expired messages, which nsqd does not count as in
        flight: the client still holds the overdue ones, and must read before it gets more for the
        expired ones.
        """
        # Computed only here, so that every caller lowers it by the same numbers.
        return max(0, self._window.room - self._outbox.expired)

    def _update_rdy(self) -> list[Action]:
        """Return `SetReady` if RDY has changed; in CLOSE_WAIT also requeue unsent messages."""
        lifecycle = self._lifecycle
        if lifecycle.is_ended or not lifecycle.is_subscribed or self.options.is_viewer:
            return []
        actions: list[Action] = []
        ready = self._rdy
        if not lifecycle.wants_messages:
            ready = 0
            # Messages that were not sent go to other consumers.
            actions = requeue_actions(self._outbox.take_messages(), 0, lifecycle.cause)
        if ready != self._last_rdy:
            self._last_rdy = ready
            # Before the requeues, or nsqd would deliver the messages back at once.
            actions.insert(0, SetReady(ready))
        return actions

    def _end_when_done(self, now: float) -> list[Action]:
        """End if a close has begun, and it is complete or past its deadline."""
        reason = self._lifecycle.closed_reason(is_open=self.is_open, now=now)
        return [] if reason is None else self._end(reason)

    def _end(self, reason: CloseReason) -> list[Action]:
        """End, and return `CloseSocket`; nothing if the session had ended before."""
        return [CloseSocket(reason)] if self._enter_ended() else []

    def _enter_ended(self) -> bool:
        """End: run no more commands, accept no responses. False if it had ended before."""
        self._runner.stop()
        self._outbox.close()
        return self._lifecycle.end()

    def wake(self, now: float) -> list[Action]:
        """Run the timers and the queued commands that are due at *now*; see `next_wake`."""
        # First, so that the RDY which follows does not count what nsqd is about to time out.
        self._window.expire(now)
        self._outbox.expire(now)
        actions = self._after_commands(
            [] if self._lifecycle.is_ended else self._runner.run_waiting(now), now
        )
        if now >= self._runner.auth.due and not self._lifecycle.is_ended:
            self._outbox.add_answer(auth_first(None))
            actions += self._end(CloseReason.NO_AUTH)
        reason = self._lifecycle.due_reason(now)
        return actions if reason is None else actions + self._end(reason)

    def next_wake(self) -> float | None:
        """
        Return when to call `wake`, in monotonic seconds; None for never.

        A time that has passed means at once: queued commands may run in the next turn.
        """
        if self._lifecycle.is_ended:
            return None
        due = self._lifecycle.due
        for other in (self._window.due, self._outbox.due, self._runner.auth.due):
            if other < due:  # noqa: PLR1730 - runs after every event, and min() is slower
                due = other
        if self._runner.queue is not None:
            due = min(due, self._runner.next_due)
        return None if due == math.inf else due

    def has_commands_due(self, now: float) -> bool:
        """Return True if `wake` would run queued commands."""
        return self._runner.next_due <= now

    @property
    def stats(self) -> SessionStats:
        """The counts of this session now."""
        return SessionStats(len(self._window), self._outbox.size_bytes, self._window.timed_out)

    @property
    def is_open(self) -> bool:
        """True while the client holds deliveries, or commands or publishes have no response."""
        return len(self._window) > 0 or self._runner.is_busy

    def drain(
        self, reason: DrainReason, *, close_at: float, reconnect_after_ms: int
    ) -> list[Action]:
        """
        Announce the close to the client by CLOSE_WAIT, once, and end at *close_at* at the latest.

        With the reason AGED, the session ends as soon as it is no longer `is_open`. With DRAINED,
        it ends at *close_at*, or earlier if the client sends CLS. *reconnect_after_ms* is the time
        that the client should wait before it reconnects.
        """
        if self._lifecycle.begin_close(close_at, reason):
            self._outbox.add_answer(
                close_wait_response(_CLOSE_WAIT[reason], reconnect_after_ms=reconnect_after_ms)
            )
        return self._update_rdy() + self._end_when_done(-math.inf)

    def close(self, now: float) -> list[Action]:
        """
        End, and requeue all messages that the client has not acknowledged, oldest first.

        Called when the WebSocket closes, for whatever reason. Idempotent.
        """
        self._enter_ended()
        delay_ms = self.options.requeue_on_close_ms
        # Deliveries first: they are older than the messages that were not sent.
        left = self._window.take_all(now)
        for source, unsent in self._outbox.take_messages().items():
            left.setdefault(source, []).extend(unsent)
        if self.options.is_viewer:
            return []  # the fan-out acknowledges the messages
        # Resume reading, so that messages still in the sockets are read and requeued, too.
        resume = [ResumeReading()] if self._lifecycle.is_slow else []
        # RDY 0 goes first, or nsqd would deliver the requeued messages back at once.
        return [SetReady(0), *requeue_actions(left, delay_ms, self._lifecycle.cause), *resume]
