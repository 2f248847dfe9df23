"""
Run a client's commands in batches of limited size, within its rate limit.

Commands that cannot run yet are queued: behind an AUTH that is being verified, while the client
does not read its responses, while too many of its publishes have no response, or until the next
turn. A *turn* is one iteration of the event loop; a socket runs a limited number of commands in it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, ClassVar

from gateway.errors import InvalidRequest
from gateway.protocol.frames import ErrorFrame
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.protocol.recent_acks import RecentAcks
from gateway.session.auth import Authentication, auth_first
from gateway.session.command_errors import InvalidCommand
from gateway.session.json_frames import (
    CHUNK_CHARS,
    AuthCommand,
    ClsCommand,
    Command,
    DeliveryCommand,
    DpubCommand,
    ErrorOut,
    FinCommand,
    MpubCommand,
    NopCommand,
    ParsedCommand,
    PubCommand,
    RdyCommand,
    ReqCommand,
    ResponseOut,
    TouchCommand,
    chunks,
    close_wait_response,
    decode_frame,
    decode_later,
    not_in_flight_error,
)
from gateway.session.publishing import BODIES_PER_COMMAND, Publishing
from gateway.session.types import (
    Action,
    CloseReason,
    FinishDeliveries,
    PublishBodies,
    Refusal,
    RenewSecret,
    RequeueCause,
    RequeueDeliveries,
    ResubscribeWithSecret,
    SessionOptions,
    TouchDeliveries,
)
from gateway.session.window import Outbox, Window, message_id
from gateway.token_bucket import TokenBucket

BURST_S = 1.0
"""A client may send at once what the rate limit allows in this time."""
MAX_DEBT_S = 5.0
"""The socket is closed if its waiting commands would take longer than this at the rate limit."""
MAX_ERRORS = 100
"""Number of invalid commands in a burst that get a response; one more closes the socket."""
ERRORS_FORGIVEN_PER_S = 1.0
"""Rate at which the budget of `MAX_ERRORS` refills."""
_ROUNDING_S = 1e-6
"""Tolerance for rounding errors of the error budget."""

_MAX_DELAY_MS = 2**40
"""Maximum REQ delay: far above any broker's limit, and within nsqd's 64-bit nanoseconds."""
REMEMBERED_WINDOWS = 4
"""The acknowledgments remembered, in case nsqd refuses one, in windows; see `REMEMBERED_IDS`."""
REMEMBERED_IDS = 256
"""Added to the number of `REMEMBERED_WINDOWS`; each acknowledgment takes 80 to 140 bytes."""


class AckBatch:
    """
    Merge consecutive acknowledgments into one action per source, and append it to *actions*.

    Acknowledgments are merged if they have the same verb (FIN, REQ, TOUCH) and the same delay.
    """

    __slots__ = ("_actions", "_ids", "_key")

    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions
        self._key: tuple[str, int] = ("", 0)
        self._ids: dict[int, list[bytes]] = {}

    def add(self, verb: str, ids: dict[int, list[bytes]], delay_ms: int = 0) -> None:
        """Add acknowledgments of *ids*, message ids by source; *delay_ms* is REQ's."""
        if self._key != (verb, delay_ms):
            self.flush()
            self._key = (verb, delay_ms)
        for source, source_ids in ids.items():
            self._ids.setdefault(source, []).extend(source_ids)

    def add_action(self, action: Action) -> None:
        """Append an action that is not an acknowledgment, behind all that were added before."""
        self.flush()  # keeps the order of the commands
        self._actions.append(action)

    def flush(self) -> None:
        """Append the actions of the acknowledgments added so far; must be called at the end."""
        if not self._ids:
            return
        verb, delay_ms = self._key
        for source, ids in self._ids.items():
            if verb == "FIN":
                self._actions.append(FinishDeliveries(source, ids))
            elif verb == "REQ":
                self._actions.append(RequeueDeliveries(source, ids, delay_ms, RequeueCause.CLIENT))
            else:
                self._actions.append(TouchDeliveries(source, ids))
        self._ids = {}


class AckHandler:
    """
    Apply a client's FIN, REQ and TOUCH to its window, and send it the responses.

    An acknowledgment that the window accepts may still be refused by nsqd, later.
    """

    __slots__ = ("_outbox", "_recent_acks", "_window")

    def __init__(self, window: Window, outbox: Outbox) -> None:
        self._window = window
        self._outbox = outbox
        self._recent_acks: RecentAcks[str] | None = None
        """Created with the first acknowledgment."""

    def finish(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], int]:
        """
        Apply consecutive FINs without ref, one for each of *ids*.

        Returns the message ids to finish at nsqd, by source, and the number of refused FINs. The
        client gets an error for each refused FIN, and nothing for the others.
        """
        taken, refused = self._window.take_many(ids, now)
        self._remember(ids, refused)
        # One error each, as each FIN is a command of its own.
        for delivery_id in refused:
            self._outbox.add_answer(not_in_flight_error(FinCommand(id=delivery_id), [delivery_id]))
        return taken, len(refused)

    def finish_written(self, frames: list[list[str]], now: float) -> list[Action]:
        """
        Return the FIN actions for deliveries that the socket has written to the client (ack=auto).

        *frames* has a list of delivery ids for each batch. Timed out deliveries get no FIN, because
        nsqd would refuse it.
        """
        actions: list[Action] = []
        acks = AckBatch(actions)
        for ids in frames:
            acks.add("FIN", self._release(ids, now)[0])
        acks.flush()
        return actions

    def finish_or_requeue(
        self, command: FinCommand | ReqCommand, acks: AckBatch, now: float
    ) -> int:
        """
        Apply a FIN or REQ: remove its deliveries from the window, and add them to *acks*.

        Returns the number of refused ids; the client gets one error for all of them.

        Raises:
            InvalidRequest: No delivery is named, or the delay is negative.
        """
        delay_ms = _delay_ms(command.timeout_ms) if isinstance(command, ReqCommand) else 0
        taken, refused = self._release(command.delivery_ids(), now)
        acks.add("REQ" if isinstance(command, ReqCommand) else "FIN", taken, delay_ms)
        self._respond(command, refused)
        return len(refused)

    def _release(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], list[str]]:
        """Remove *ids* from the window, and remember them; return what `take_many` returns."""
        taken, refused = self._window.take_many(ids, now)
        self._remember(ids, refused)
        return taken, refused

    def touch(self, command: TouchCommand, acks: AckBatch, now: float) -> int:
        """
        Apply a TOUCH: extend the deadlines of its deliveries, and add the TOUCHes to *acks*.

        The client gets an error for a delivery that has timed out, and no longer holds it. Returns
        the number of ids, which TOUCH costs: a client could repeat it for one delivery without end,
        unlike FIN.
        """
        ids = command.delivery_ids()
        touched, refused = self._touched(ids, now)
        acks.add("TOUCH", touched)
        self._respond(command, refused)
        return len(ids)

    def acknowledge(
        self, verb: str, ids: list[str], delay_ms: int, acks: AckBatch, now: float
    ) -> list[str]:
        """Apply FIN, REQ or TOUCH to *ids*, and add them to *acks*; return the refused ids."""
        if verb == "TOUCH":
            touched, refused = self._touched(ids, now)
            acks.add(verb, touched)
            return refused
        taken, refused = self._release(ids, now)
        acks.add(verb, taken, delay_ms)
        return refused

    def _touched(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], list[str]]:
        """Extend the deadlines of *ids*; return message ids by source, and the refused ids."""
        touched: dict[int, list[bytes]] = {}
        refused = []
        for delivery_id in ids:
            source = self._window.touch(delivery_id, now)
            if source is None:
                refused.append(delivery_id)
            else:
                touched.setdefault(source, []).append(message_id(delivery_id))
        return touched, refused

    def _respond(self, command: DeliveryCommand, refused: list[str]) -> None:
        """Send the client the error for *refused*; if that is empty, OK if there is a ref."""
        if refused:
            self._outbox.add_answer(not_in_flight_error(command, refused))
        else:
            self.respond_ok(command)

    def respond_ok(self, command: Command) -> None:
        """Send the client OK if the command has a ref; a command without one gets no OK."""
        if command.ref is not None:
            self._outbox.add_answer(ResponseOut(command.cmd, command.ref, "OK"))

    def _remember(self, ids: list[str], refused: list[str]) -> None:
        """
        Remember the delivery ids in *ids* that are not in *refused*.

        nsqd may refuse their acknowledgment later, and names only the message id then.
        """
        if refused:
            unknown = set(refused)
            ids = [delivery_id for delivery_id in ids if delivery_id not in unknown]
            if not ids:
                return
        if self._recent_acks is None:
            self._recent_acks = RecentAcks(0)
        # nsqd's refusal arrives before a few more windows can be delivered and acknowledged.
        limit = REMEMBERED_IDS + REMEMBERED_WINDOWS * self._window.size
        self._recent_acks.limit = max(self._recent_acks.limit, limit)
        self._recent_acks.add(ids)

    def on_broker_refused(self, frame: ErrorFrame, sources: Sequence[int]) -> None:
        """
        Send the client nsqd's error for an earlier FIN, REQ or TOUCH, with the delivery id.

        One of *sources* has sent *frame*. A delivery whose TOUCH was refused leaves the window: it
        is no longer in flight at nsqd, and the client drops it when it reads the error.
        """
        verb, refused = frame.refused_command
        delivery_id = None
        if frame.code == "E_TOUCH_FAILED":
            for source in sources:
                refused_id = refused.encode("latin-1", "replace")
                delivery_id = self._window.touch_refused(source, refused_id)
                if delivery_id is not None:
                    break
        if delivery_id is None and self._recent_acks is not None:
            delivery_id = self._recent_acks.find(refused)
        message = f"nsqd: {frame.description}"
        self._outbox.add_answer(
            ErrorOut(verb, None, frame.code, message, retryable=False, id=delivery_id or refused)
        )


def _delay_ms(timeout_ms: int | None) -> int:
    delay_ms = timeout_ms or 0
    if delay_ms < 0:
        text = f"timeout_ms is {delay_ms}; allowed: 0 and above, in milliseconds"
        raise InvalidRequest("E_INVALID", text)
    return min(delay_ms, _MAX_DELAY_MS)


COMMANDS_PER_TURN = 512
"""Maximum commands of one socket per turn, so that other sockets are not delayed."""
_CHARS_PER_TURN = CHUNK_CHARS
"""
Maximum characters decoded in one turn; the first chunk is decoded even if it is longer.

Without this limit, 512 long invalid lines would block the event loop, because each is explained.
"""


class CommandQueue:
    """The commands of a client that wait, in the order received, invalid ones included."""

    __slots__ = ("_count", "_frames")

    def __init__(self) -> None:
        self._frames: deque[tuple[Iterator[ParsedCommand], int, int]] = deque()
        """For each frame: its commands, at most how many these are, characters to decode."""
        self._count = 0

    def __len__(self) -> int:
        """Return at most how many commands wait; blank lines of undecoded frames count, too."""
        return self._count

    def add(
        self, commands: list[Command] | Iterator[ParsedCommand], count: int, size_chars: int = 0
    ) -> None:
        """
        Append *commands*, which are at most *count*.

        If *commands* is an iterator that decodes text when they are taken, *size_chars* is the
        length of that text.
        """
        self._frames.append((iter(commands), count, size_chars))
        self._count += count

    def put_back(self, commands: Sequence[ParsedCommand]) -> None:
        """Put *commands*, which `take` has returned, at the front again."""
        self._frames.appendleft((iter(commands), len(commands), 0))
        self._count += len(commands)

    def take(self, at_most: int = COMMANDS_PER_TURN) -> list[ParsedCommand]:
        """
        Remove and return the first commands, at most *at_most* and what one turn may decode.

        The list is empty only if no command waits.
        """
        taken: list[ParsedCommand] = []
        left_chars = _CHARS_PER_TURN
        while self._frames and len(taken) < at_most:
            commands, count, size_chars = self._frames.popleft()
            # The first frame is decoded whatever its size, or a long one would wait for ever.
            if taken and size_chars > left_chars:
                self._frames.appendleft((commands, count, size_chars))
                break
            left_chars -= size_chars
            some = list(islice(commands, at_most - len(taken)))
            taken += some
            self._count -= count
            left = max(1, count - len(some))
            # Look ahead, because *count* is only an upper bound: an exhausted frame must not stay.
            if (following := next(commands, None)) is not None:
                self._frames.appendleft((chain((following,), commands), left, size_chars))
                self._count += left
        return taken


_LONG_FRAME_CHARS = 65_536
_LONG_LINE_CHARS = 1_024
"""A longer frame than `_LONG_FRAME_CHARS` costs extra if its lines are longer on average."""
_CHARS_PER_COMMAND = 4_096
"""Such a frame costs one more command of the rate limit for each this many characters."""


class CommandRunner:
    """Run the commands of one session, a limited number per turn, and queue the others."""

    __slots__ = (
        "_error_budget",
        "_last_turn_at",
        "_options",
        "_outbox",
        "_publishing",
        "_rate_limiter",
        "_sources",
        "_takes_acks",
        "_window",
        "acks",
        "auth",
        "close_deadline",
        "close_reason",
        "msg_timeout_ms",
        "queue",
    )

    def __init__(
        self,
        options: SessionOptions,
        window: Window,
        outbox: Outbox,
        sources: Mapping[int, IdentifyResponse],
    ) -> None:
        self._options = options
        self._window = window
        self._outbox = outbox
        self._sources = sources
        self._takes_acks = not (options.is_auto_ack or options.is_viewer)
        self._error_budget: TokenBucket | None = None
        """Created with the first error."""
        self._rate_limiter = TokenBucket(options.command_rate_limit, burst_s=BURST_S)
        self.queue: CommandQueue | None = None
        """Commands that wait; None while there are none, to save memory per socket."""
        self._last_turn_at = -math.inf
        self._publishing: Publishing | None = None
        """Created with the first publish."""
        self.acks = AckHandler(window, outbox)
        self.auth = Authentication(has_secret=options.has_secret)
        self.msg_timeout_ms = options.limits.msg_timeout_ms
        """The message timeout in the SUB frame that the client has received."""
        self.close_deadline = math.inf
        """When to close after the client's CLS, monotonic seconds; `math.inf` before CLS."""
        self.close_reason: CloseReason | None = None
        """Why the session must end because of the client's commands; None while it need not."""

    @property
    def is_busy(self) -> bool:
        """True while commands are queued, or publishes have no response yet."""
        return self.queue is not None or bool(self._publishing)

    @property
    def wants_commands(self) -> bool:
        """True if the client's next command would run at once; see `Session.wants_commands`."""
        return self.queue is None and (self.auth.is_required_first or not self._is_blocked)

    @property
    def _is_blocked(self) -> bool:
        publishing = self._publishing
        return (
            self.auth.is_blocking
            or self._outbox.answer_bytes > self._options.buffer_bytes
            or (
                publishing is not None and publishing.unanswered_bytes > self._options.publish_bytes
            )
        )

    @property
    def next_due(self) -> float:
        """When to call `run_waiting`, monotonic seconds; `math.inf` for never."""
        if self.queue is None or self._is_blocked:
            return math.inf  # computed again after each event, so also after one that unblocks
        return max(self._last_turn_at, self._rate_limiter.empty_at)

    def stop(self) -> None:
        """Drop the queued commands: the session has ended."""
        self.queue = None

    # Turns

    def receive(self, text: str, now: float) -> list[Action]:
        """Run the commands of one text frame, as many as one turn allows; queue the rest."""
        lines = text.count("\n") + 1
        if lines > COMMANDS_PER_TURN:
            # Before they are decoded: a client over its limit must not cost that time.
            self._check_debt(now, lines)
            if self.close_reason is not None:
                return []
        if len(text) > max(_LONG_FRAME_CHARS, lines * _LONG_LINE_CHARS):
            # Decoding long lines takes time whatever they hold; FINs on many short lines stay free.
            # At most one second's worth, so that one large PUB never closes the socket.
            cost = len(text) // _CHARS_PER_COMMAND
            self._rate_limiter.take(min(cost, self._options.command_rate_limit), now)
        if len(text) > CHUNK_CHARS:
            return self._receive_long(text, now)
        commands = decode_frame(text)
        # An iterator decodes its lines only when they are taken; some of them may be blank.
        count = len(commands) if type(commands) is list else lines
        if count == 0:
            self._rate_limiter.take(1, now)  # an empty frame takes time, too
        if (
            self.queue is None
            and count <= COMMANDS_PER_TURN
            and self._rate_limiter.empty_at <= now
            and not self._is_blocked
        ):
            return self._turn(list(commands), now)
        # Behind queued commands, whose turn is scheduled already: commands run in order.
        has_to_wait = self.queue is not None
        if self.queue is None:
            self.queue = CommandQueue()
        self.queue.add(commands, count, 0 if type(commands) is list else len(text))
        self._check_debt(now)
        return [] if has_to_wait else self.run_waiting(now)

    def _receive_long(self, text: str, now: float) -> list[Action]:
        """Queue a long frame in chunks, each decoded in the turn that runs its commands."""
        has_to_wait = self.queue is not None
        if self.queue is None:
            self.queue = CommandQueue()
        for chunk in chunks(text):
            self.queue.add(decode_later(chunk), chunk.count("\n") + 1, len(chunk))
        self._check_debt(now)
        return [] if has_to_wait else self.run_waiting(now)

    def run_waiting(self, now: float) -> list[Action]:
        """Run queued commands, as many as one turn allows."""
        self._last_turn_at = now
        queue = self.queue
        if queue is None or self.close_reason is not None:
            return []
        actions: list[Action] = []
        if self.auth.is_required_first:
            actions = self._take_auth(queue, now)
        elif self._rate_limiter.empty_at <= now and not self._is_blocked:
            actions = self._turn(queue.take(), now)
        if not queue:
            self.queue = None
        return actions

    def _turn(self, commands: list[ParsedCommand], now: float) -> list[Action]:
        """Run *commands* now; if all are FINs, the usual case, they need no merging."""
        fin_ids = _plain_fins(commands) if self._takes_acks else []
        if fin_ids and len(fin_ids) == len(commands):
            self._options.observer.on_commands("FIN", len(fin_ids))
            taken, refused = self.acks.finish(fin_ids, now)
            actions: list[Action] = [FinishDeliveries(source, ids) for source, ids in taken.items()]
            if refused:
                self._rate_limiter.take(refused, now)
        else:
            actions = self._mixed_turn(commands, now)
        if self._rate_limiter.empty_at > now:  # a client within its rate has no debt
            self._check_debt(now)
        return actions

    def _mixed_turn(self, commands: list[ParsedCommand], now: float) -> list[Action]:
        """Run *commands* in order, consecutive FINs together; stop at AUTH or a close."""
        actions: list[Action] = []
        acks = AckBatch(actions)
        fin_ids: list[str] = []
        for at, command in enumerate(commands, start=1):
            if self._takes_acks and (ids := _plain_fins((command,))):
                fin_ids += ids
                continue
            if fin_ids:
                self._finish(fin_ids, acks, now)
                fin_ids = []
            self._run(command, acks, now)
            # Tested after each command, because each may be an AUTH or one error too many.
            if self.auth.is_blocking or self.close_reason is not None:
                # The rest waits for the verification of AUTH, or is dropped with the session.
                self._put_back(commands[at:])
                break
        if fin_ids:
            self._finish(fin_ids, acks, now)
        acks.flush()
        return actions

    def _put_back(self, commands: list[ParsedCommand]) -> None:
        if commands:
            if self.queue is None:
                self.queue = CommandQueue()
            self.queue.put_back(commands)

    def _finish(self, ids: list[str], acks: AckBatch, now: float) -> None:
        self._options.observer.on_commands("FIN", len(ids))
        taken, refused = self.acks.finish(ids, now)
        acks.add("FIN", taken)
        if refused:
            self._rate_limiter.take(refused, now)

    def _run(self, command: ParsedCommand, acks: AckBatch, now: float) -> None:
        """Run *command*, and charge its cost to the rate limit."""
        cost = 1
        if isinstance(command, InvalidCommand):
            self._options.observer.on_commands("")
            self._refuse_invalid(command, command.code, command.problem, now)
        else:
            self._options.observer.on_commands(command.cmd)
            try:
                cost = self._HANDLERS[type(command)](self, command, acks, now)
            except InvalidRequest as error:
                self._refuse_invalid(command, error.token, error.detail, now)
        if cost:
            self._rate_limiter.take(cost, now)

    def _check_debt(self, now: float, incoming: int = 0) -> None:
        """
        Set `close_reason` if the queued commands would take longer than `MAX_DEBT_S` to run.

        *incoming* commands are counted with them.
        """
        waiting = incoming if self.queue is None else incoming + len(self.queue)
        # One command per held delivery may be its FIN, which is free.
        debt_s = self._rate_limiter.wait_s(max(0, waiting - len(self._window)), now)
        if debt_s > MAX_DEBT_S and self.close_reason is None:
            limit = self._options.command_rate_limit
            text = (
                f"the waiting commands take {debt_s:.1f} s at {limit} commands per second; the "
                f"limit is {MAX_DEBT_S:g} s: send at most {limit * MAX_DEBT_S:.0f} commands before "
                "their responses"
            )
            self._outbox.add_answer(ErrorOut(None, None, "E_INVALID", text, retryable=False))
            self.close_reason = CloseReason.TOO_FAST

    def _refuse_invalid(self, command: ParsedCommand, code: str, problem: str, now: float) -> None:
        """Send the client the error for an invalid command, and charge its error budget."""
        self.refuse(ErrorOut(command.cmd, command.ref, code, problem, retryable=False), now)

    def refuse(self, error: ErrorOut, now: float) -> None:
        """Send the client *error*, and charge its error budget."""
        self._outbox.add_answer(error)
        if self._error_budget is None:
            burst_s = MAX_ERRORS / ERRORS_FORGIVEN_PER_S
            self._error_budget = TokenBucket(ERRORS_FORGIVEN_PER_S, burst_s=burst_s)
        self._error_budget.take(1, now)
        if self._error_budget.wait_s(0, now) > _ROUNDING_S:
            self.close_reason = CloseReason.TOO_MANY_ERRORS

    # Handlers. Each returns what its command costs of the rate limit: FIN and REQ of deliveries
    # that the client holds are free, because each delivery is acknowledged only once.

    def _acknowledge(self, command: FinCommand | ReqCommand, acks: AckBatch, now: float) -> int:
        self._require_acks(command)
        command.bound_ids(self._options.max_ids)
        return self.acks.finish_or_requeue(command, acks, now)

    def acknowledge(
        self, verb: str, delivery_ids: list[str], delay_ms: int, now: float
    ) -> tuple[list[Action], list[str]]:
        """Apply FIN, REQ or TOUCH without a response; return the actions and the refused ids."""
        if self._options.is_viewer:
            return [], delivery_ids
        actions: list[Action] = []
        acks = AckBatch(actions)
        refused = self.acks.acknowledge(verb, delivery_ids, delay_ms, acks, now)
        acks.flush()
        return actions, refused

    def _touch(self, command: TouchCommand, acks: AckBatch, now: float) -> int:
        self._require_acks(command)
        command.bound_ids(self._options.max_ids)
        return self.acks.touch(command, acks, now)

    def _require_acks(self, command: Command) -> None:
        """Raise InvalidRequest if the gateway acknowledges messages itself (ack=auto, viewers)."""
        if self._takes_acks:
            return
        reason = "this socket has ack=auto: the gateway finishes messages"
        if self._options.is_viewer:
            reason = (
                "this socket has no channel of its own: the gateway finishes messages for all who "
                "share it"
            )
        raise InvalidRequest("E_INVALID", f"{reason}, so {command.cmd} is not allowed")

    # RDY, CLS, NOP

    def _set_ready(self, command: RdyCommand, _acks: AckBatch, _now: float) -> int:
        self._require_acks(command)
        limit = self._options.max_in_flight_limit
        if command.count is None or not 0 <= command.count <= limit:
            given = "missing" if command.count is None else command.count
            text = f"RDY count is {given}; allowed: 0 to {limit} messages"
            raise InvalidRequest("E_INVALID", text)
        # The new RDY goes to nsqd with the follow-ups of this turn; see `Session`.
        self._window.size = command.count
        self.acks.respond_ok(command)
        return 1

    def _start_close(self, command: ClsCommand, _acks: AckBatch, now: float) -> int:
        if self.close_deadline < math.inf:
            raise InvalidRequest("E_INVALID", "CLS was sent already")
        # The longest timeout of all connections: by then nsqd has timed out every delivery that
        # the client has not touched, so waiting longer would not help.
        timeouts = [answer.msg_timeout for answer in self._sources.values()]
        timeout_ms = max(timeouts, default=self.msg_timeout_ms)
        self.close_deadline = now + timeout_ms / 1000
        answer = close_wait_response("client", ref=command.ref, reconnect_after_ms=None)
        self._outbox.add_answer(answer)
        return 1

    def _nop(self, command: NopCommand, _acks: AckBatch, _now: float) -> int:
        self.acks.respond_ok(command)
        return 1

    # Publishing

    def _publish(self, command: PubCommand | MpubCommand, acks: AckBatch, now: float) -> int:
        if isinstance(command, MpubCommand) and len(command) > BODIES_PER_COMMAND:
            # The first bodies are included in the cost of the command.
            self._rate_limiter.take((len(command) - 1) // BODIES_PER_COMMAND, now)
            # Before the publish: a client over its limit publishes nothing more.
            self._check_debt(now)
            if self.close_reason is not None:
                return 1
        if self.auth.is_missing:
            # No error of the client: the broker that requires AUTH may have connected just now.
            self._outbox.add_answer(auth_first(command))
            return 1
        if self._publishing is None:
            self._publishing = Publishing(self._options.limits)
        acks.add_action(self._publishing.begin(command))
        return 1

    def published(self, publish: PublishBodies, refusal: Refusal | None) -> None:
        """Send the client the response to *publish*: *refusal*, or OK if that is None."""
        if self._publishing is None:
            return
        answer = self._publishing.end(publish, refusal)
        if answer is not None:
            self._outbox.add_answer(answer)

    # AUTH

    def _take_auth(self, queue: CommandQueue, now: float) -> list[Action]:
        """
        Run AUTH, which must be the first queued command; the commands after it stay queued.

        If another command is first, the client gets an error, and the session must close.
        """
        actions: list[Action] = []
        while (
            self.auth.is_required_first
            and self.close_reason is None
            and (taken := queue.take(at_most=1))
        ):
            if taken[0].cmd == "AUTH":
                actions += self._turn(taken, now)
            else:
                self._outbox.add_answer(auth_first(taken[0]))
                self.close_reason = CloseReason.NO_AUTH
        return actions

    def _authenticate(self, command: AuthCommand, acks: AckBatch, _now: float) -> int:
        if self._options.renews_secret and self.auth.is_set:
            acks.add_action(RenewSecret(self.auth.take_renewal(command), command.ref))
            return 1
        secret = self.auth.take(command)
        if secret is None:
            self.respond_to_auth(None)
        else:
            acks.add_action(ResubscribeWithSecret(secret))
        return 1

    def respond_to_auth(self, authorization: AuthResponse | None) -> None:
        """Send the client the response that its AUTH still lacks, if any; see `take_response`."""
        if (answer := self.auth.take_response(authorization)) is not None:
            self._outbox.add_answer(answer)

    _HANDLERS: ClassVar[
        dict[type[Command], Callable[[CommandRunner, Any, AckBatch, float], int]]
    ] = {
        FinCommand: _acknowledge,
        ReqCommand: _acknowledge,
        TouchCommand: _touch,
        RdyCommand: _set_ready,
        ClsCommand: _start_close,
        NopCommand: _nop,
        AuthCommand: _authenticate,
        PubCommand: _publish,
        DpubCommand: _publish,
        MpubCommand: _publish,
    }


def _plain_fins(commands: Sequence[ParsedCommand]) -> list[str]:
    """Return the delivery ids of those *commands* that are a FIN with one id and no ref."""
    return [
        command.id
        for command in commands
        if type(command) is FinCommand
        and command.ref is None
        and command.ids is None
        and command.id is not None
    ]
