"""FIN, REQ and TOUCH: what the client answers to its deliveries, and what it is told of that."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.protocol.answered import Answered
from gateway.protocol.frames import ErrorFrame
from gateway.session.actions import Acks, Action
from gateway.session.commands import Ack, Command, Fin, Req, Touch
from gateway.session.messages import ErrorOut, ResponseOut, not_in_flight
from gateway.session.outbox import Outbox
from gateway.session.window import Window, message_id

_MAX_DELAY_MS = 2**40
"""A REQ is cut to this: far above any broker's own limit, and nsqd's nanoseconds still hold it."""


class Answering:
    """Takes answers for what the window holds; what NSQ refuses of them later finds its id."""

    __slots__ = ("_answered", "_outbox", "_window")

    def __init__(self, window: Window, outbox: Outbox) -> None:
        self._window = window
        self._outbox = outbox
        self._answered: Answered[str] | None = None
        """Made with the first answer."""

    def finish(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], int]:
        """
        Carry out a row of FINs without ref, one for each of *ids*.

        Returns the message ids to finish, by source, and how many were refused: each is told.
        """
        taken, refused = self._window.take_many(ids, now)
        self._remember(ids, refused)
        for delivery_id in refused:
            self._outbox.add_answer(not_in_flight(Fin(id=delivery_id), [delivery_id]))
        return taken, len(refused)

    def finish_written(self, frames: list[list[str]], now: float) -> list[Action]:
        """Return the FINs for the client of *frames*; it is not told what has timed out."""
        actions: list[Action] = []
        acks = Acks(actions)
        for ids in frames:
            acks.add("FIN", self._let_go(ids, now)[0])
        acks.flush()
        return actions

    def settle(self, command: Fin | Req, acks: Acks, now: float) -> int:
        """
        Let go of the deliveries that FIN or REQ names.

        Returns how many were refused, which the client is told.

        Raises:
            InvalidRequest: No delivery is named, or the delay is below 0.
        """
        delay_ms = _delay_ms(command.timeout_ms) if isinstance(command, Req) else 0
        taken, refused = self._let_go(command.delivery_ids(), now)
        acks.add("REQ" if isinstance(command, Req) else "FIN", taken, delay_ms)
        self._answer(command, refused)
        return len(refused)

    def _let_go(self, ids: list[str], now: float) -> tuple[dict[int, list[bytes]], list[str]]:
        """Take the deliveries *ids* out of the window; returns as it does."""
        taken, refused = self._window.take_many(ids, now)
        self._remember(ids, refused)
        return taken, refused

    def touch(self, command: Touch, acks: Acks, now: float) -> int:
        """Put off the deadlines of the deliveries that TOUCH names; as `settle`."""
        ids = command.delivery_ids()
        touched: dict[int, list[bytes]] = {}
        refused = []
        for delivery_id in ids:
            source = self._window.touch(delivery_id, now)
            if source is None:
                refused.append(delivery_id)
            else:
                touched.setdefault(source, []).append(message_id(delivery_id))
        acks.add("TOUCH", touched)
        self._remember(ids, refused)
        self._answer(command, refused)
        return len(ids)

    def _answer(self, command: Ack, refused: list[str]) -> None:
        """Tell what was refused, or OK where the client gave a ref."""
        if refused:
            self._outbox.add_answer(not_in_flight(command, refused))
        else:
            self.answer_ok(command)

    def answer_ok(self, command: Command) -> None:
        """Tell OK where the client gave a ref."""
        if command.ref is not None:
            self._outbox.add_answer(ResponseOut(command.cmd, command.ref, "OK"))

    def _remember(self, ids: list[str], refused: list[str]) -> None:
        """Keep the answered *ids* to match what the broker may still refuse; ours only."""
        if refused:
            strangers = set(refused)
            ids = [delivery_id for delivery_id in ids if delivery_id not in strangers]
            if not ids:
                return
        if self._answered is None:
            self._answered = Answered()
        self._answered.add(ids)

    def refused_by_broker(self, frame: ErrorFrame) -> None:
        """Tell the client that NSQ refused an earlier answer of its (which came too late)."""
        verb, _, rest = frame.description.partition(" ")
        refused = rest.partition(" ")[0]
        delivery_id = None if self._answered is None else self._answered.find(refused)
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
