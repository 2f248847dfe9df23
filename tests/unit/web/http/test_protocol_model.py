"""
Random pipelines on one connection, against a model of RFC 9112.

`make fuzz` tries new seeds for as long as NSQ_GATEWAY_FUZZ_S says.
"""

from __future__ import annotations

import logging
import random

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.protocol.wire import Limits
from gateway.web.app import AppContext, create_app
from gateway.web.http.protocol import TRANSITIONS, ConnectionState, HttpProtocol
from gateway.web.http.publish import PublishHandler
from gateway.web.http.server_state import HttpLimits, HttpServerState
from gateway.web.websocket.protocol import WebSocketServerState
from tests.support.fuzz import fuzz_seeds, print_seed
from tests.support.http.http_model import (
    MAX_BODY_BYTES,
    MAX_MSG_BYTES,
    LatePublisher,
    MemoryTransport,
    Request,
    SeenAnswer,
    check_with_h11,
    draw_cuts,
    draw_stream,
    read_answers,
)
from tests.support.manual_clock import turn
from tests.support.websocket.echo_handler import EchoUpgradeHandler

SEEDS = 250
LIMITS = Limits(max_msg_size_bytes=MAX_MSG_BYTES, max_body_size_bytes=MAX_BODY_BYTES)


class WatchedProtocol(HttpProtocol):
    """Fails where a state leads to one that the table does not name."""

    @property
    def _state(self) -> ConnectionState:
        return self.__dict__["_state"]  # type: ignore[no-any-return]

    @_state.setter
    def _state(self, state: ConnectionState) -> None:
        before = self.__dict__.get("_state", state)
        assert state is before or state in TRANSITIONS[before], f"{before.name} to {state.name}"
        self.__dict__["_state"] = state


class World:
    """One connection, what is behind it, and the peer."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.is_tight = rng.random() < 0.2
        """Whether the bytes that may wait are so few that requests are refused for it."""
        self.is_cut_short = False
        """Whether the last request does not come in whole."""
        self.is_ended = False
        """Whether the peer has closed its half."""
        self.publisher = LatePublisher(rng, limit_bytes=2_000 if self.is_tight else 10_000_000)
        self.gate = EchoUpgradeHandler()
        self.websockets = WebSocketServerState(
            self.gate, max_frame_bytes=10_000, ping_interval_s=None, ping_timeout_s=None
        )
        self.port = HttpServerState(
            PublishHandler(self.publisher, LIMITS), websockets=self.websockets, limits=HttpLimits()
        )
        self.server_state = ServerState()
        config = Config(create_app(AppContext()), lifespan="off", log_config=None)
        self.transport = MemoryTransport(is_secure=rng.random() < 0.2)
        protocol = WatchedProtocol(
            self.port, config=config, server_state=self.server_state, app_state={}
        )
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    async def play(self, requests: list[Request]) -> bool:
        """
        Send *requests* while this and that happens; False: the connection was cut half-way.

        Some peers send half of the last request only, and some close their half at once.
        """
        rng, transport = self.rng, self.transport
        stream = b"".join(request.data for request in requests)
        if rng.random() < 0.2:
            self.is_cut_short = True
            stream = stream[: -rng.randint(1, len(requests[-1].data))]
        pieces = draw_cuts(rng, stream)
        cut_at = rng.randrange(len(pieces)) if rng.random() < 0.1 else None
        for number, piece in enumerate(pieces):
            if number == cut_at:
                transport.lose(ConnectionResetError())
                return False
            while not transport.takes and not transport.lost:
                await self._happen()
            if transport.lost:
                return True
            transport.deliver(piece)
            if rng.random() < 0.3:
                await self._happen()
        if rng.random() < 0.3 or self.is_cut_short:
            self._end_input()
        await self._settle()
        return True

    def _end_input(self) -> None:
        """Close the peer's half; what TLS has not answered by then, it never answers."""
        if self.transport.lost or self.is_ended:
            return
        self.is_ended = True
        self.transport.deliver_end()

    async def _settle(self) -> None:
        """Let everything come to an end that is under way."""
        quiet = 0
        while quiet < 3:
            self.transport.read_on()
            before = len(self.transport.written)
            has_settled = self.publisher.settle()
            await turn(10)
            quiet = 0 if has_settled or len(self.transport.written) > before else quiet + 1

    @property
    def loses_answers(self) -> bool:
        """Whether a peer that closed its half gets no more answers: TLS closes both."""
        return self.is_ended and self.transport.is_secure

    async def _happen(self) -> None:
        """Let one thing happen that is not the peer's next piece."""
        what = self.rng.choice(["turn", "settle", "settle", "stop", "read"])
        if what == "settle":
            self.publisher.settle()
        elif what == "stop":
            self.transport.peer_reads = False
        elif what == "read":
            self.transport.read_on()
        await turn(2)

    async def end(self) -> None:
        """Close as a peer does, and see that nothing is left."""
        if self.rng.random() < 0.5:
            self._end_input()
        await self._settle()
        self.transport.lose()
        await turn(10)
        assert 0 == self.publisher.held_bytes
        assert not self.port._connections
        assert not self.server_state.connections
        assert not self.server_state.tasks
        assert [1] * len(self.gate.handlers) == [len(each.codes) for each in self.gate.handlers]
        if self.port._sweep is not None:
            self.port._sweep.cancel()


def check(world: World, requests: list[Request], answers: list[SeenAnswer]) -> None:
    """Walk the model beside the answers."""
    is_open = True
    seen = iter(answers)
    for number, request in enumerate(requests):
        if not is_open:
            if request.bodies:
                assert request.bodies not in world.publisher.begun, "carried out behind the end"
            continue
        answer = next(seen, None)
        is_half = world.is_cut_short and number == len(requests) - 1
        # A client that closes its half before the 101 has given its socket up.
        is_given_up = request.is_upgrade and world.is_ended
        if answer is None and (is_half or is_given_up or world.loses_answers):
            # It may be published all the same: a lost connection promises nothing.
            is_open = False
            if is_half:
                assert request.bodies not in world.publisher.stored, "half a request was stored"
            continue
        assert answer is not None, f"no answer to {request.kind}: {request.data[:200]!r}"
        allowed = request.statuses | ({503} if world.is_tight else set())
        if is_half:
            allowed |= {400, 404, 408, 431}
        assert answer.status in allowed, (
            f"{answer.status} to {request.kind}: {request.data[:200]!r}"
        )
        is_stored = bool(request.bodies) and request.bodies in world.publisher.stored
        assert is_stored == (answer.status == 200 and bool(request.bodies))
        assert not (is_half and is_stored), "half a request was stored"
        is_open = not answer.closes
        assert not (request.must_close and is_open), f"{request.kind} left the connection open"
    assert next(seen, None) is None, "an answer that nobody asked for"


@pytest.mark.fuzz
async def test_each_request_of_a_pipeline_has_one_answer_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stored exactly when 200, nothing behind a close, everything given back at the end."""
    for seed in fuzz_seeds(SEEDS):
        rng = random.Random(seed)
        with print_seed(seed):
            requests = draw_stream(rng)
            check_with_h11(requests)
            world = World(rng)
            if await world.play(requests):
                answers, _ = read_answers(bytes(world.transport.written))
                check(world, requests, answers)
            await world.end()
            errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
            assert [] == errors


def test_the_table_of_states_names_every_state() -> None:
    """And leads nowhere from a connection that is lost."""
    assert set(ConnectionState) == TRANSITIONS.keys()
    assert not TRANSITIONS[ConnectionState.CLOSED]
