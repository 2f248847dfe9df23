"""
What a client says, carried out in turns: so many commands at once, and no faster than it may.

What cannot be carried out yet waits in its order: behind an AUTH that is tried, while the client
does not read its answers, while too much of it is being published, or for the next turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gateway.errors import InvalidRequest
from gateway.protocol.authorization import Authorization
from gateway.protocol.identify import Answer
from gateway.session.actions import (
    Acks,
    Action,
    Authenticate,
    EndReason,
    Finish,
    Publish,
    Refusal,
)
from gateway.session.answering import Answering
from gateway.session.auth import Authentication, auth_first
from gateway.session.commands import (
    Auth,
    Cls,
    Command,
    Dpub,
    Fin,
    Mpub,
    Nop,
    Pub,
    Rdy,
    Req,
    Spoken,
    Touch,
    decode_frame,
)
from gateway.session.endings import Endings
from gateway.session.inbox import COMMANDS_A_TURN, Inbox
from gateway.session.messages import ErrorOut, close_wait
from gateway.session.misreading import Unreadable
from gateway.session.options import SessionOptions
from gateway.session.outbox import Outbox
from gateway.session.pace import MAX_DEBT_S, Pace
from gateway.session.patience import Patience
from gateway.session.publishing import BODIES_A_COMMAND, Publishing
from gateway.session.window import Window


class Dialogue:
    """The client's side of one session; see the module."""

    __slots__ = (
        "_endings",
        "_options",
        "_outbox",
        "_pace",
        "_patience",
        "_publishing",
        "_sources",
        "_takes_answers",
        "_turned_at",
        "_window",
        "answering",
        "auth",
        "ended_by",
        "inbox",
        "msg_timeout_ms",
    )

    def __init__(
        self,
        options: SessionOptions,
        window: Window,
        outbox: Outbox,
        endings: Endings,
        sources: Mapping[int, Answer],
    ) -> None:
        self._options = options
        self._window = window
        self._outbox = outbox
        self._endings = endings
        self._sources = sources
        self._takes_answers = not (options.finishes_by_itself or options.is_viewer)
        self._patience: Patience | None = None
        """Made with the first misuse."""
        self._pace = Pace(options.command_rate_limit)
        self.inbox: Inbox | None = None
        """What is not carried out yet; there is none while nothing waits."""
        self._turned_at = -math.inf
        self._publishing: Publishing | None = None
        """Made with the first publish."""
        self.answering = Answering(window, outbox)
        self.auth = Authentication(has_secret=options.has_secret)
        self.msg_timeout_ms = options.limits.msg_timeout_ms
        """What the client was told."""
        self.ended_by: EndReason | None = None
        """Why the client has gone too far; None while it has not."""

    @property
    def is_busy(self) -> bool:
        """Whether something of the client is not answered yet."""
        return self.inbox is not None or bool(self._publishing)

    @property
    def is_listening(self) -> bool:
        """Whether what the client says next is carried out at once."""
        return self.inbox is None and (self.auth.is_first or not self._is_held_up)

    @property
    def _is_held_up(self) -> bool:
        publishing = self._publishing
        return (
            self.auth.holds_up
            or self._outbox.answer_bytes > self._options.buffer_bytes
            or (
                publishing is not None and publishing.unanswered_bytes > self._options.publish_bytes
            )
        )

    @property
    def due(self) -> float:
        """When to call `go_on`, monotonic seconds; never while nothing waits for time alone."""
        if self.inbox is None or self._is_held_up:
            return math.inf
        return max(self._turned_at, self._pace.paid_at)

    def stop(self) -> None:
        """Carry out nothing more."""
        self.inbox = None

    # Turns

    def receive(self, text: str, now: float) -> list[Action]:
        """Carry out the commands of one text frame, or what one turn takes of them."""
        lines = text.count("\n") + 1
        if lines > COMMANDS_A_TURN:
            # Before anything is made of them.
            self._bound_debt(now, lines)
            if self.ended_by is not None:
                return []
        commands = decode_frame(text)
        count = len(commands) if type(commands) is list else lines
        if count == 0:
            self._pace.charge(1, now)  # to say nothing takes its time as well
        if (
            self.inbox is None
            and count <= COMMANDS_A_TURN
            and self._pace.paid_at <= now
            and not self._is_held_up
        ):
            return self._turn(list(commands), now)
        has_to_wait = self.inbox is not None
        if self.inbox is None:
            self.inbox = Inbox()
        self.inbox.add(commands, count)
        self._bound_debt(now)
        return [] if has_to_wait else self.go_on(now)

    def go_on(self, now: float) -> list[Action]:
        """Carry out what waits, as much as one turn takes."""
        self._turned_at = now
        inbox = self.inbox
        if inbox is None or self.ended_by is not None:
            return []
        actions: list[Action] = []
        if self.auth.is_first:
            actions = self._listen_for_auth(inbox, now)
        elif self._pace.paid_at <= now and not self._is_held_up:
            actions = self._turn(inbox.take(), now)
        if not inbox:
            self.inbox = None
        return actions

    def _turn(self, commands: list[Spoken], now: float) -> list[Action]:
        row = _plain_fins(commands) if self._takes_answers else []
        if row and len(row) == len(commands):
            self._options.account.said("FIN", len(row))
            taken, refused = self.answering.finish(row, now)
            actions: list[Action] = [Finish(source, ids) for source, ids in taken.items()]
            if refused:
                self._pace.charge(refused, now)
        else:
            actions = self._mixed_turn(commands, now)
        if self._pace.paid_at > now:
            self._bound_debt(now)
        return actions

    def _mixed_turn(self, commands: list[Spoken], now: float) -> list[Action]:
        """Carry out *commands* in their order, FINs that stand in a row together."""
        actions: list[Action] = []
        acks = Acks(actions)
        row: list[str] = []
        for at, command in enumerate(commands, start=1):
            if self._takes_answers and (ids := _plain_fins((command,))):
                row += ids
                continue
            if row:
                self._finish(row, acks, now)
                row = []
            self._obey(command, acks, now)
            if self.auth.holds_up or self.ended_by is not None:
                self._put_back(commands[at:])
                break
        if row:
            self._finish(row, acks, now)
        acks.flush()
        return actions

    def _put_back(self, commands: list[Spoken]) -> None:
        if commands:
            if self.inbox is None:
                self.inbox = Inbox()
            self.inbox.put_back(commands)

    def _finish(self, ids: list[str], acks: Acks, now: float) -> None:
        self._options.account.said("FIN", len(ids))
        taken, refused = self.answering.finish(ids, now)
        acks.add("FIN", taken)
        if refused:
            self._pace.charge(refused, now)

    def _obey(self, command: Spoken, acks: Acks, now: float) -> None:
        """Carry out *command*; what it costs is charged."""
        cost = 1
        if isinstance(command, Unreadable):
            self._options.account.said("")
            self._misuse(command, "E_INVALID", command.problem, now)
        else:
            self._options.account.said(command.cmd)
            try:
                cost = self._HANDLERS[type(command)](self, command, acks, now)
            except InvalidRequest as error:
                self._misuse(command, error.token, error.detail, now)
        if cost:
            self._pace.charge(cost, now)

    def _bound_debt(self, now: float, coming: int = 0) -> None:
        """Give up on a client whose commands, those that wait or come included, take too long."""
        waiting = coming if self.inbox is None else coming + len(self.inbox)
        # What it holds it may finish for nothing.
        debt_s = self._pace.debt_s(max(0, waiting - len(self._window)), now)
        if debt_s > MAX_DEBT_S and self.ended_by is None:
            limit = self._options.command_rate_limit
            text = (
                f"what was said takes {debt_s:.1f} s at {limit} commands a second, and no more "
                f"than {MAX_DEBT_S:g} s may wait: say fewer at a time"
            )
            self._outbox.add_answer(ErrorOut(None, None, "E_INVALID", text, retryable=False))
            self.ended_by = EndReason.TOO_FAST

    def _misuse(self, command: Spoken, code: str, problem: str, now: float) -> None:
        """Answer what is no command here, and count it."""
        error = ErrorOut(command.cmd, command.ref, code, problem, retryable=False)
        self._outbox.add_answer(error)
        if self._patience is None:
            self._patience = Patience(now=now)
        self._patience.count(now)
        if self._patience.is_lost:
            self.ended_by = EndReason.TOO_MANY_ERRORS

    # Answers. Each command returns what it costs: FIN and REQ of what is held cost nothing.

    def _settle(self, command: Fin | Req, acks: Acks, now: float) -> int:
        self._require_answers(command)
        command.bound_ids(self._options.max_ids)
        return self.answering.settle(command, acks, now)

    def _touch(self, command: Touch, acks: Acks, now: float) -> int:
        self._require_answers(command)
        command.bound_ids(self._options.max_ids)
        return self.answering.touch(command, acks, now)

    def _require_answers(self, command: Command) -> None:
        """Raise InvalidRequest where the client is not asked for answers."""
        if self._takes_answers:
            return
        text = f"this socket has ack=auto: the gateway finishes, {command.cmd} has no use"
        if self._options.is_viewer:
            text = (
                "this socket has no channel of its own, the gateway finishes for all who share "
                f"it: {command.cmd} has no use"
            )
        raise InvalidRequest("E_INVALID", text)

    # The window, the close, a sign of life

    def _set_ready(self, command: Rdy, _acks: Acks, _now: float) -> int:
        self._require_answers(command)
        limit = self._options.max_in_flight_limit
        if command.count is None or not 0 <= command.count <= limit:
            given = "missing" if command.count is None else command.count
            text = f"RDY count is {given}; allowed: 0 to {limit} messages"
            raise InvalidRequest("E_INVALID", text)
        self._window.size = command.count
        self.answering.answer_ok(command)
        return 1

    def _start_close(self, command: Cls, _acks: Acks, now: float) -> int:
        if self._endings.is_asked_by_client:
            raise InvalidRequest("E_INVALID", "CLS was said before")
        timeouts = [answer.msg_timeout for answer in self._sources.values()]
        timeout_ms = max(timeouts, default=self.msg_timeout_ms)
        self._endings.close_by(now + timeout_ms / 1000, EndReason.DONE)
        answer = close_wait("client", ref=command.ref, reconnect_after_ms=None)
        self._outbox.add_answer(answer)
        return 1

    def _nop(self, command: Nop, _acks: Acks, _now: float) -> int:
        self.answering.answer_ok(command)
        return 1

    # Publishing

    def _publish(self, command: Pub | Mpub, acks: Acks, now: float) -> int:
        if isinstance(command, Mpub) and len(command) > BODIES_A_COMMAND:
            # The first ones are what every command costs.
            self._pace.charge((len(command) - 1) // BODIES_A_COMMAND, now)
            self._bound_debt(now)
            if self.ended_by is not None:
                return 1
        if self.auth.is_missing:
            # Not counted as a misuse: the broker that wants a secret may have come just now.
            self._outbox.add_answer(auth_first(command))
            return 1
        if self._publishing is None:
            self._publishing = Publishing(self._options.limits)
        acks.then(self._publishing.begin(command))
        return 1

    def published(self, publish: Publish, refusal: Refusal | None) -> None:
        """Answer *publish*, once."""
        if self._publishing is None:
            return
        answer = self._publishing.end(publish, refusal)
        if answer is not None:
            self._outbox.add_answer(answer)

    # AUTH

    def _listen_for_auth(self, inbox: Inbox, now: float) -> list[Action]:
        """Take AUTH; what stands behind it waits until it is answered."""
        actions: list[Action] = []
        while self.auth.is_first and self.ended_by is None and (taken := inbox.take(at_most=1)):
            if taken[0].cmd == "AUTH":
                actions += self._turn(taken, now)
            else:
                self._outbox.add_answer(auth_first(taken[0]))
                self.ended_by = EndReason.NO_AUTH
        return actions

    def _authenticate(self, command: Auth, acks: Acks, _now: float) -> int:
        secret = self.auth.give(command)
        if secret is None:
            self.answer_auth(None)
        else:
            acks.then(Authenticate(secret))
        return 1

    def answer_auth(self, authorization: Authorization | None) -> None:
        """Give the answer to AUTH when it is due."""
        if (answer := self.auth.settle(authorization)) is not None:
            self._outbox.add_answer(answer)

    _HANDLERS: ClassVar[dict[type[Command], Callable[[Dialogue, Any, Acks, float], int]]] = {
        Fin: _settle,
        Req: _settle,
        Touch: _touch,
        Rdy: _set_ready,
        Cls: _start_close,
        Nop: _nop,
        Auth: _authenticate,
        Pub: _publish,
        Dpub: _publish,
        Mpub: _publish,
    }


def _plain_fins(commands: Sequence[Spoken]) -> list[str]:
    """Return the id of each FIN of one delivery that needs no answer."""
    return [
        command.id
        for command in commands
        if type(command) is Fin
        and command.ref is None
        and command.ids is None
        and command.id is not None
    ]
