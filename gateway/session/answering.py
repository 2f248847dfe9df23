"""FIN, REQ and TOUCH: what the client answers to its deliveries, and what it is told of that."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.protocol.answered import Answered
from gateway.protocol.frames import ErrorFrame
from gateway.session.actions import Acks
from gateway.session.messages import CommandIn, ErrorOut, ResponseOut, not_in_flight
from gateway.session.outbox import Outbox
from gateway.session.window import Window, message_id

_MAX_DELAY_MS = 2**40
"""A REQ is cut to this: far above any broker's own limit, and nsqd's nanoseconds still hold it."""


class Answering:
    """Takes answers for what the window holds; what NSQ refuses of them later finds its id."""

    def __init__(self, window: Window, outbox: Outbox, *, finishes_by_itself: bool) -> None:
        self._window = window
        self._outbox = outbox
        self._finishes_by_itself = finishes_by_itself
        self._answered: Answered[str] = Answered()

    def finish(self, command: CommandIn, acks: Acks, now: float) -> None:
        """Carry out FIN; like the others it raises InvalidRequest."""
        self._settle(command, acks, now, 0)

    def requeue(self, command: CommandIn, acks: Acks, now: float) -> None:
        """Carry out REQ."""
        delay_ms = command.timeout_ms or 0
        if delay_ms < 0:
            text = f"timeout_ms is {delay_ms}; allowed: 0 and above, in milliseconds"
            raise InvalidRequest("E_INVALID", text)
        self._settle(command, acks, now, min(delay_ms, _MAX_DELAY_MS))

    def _settle(self, command: CommandIn, acks: Acks, now: float, delay_ms: int) -> None:
        """Let go of the deliveries that FIN or REQ names, and refuse those not held."""
        self.require_acks(command)
        refused = self.let_go(command.cmd, command.delivery_ids(), acks, now, delay_ms)
        self._answer(command, refused)

    def let_go(
        self, verb: str, ids: list[str], acks: Acks, now: float, delay_ms: int = 0
    ) -> list[str]:
        """Answer the deliveries *ids*; return those that are not held, or are too late."""
        take, add = self._window.take, acks.add
        refused = []
        for delivery_id in ids:
            source = take(delivery_id, now)
            if source is None:
                refused.append(delivery_id)
            else:
                add(verb, source, message_id(delivery_id), delay_ms)
        self._remember(ids, refused)
        return refused

    def touch(self, command: CommandIn, acks: Acks, now: float) -> None:
        """Carry out TOUCH."""
        self.require_acks(command)
        ids = command.delivery_ids()
        refused = []
        for delivery_id in ids:
            source = self._window.touch(delivery_id, now)
            if source is None:
                refused.append(delivery_id)
            else:
                acks.add("TOUCH", source, message_id(delivery_id))
        self._remember(ids, refused)
        self._answer(command, refused)

    def require_acks(self, command: CommandIn) -> None:
        """Raise InvalidRequest where the client is not asked for answers."""
        if self._finishes_by_itself:
            text = f"this socket has ack=auto: the gateway finishes, {command.cmd} has no use"
            raise InvalidRequest("E_INVALID", text)

    def _answer(self, command: CommandIn, refused: list[str]) -> None:
        """Tell what was refused, or OK where the client gave a ref."""
        if refused:
            self._outbox.add_answer(not_in_flight(command, refused))
        else:
            self.answer_ok(command)

    def answer_ok(self, command: CommandIn) -> None:
        """Tell OK where the client gave a ref."""
        if command.ref is not None:
            self._outbox.add_answer(ResponseOut(command.cmd, command.ref, "OK"))

    def _remember(self, ids: list[str], refused: list[str]) -> None:
        """Keep the answered *ids* to match what the broker may still refuse; ours only."""
        if refused:
            strangers = set(refused)
            ids = [delivery_id for delivery_id in ids if delivery_id not in strangers]
        self._answered.add(ids)

    def refused_by_broker(self, frame: ErrorFrame) -> None:
        """Tell the client that NSQ refused an earlier answer of its (which came too late)."""
        verb, _, rest = frame.description.partition(" ")
        refused = rest.partition(" ")[0]
        delivery_id = self._answered.find(refused) or refused
        message = f"nsqd: {frame.description}"
        self._outbox.add_answer(
            ErrorOut(verb, None, frame.code, message, retryable=False, id=delivery_id)
        )
