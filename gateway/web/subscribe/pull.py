"""
Pulls: consume over plain HTTP requests, with leases in place of a connection.

A `PullConsumer` subscribes for all pulls of one topic, channel, secret and caller, on the machinery
that sockets use (`DedicatedUpstream`), and drives a `PullSession`. `Pulls` is the registry of all
consumers, and of the event streams, whose leases are answered in the same way.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

from gateway.aio import call_after_reads, spawn
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    LimitReached,
    NoBroker,
    copy_error,
)
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.leases import OWNER_BYTES, Lease, LeaseKey, LeaseWriter, Owner
from gateway.session.pulls import (
    LEASE_LOST,
    AnswerPull,
    LeasedBatch,
    Pull,
    PullAction,
    PullOptions,
    PullSession,
)
from gateway.telemetry import fast_counter, gauge, get_logger
from gateway.web.auth import AccessPolicy, Principal
from gateway.web.errors import with_names
from gateway.web.http.app_request import AppRequest
from gateway.web.metrics import DELIVERED
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.subscribe.request import PullParams
from gateway.web.subscribe.upstream import DedicatedUpstream, UpstreamContext

logger = get_logger()

_POLL_INTERVAL_S = 0.02
"""Interval at which `drain` checks whether all leases are answered."""
_IDLE_CHECK_S = 1.0
"""Consumers are closed at most this much after their idle time."""
_MAX_HOLDER = 2**32 - 1

_OPEN_CONSUMERS = gauge("pull_consumers_open", "Open consumers for POST /pull.")
_WAITING = gauge("pulls_waiting", "Pulls that wait for messages.")
_LEASES = gauge("leases_open", "Leases of pulled messages, neither answered nor ended.")
_ACKS = fast_counter(
    "lease_acks_total",
    "Leases in POST /ack, by verb and result: OK, or the code of the refusal.",
    ("verb", "result"),
    zeros=[
        (verb, result)
        for verb in ("FIN", "REQ", "TOUCH")
        for result in ("OK", f"E_{verb}_FAILED", LEASE_LOST, "E_INVALID", "OUTCOME_UNKNOWN")
    ],
)


class PullKey(NamedTuple):
    """The key of a consumer: pulls share one if all four are equal."""

    topic: str
    channel: str
    secret: Secret | None
    """The secret for nsqd."""
    caller: Hashable
    """`Principal.quota_key`: leases are for this caller only."""


class AckVerb(NamedTuple):
    """What to do with leases: FIN; REQ after *time_ms*; or TOUCH, to end *time_ms* from now."""

    name: str
    time_ms: int = 0


class LeaseRefusal(NamedTuple):
    """Why a FIN, REQ or TOUCH of a lease is refused; docs/pull.md lists the codes."""

    code: str
    message: str


class LeaseHolder(Protocol):
    """A consumer or an event stream of this process, whose clients answer by leases."""

    def answer(self, verb: AckVerb, delivery_ids: list[str]) -> Mapping[str, str]:
        """Carry out *verb* for the deliveries; return the codes of refusals by delivery id."""


@dataclass(frozen=True, kw_only=True)
class PullLimits:
    """The limits of pulls in one process."""

    max_pulls: int = 1_000
    """Pulls that wait."""
    max_leases: int = 100_000
    max_leases_per_caller: int = 0
    """0 is no limit."""
    idle_s: float = 30.0
    """Time without a pull after which a consumer is closed."""
    session: PullOptions = field(default_factory=PullOptions)


class LeaseIssuer:
    """
    The key of leases, and this process as their owner.

    Args:
        key: Shared by all replicas; None: random, so that only this process recognizes its leases.
        address: host:port at which other replicas reach this process; empty: none does.
        worker: Number of this worker process behind that address.
    """

    def __init__(self, key: bytes | None = None, *, address: str = "", worker: int = 0) -> None:
        self.key = LeaseKey(secrets.token_bytes(32) if key is None else key)
        self.owner = Owner(secrets.token_bytes(OWNER_BYTES), address, worker)

    def caller_tag(self, principal: Principal) -> bytes:
        """Return what stands for the caller in a lease; a renewed token has the same."""
        return self.key.caller_tag(_caller_bytes(principal.quota_key))

    def writer(self, holder: int, principal: Principal) -> LeaseWriter:
        """Return a writer of the leases of one holder for one caller."""
        return LeaseWriter(self.key, self.owner, holder, self.caller_tag(principal))


def _caller_bytes(caller: Secret | tuple[str, str] | None) -> bytes:
    if caller is None:
        return b""
    if isinstance(caller, Secret):
        return b"secret\0" + caller.reveal()
    return b"identity\0" + "\0".join(caller).encode()


@dataclass(frozen=True, kw_only=True)
class PullContext:
    """What all consumers share."""

    upstream: UpstreamContext
    options_of: Callable[[str, str], SubscriptionOptions]
    """Returns what to subscribe with, without a secret, for (topic, channel)."""
    access: AccessPolicy
    publishing: SocketPublishing
    issuer: LeaseIssuer
    limits: PullLimits
    check_files: Callable[[], None]
    """Raises LimitReached if one more consumer needs more open files than are left."""


class PullAnswer(NamedTuple):
    """The messages that answer a pull, and by batch the lease of each."""

    batches: list[LeasedBatch]
    leases: list[list[str]]
    consumer: PullConsumer

    def hand_back(self) -> None:
        """Requeue the messages: the client left before it had the whole response."""
        self.consumer.hand_back(self.batches)


class PullConsumer:
    """One consumer, from its first pull until it is idle; a `LeaseHolder`."""

    def __init__(self, pulls: Pulls, key: PullKey, principal: Principal) -> None:
        self.key = key
        self.number = pulls.add_holder(self)
        self._pulls = pulls
        self._loop = asyncio.get_running_loop()
        context = pulls.context
        options = context.options_of(key.topic, key.channel)
        self._upstream = DedicatedUpstream(context.upstream, options, self)
        self._session = PullSession(context.limits.session)
        self._writer = context.issuer.writer(self.number, principal)
        self._answers: dict[Pull, asyncio.Future[list[LeasedBatch]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._is_serve_scheduled = False
        self._last_pull_at = self._loop.time()
        self._joining = 0
        """Number of pulls that wait for the subscription."""
        self._error: Exception | None = None
        self.is_closed = False
        self.counted_leases = 0
        """What `Pulls.count` knows of."""
        self.counted_pulls = 0
        self._start_task = spawn("start a pull consumer", self._start())

    async def _start(self) -> None:
        try:
            await self._upstream.subscribe(self.key.secret)
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("pull consumer failed", topic=self.key.topic)
            # A copy, because the traceback of the original keeps this frame alive.
            self._error = copy_error(error)
            # A later pull opens another consumer, and so makes another attempt.
            self._pulls.forget(self)
            self._loop.call_soon(self._pulls.close, self)

    async def pull(self, params: PullParams, wait_s: float, client: AppRequest) -> PullAnswer:
        """
        Wait for messages, at most *wait_s* or until *client* has left, and lease them.

        Raises:
            AuthRequired: nsqd requires AUTH, and there is no secret.
            BrokerRefused: nsqd refuses the secret, or the subscription.
            NoBroker: No nsqd can be reached.
            LimitReached: All messages that nsqd delivers at a time are leased.
        """
        deadline = self._loop.time() + wait_s
        self._joining += 1
        try:
            if not self._start_task.done():
                # Unlike awaiting the task, this does not cancel it when one pull is cancelled.
                await asyncio.wait({self._start_task})
        finally:
            self._joining -= 1
            self._last_pull_at = self._loop.time()
        if self._error is not None:
            raise copy_error(self._error)
        if not self._upstream.sources and not self._upstream.awaits_topic:
            raise NoBroker("no nsqd of the topic is connected; try again later")
        if self._session.is_full:
            most = self._session.options.max_leases
            raise LimitReached(
                f"all {most} messages that may be in flight here are leased; answer some first",
                "leases_full",
            )
        if client.has_left():
            return PullAnswer([], [], self)
        pull = Pull(params.max_messages, params.lease_ms / 1000, deadline)
        answer: asyncio.Future[list[LeasedBatch]] = self._loop.create_future()
        self._answers[pull] = answer
        client.on_abandon = answer.cancel
        self._apply(self._session.begin, pull)
        try:
            batches = await answer
        except asyncio.CancelledError:
            self._give_back(pull, answer)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return PullAnswer([], [], self)  # `on_abandon` has cancelled the future, not this task
        finally:
            client.on_abandon = None
            self._answers.pop(pull, None)
        if client.has_left():
            self.hand_back(batches)
            return PullAnswer([], [], self)
        now_ms = time.time_ns() // 1_000_000
        leases = [
            self._writer.write(each.delivery_ids, now_ms + int(each.lease_s * 1000))
            for each in batches
        ]
        return PullAnswer(batches, leases, self)

    def _give_back(self, pull: Pull, answer: asyncio.Future[list[LeasedBatch]]) -> None:
        """Forget *pull*, whose client has left, or requeue what it would have got."""
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self.hand_back(answer.result())
        else:
            self._execute(self._session.cancel(pull))

    def hand_back(self, batches: Sequence[LeasedBatch]) -> None:
        """Requeue messages whose client has left before it got them."""
        ids = [delivery_id for batch in batches for delivery_id in batch.delivery_ids]
        if ids and not self.is_closed:
            self.answer(AckVerb("REQ"), ids)

    def answer(self, verb: AckVerb, delivery_ids: list[str]) -> Mapping[str, str]:
        """Carry out *verb* for the deliveries; return the codes of refusals by delivery id."""
        session, now = self._session, self._loop.time()
        if verb.name == "FIN":
            actions, refused = session.finish(delivery_ids, now)
        elif verb.name == "REQ":
            actions, refused = session.requeue(delivery_ids, verb.time_ms, now)
        else:
            actions, refused = session.touch(delivery_ids, verb.time_ms / 1000, now)
        self._execute(actions)
        return refused

    # Events

    def _apply(self, handler: Callable[..., list[PullAction]], *arguments: object) -> None:
        self._execute(handler(*arguments, self._loop.time()))

    def _execute(self, actions: Sequence[PullAction]) -> None:
        for action in actions:
            if isinstance(action, AnswerPull):
                self._on_answer(action)
            else:
                self._upstream.execute(action)  # type: ignore[arg-type] # no action for a socket
        self._pulls.count(self, self._session.lease_count, self._session.waiting_count)
        if not self.is_closed and (due := self._session.next_wake()) is not None:
            self._set_timer(due)

    def _on_answer(self, action: AnswerPull) -> None:
        DELIVERED.counts["pull",] += sum(len(each.messages) for each in action.batches)
        answer = self._answers.get(action.pull)
        if answer is None or answer.done():
            # Its client left in this turn of the event loop.
            self._loop.call_soon(self.hand_back, action.batches)
        else:
            answer.set_result(action.batches)

    def _set_timer(self, due: float) -> None:
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._due, self._timer = math.inf, None
        if not self.is_closed:
            self._apply(self._session.wake)

    def is_idle_since(self, now: float) -> float:
        """Return for how many s nobody has pulled or holds a lease; 0 while somebody does."""
        is_used = self._joining or not self._session.is_idle
        return 0.0 if is_used else now - self._last_pull_at

    # From NSQ: the listener of the upstream

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return by source the number of messages that are in flight at nsqd."""
        return self._session.in_flight_by_source()

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """Take *messages*, and answer the pulls once this turn's other reads have come."""
        self._upstream.trace_messages(source, messages)
        now = self._loop.time()
        self._execute(self._session.on_messages(source, messages, now, sent_after))
        if not self._is_serve_scheduled:
            self._is_serve_scheduled = True
            call_after_reads(self._serve)

    def _serve(self) -> None:
        self._is_serve_scheduled = False
        if not self.is_closed:
            self._apply(self._session.serve)

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Called when nsqd refused a FIN, REQ or TOUCH."""
        logger.info(
            "lease refused by nsqd",
            topic=self.key.topic,
            channel=self.key.channel,
            code=frame.code,
            reason=frame.description,
        )
        self._execute(self._session.on_ack_refused(source, frame))

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Called when an nsqd is connected."""
        self._upstream.add_source(source, answer)
        self._session.on_source_opened(source, answer)

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Called when an nsqd connection is lost, and with it the leases of its messages."""
        del error
        self._upstream.remove_source(source)
        self._execute(self._session.on_source_lost(source))

    def on_channel_gone(self, address: str) -> None:
        """Called when the channel was deleted at nsqd: the next pull creates it again."""
        logger.info("channel deleted", nsqd=address, topic=self.key.topic, channel=self.key.channel)
        self._pulls.close(self)

    def on_channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a listener's signature
        """Do nothing: pulls wait, and are answered without messages."""

    def on_secret_missing(self) -> None:
        """Called when an nsqd requires AUTH, and there is no secret: end, so that pulls tell it."""
        if not self._upstream.sources:
            self._fail(AuthRequired("nsqd requires AUTH, and the request has no secret"))

    def auth_addresses(self) -> Sequence[str]:
        """Return the addresses of the connected nsqds that require AUTH."""
        return self._upstream.auth_addresses()

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Called when nsqd no longer accepts the secret."""
        self._fail(with_names(error, self.key.topic, self.key.channel))

    def _fail(self, error: GatewayError) -> None:
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(copy_error(error))
        self._error = copy_error(error)
        self._pulls.close(self)

    # The end

    def drain(self) -> None:
        """Answer the waiting pulls, and take no more messages; leases can still be answered."""
        self._apply(self._session.drain)

    def close(self) -> None:
        """End all leases and hand their messages back; `leave_nsqd` follows."""
        self._apply(self._session.close)
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._pulls.count(self, 0, 0)

    async def leave_nsqd(self) -> None:
        """Close the connections to nsqd."""
        if not self._start_task.done():
            self._start_task.cancel()
            await asyncio.wait({self._start_task})
        await self._upstream.unsubscribe()
        self._upstream.release()


class Pulls:
    """All pull consumers of this process, and every holder of leases."""

    def __init__(self, context: PullContext) -> None:
        self.context = context
        self._consumers: dict[PullKey, PullConsumer] = {}
        """The consumers that pulls can join."""
        self._holders: dict[int, LeaseHolder] = {}
        """By number; a consumer that is closing is in it no more."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Closed consumers, until they have left nsqd."""
        self._numbers = count(1)
        self._leases = 0
        self._waiting = 0
        self._leases_by_caller: dict[Hashable, int] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.is_draining = False

    def __len__(self) -> int:
        """Return the number of consumers."""
        return len(self._consumers)

    @property
    def lease_count(self) -> int:
        """Number of leases of pulled messages."""
        return self._leases

    async def pull(
        self, principal: Principal, params: PullParams, client: AppRequest
    ) -> PullAnswer:
        """
        Return messages of the channel, each with a lease, as soon as there are any.

        Waits at most ``params.wait_ms``, and never beyond the end of the caller's token.

        Raises:
            GatewayError: See `PullConsumer.pull`; LimitReached: a limit of pulls or leases.
        """
        access, publishing = self.context.access, self.context.publishing
        self._check_limits(principal)
        wait_s = params.wait_ms / 1000
        identity = principal.identity
        if identity is not None and access.control is not None:
            wait_s = min(wait_s, max(0.0, identity.expires_at - access.control.clock()))
        key = PullKey(params.topic, params.channel, principal.secret, principal.quota_key)
        if identity is None:
            return await self._consumer(key, principal).pull(params, wait_s, client)
        secret = publishing.secret_for_nsqd(principal)
        try:
            consumer = self._consumer(key._replace(secret=secret), principal)
            return await consumer.pull(params, wait_s, client)
        except AuthRequired:
            if secret is not None:
                raise
            # No nsqd for publishing requires AUTH, but one of the topic does.
            forced = access.secret_for_nsqd(principal, requires_auth=True)
            consumer = self._consumer(key._replace(secret=forced), principal)
            return await consumer.pull(params, wait_s, client)

    def _consumer(self, key: PullKey, principal: Principal) -> PullConsumer:
        """Return the consumer for *key* that pulls can join; open one if there is none."""
        consumer = self._consumers.get(key)
        if consumer is None:
            self.context.check_files()
            consumer = self._consumers[key] = PullConsumer(self, key, principal)
            _OPEN_CONSUMERS.set(len(self._consumers))
            self._schedule_sweep()
        return consumer

    def _check_limits(self, principal: Principal) -> None:
        limits = self.context.limits
        if self._waiting >= limits.max_pulls:
            raise LimitReached(
                f"{limits.max_pulls} pulls wait in this gateway, which is the limit (--max-pulls); "
                "try again later",
                "pulls_full",
            )
        if self._leases >= limits.max_leases:
            raise LimitReached(
                f"{limits.max_leases} messages are leased, which is the limit (--max-leases); "
                "answer some, or try again later",
                "leases_full",
            )
        most = limits.max_leases_per_caller
        if 0 < most <= self._leases_by_caller.get(principal.quota_key, 0):
            raise LimitReached(
                f"this caller has {most} leases, which is the limit for one caller "
                "(--max-leases-per-caller); answer some first",
                "leases_full",
            )

    def count(self, consumer: PullConsumer, leases: int, waiting: int) -> None:
        """Count the leases and waiting pulls of *consumer*."""
        if leases != consumer.counted_leases:
            caller = consumer.key.caller
            more = leases - consumer.counted_leases
            self._leases += more
            of_caller = self._leases_by_caller.get(caller, 0) + more
            if of_caller:
                self._leases_by_caller[caller] = of_caller
            else:
                del self._leases_by_caller[caller]
            consumer.counted_leases = leases
            _LEASES.set(self._leases)
        if waiting != consumer.counted_pulls:
            self._waiting += waiting - consumer.counted_pulls
            consumer.counted_pulls = waiting
            _WAITING.set(self._waiting)

    # Holders of leases

    def add_holder(self, holder: LeaseHolder) -> int:
        """Register *holder*, and return its number."""
        number = next(self._numbers) & _MAX_HOLDER
        self._holders[number] = holder
        return number

    def remove_holder(self, number: int) -> None:
        """Forget the holder with this number; idempotent."""
        self._holders.pop(number, None)

    def answer_own(self, verb: AckVerb, leases: Sequence[Lease]) -> list[LeaseRefusal | None]:
        """Carry out *verb* for leases of this process; return each one's refusal, None for OK."""
        by_holder: dict[int, list[str]] = {}
        for lease in leases:
            by_holder.setdefault(lease.holder, []).append(lease.delivery_id)
        failed = f"E_{verb.name}_FAILED"
        codes: dict[int, Mapping[str, str]] = {}
        is_all_done = True
        for number, delivery_ids in by_holder.items():
            # Once each: the second of two equal leases finds the first one's result.
            distinct = dict.fromkeys(delivery_ids, failed)
            holder = self._holders.get(number)
            refused = distinct if holder is None else holder.answer(verb, list(distinct))
            codes[number] = refused
            is_all_done &= not refused and len(distinct) == len(delivery_ids)
        results: list[LeaseRefusal | None] = [None] * len(leases)
        if not is_all_done:
            seen: set[tuple[int, str]] = set()
            for place, lease in enumerate(leases):
                name = lease.holder, lease.delivery_id
                is_second = name in seen and verb.name != "TOUCH"
                code = failed if is_second else codes[lease.holder].get(lease.delivery_id)
                results[place] = _refusal(code, lease) if code else None
                seen.add(name)
        count_acks(verb, results)
        return results

    # The end

    def forget(self, consumer: PullConsumer) -> None:
        """Let no other pull join *consumer*; idempotent."""
        if self._consumers.get(consumer.key) is consumer:
            del self._consumers[consumer.key]
            _OPEN_CONSUMERS.set(len(self._consumers))

    def close(self, consumer: PullConsumer) -> None:
        """Close *consumer*; its leases are handed back. Idempotent."""
        if consumer.is_closed:
            return
        self.forget(consumer)
        self.remove_holder(consumer.number)
        consumer.close()
        task = spawn("leave nsqd after pulls", consumer.leave_nsqd())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _schedule_sweep(self) -> None:
        if self._sweep is None and self._consumers:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(_IDLE_CHECK_S, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        now = asyncio.get_running_loop().time()
        for consumer in list(self._consumers.values()):
            if consumer.is_idle_since(now) >= self.context.limits.idle_s:
                self.close(consumer)
        self._schedule_sweep()

    async def drain(self, in_flight_s: float) -> None:
        """
        Answer every waiting pull, wait for the answers to leases, and hand the others back.

        Waits for at most *in_flight_s*. Pulls are refused from now on.
        """
        self.is_draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + in_flight_s
        for consumer in list(self._consumers.values()):
            consumer.drain()
        while self._leases and loop.time() < deadline:  # noqa: ASYNC110 - one poll for all
            await asyncio.sleep(min(_POLL_INTERVAL_S, deadline - loop.time()))
        await self.stop()

    async def stop(self) -> None:
        """Close all consumers, and wait until they have left nsqd; idempotent."""
        self.is_draining = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for consumer in list(self._consumers.values()):
            self.close(consumer)
        if self._leaving:
            await asyncio.wait(self._leaving)


def count_acks(verb: AckVerb, results: Sequence[LeaseRefusal | None]) -> None:
    """Count the results of *verb*, None for OK."""
    done = results.count(None)
    _ACKS.counts[verb.name, "OK"] += done
    for result in results if done < len(results) else ():
        if result is not None:
            _ACKS.counts[verb.name, result.code] += 1


def _refusal(code: str, lease: Lease) -> LeaseRefusal:
    """Return the refusal of a lease of this process."""
    late_ms = time.time_ns() // 1_000_000 - lease.ends_at_ms
    if code == LEASE_LOST:
        text = "nsqd was disconnected, or timed the message out: NSQ delivers it again"
    elif late_ms > 0:
        text = f"the lease ended {late_ms} ms ago, unless a TOUCH extended it"
    else:
        text = "the lease was answered before, or its message was handed back"
    return LeaseRefusal(code, text)
