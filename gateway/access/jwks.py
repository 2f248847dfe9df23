"""
The keys of an issuer with a `jwks_url`: requested again and again, and kept while that fails.

httpx is imported on use, because it takes half as long to import as a broker to start.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gateway.access.keys import KeySet, KeysRefused, parse_jwks
from gateway.access.policy import Issuer
from gateway.aio import spawn
from gateway.telemetry import fast_counter, gauge, get_logger

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 1_048_576
TIMEOUT_S = 5.0
"""Maximum time of a request, from the connection to the last byte."""
MIN_INTERVAL_S = 10.0
"""Minimum time between two requests to an issuer, however many tokens have an unknown key."""

_OK = 200
_REDIRECTS = range(300, 400)
_JITTER = 0.1
"""Replicas that started together shall not ask an issuer together for ever."""

_FETCHES = fast_counter(
    "jwks_fetches_total",
    "Requests for the keys of an issuer (jwks_url), by issuer and result: ok or failed.",
    ["issuer", "result"],
)
_LAST_SUCCESS = gauge(
    "jwks_last_success_timestamp_seconds",
    "Time of the last valid answer with the keys of an issuer (jwks_url), in seconds since 1970; "
    "0: none yet.",
    ["issuer"],
)

logger = get_logger()


class JwksOptions(NamedTuple):
    """How often keys are requested, and how long they hold."""

    refresh_s: float = 300.0
    """Time between two requests."""
    max_stale_s: float = 3_600.0
    """Time for which keys hold after the last valid answer."""


class JwksClient:
    """
    The keys at the `jwks_url` of *issuer*.

    *on_change* is called when they have changed, and when they no longer hold.
    """

    def __init__(self, issuer: Issuer, options: JwksOptions, on_change: Callable[[], None]) -> None:
        if issuer.jwks_url is None:
            raise ValueError("the issuer has no jwks_url")
        self.keys = KeySet()
        self.last_error = "no answer yet"
        """Why the last request failed; empty after a valid answer."""
        self.issuer = issuer
        self._url = issuer.jwks_url
        self._options = options
        self._on_change = on_change
        self._failures = 0
        self._is_wanted = asyncio.Event()
        """Set when a token has an unknown key."""
        self._answered = asyncio.Event()
        """Set after the first answer, valid or not."""
        self._asked_at = 0.0
        self.is_asking = False
        """True while a request is under way."""
        self._task: asyncio.Task[None] | None = None
        self._stale_timer: asyncio.TimerHandle | None = None
        _FETCHES.init_series((issuer.name, result) for result in ("ok", "failed"))
        _LAST_SUCCESS.labels(issuer.name).set(0)

    def is_for(self, issuer: Issuer) -> bool:
        """Return whether the keys are those that *issuer* wants."""
        return (self.issuer.name, self._url, self.issuer.algorithms) == (
            issuer.name,
            issuer.jwks_url,
            issuer.algorithms,
        )

    def start(self) -> None:
        """Request the keys, now and again and again; idempotent."""
        if self._task is None:
            self._task = spawn(f"keys of {self.issuer.name}", self._run())

    async def wait_for_answer(self) -> None:
        """Wait for the end of the first request, successful or not."""
        await self._answered.wait()

    def request(self) -> None:
        """Request the keys soon, because a token has an unknown one."""
        self._is_wanted.set()

    async def stop(self) -> None:
        """End the requests; idempotent. The keys stay."""
        task, self._task = self._task, None
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def forget_metrics(self) -> None:
        """Remove the issuer's time of the last answer: the issuer is no longer in the file."""
        _LAST_SUCCESS.remove(self.issuer.name)

    async def _run(self) -> None:
        import httpx  # noqa: PLC0415

        client = httpx.AsyncClient(
            verify=ssl.create_default_context() if self._url.startswith("https") else False,
            trust_env=False,
            follow_redirects=False,
            headers={
                "Accept": "application/jwk-set+json, application/json",
                # A compressed body may exceed the limit only after decompression.
                "Accept-Encoding": "identity",
            },
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
            timeout=None,  # noqa: S113 - the whole request has a limit
        )
        async with client:
            while True:
                self._asked_at = asyncio.get_running_loop().time()
                self.is_asking = True
                await self._ask(client)
                self.is_asking = False
                self._answered.set()
                await self._wait()

    async def _wait(self) -> None:
        """Wait until the next request is due."""
        loop = asyncio.get_running_loop()
        refresh_s = self._options.refresh_s * random.uniform(1 - _JITTER, 1)  # noqa: S311
        if self._failures:
            # From 10 s on, twice as long after each failure.
            refresh_s = min(refresh_s, MIN_INTERVAL_S * 2 ** min(self._failures - 1, 10))
        due_at = self._asked_at + max(refresh_s, 0)
        # What was unknown before the answer may be known now.
        self._is_wanted.clear()
        try:
            async with asyncio.timeout_at(due_at):
                await self._is_wanted.wait()
        except TimeoutError:
            return
        wait_s = min(due_at, self._asked_at + MIN_INTERVAL_S) - loop.time()
        await asyncio.sleep(max(wait_s, 0))

    async def _ask(self, client: httpx.AsyncClient) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                body = await self._fetch(client)
            found = parse_jwks(body, self.issuer.algorithms)
        except KeysRefused as error:
            self._on_failure(str(error))
        except TimeoutError:
            self._on_failure(f"no complete answer within {TIMEOUT_S:g} s")
        except Exception as error:  # noqa: BLE001 - httpx, h11 and idna raise errors of their own
            self._on_failure(str(error) or type(error).__name__)
        else:
            self._on_success(found)

    async def _fetch(self, client: httpx.AsyncClient) -> bytes:
        answer = await client.send(client.build_request("GET", self._url), stream=True)
        try:
            if answer.status_code in _REDIRECTS:
                raise KeysRefused(
                    f"it answers with a redirect (status {answer.status_code}); set jwks_url to "
                    "the address it leads to"
                )
            if answer.status_code != _OK:
                raise KeysRefused(f"it answers with status {answer.status_code}")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise KeysRefused("its answer is compressed, which was not asked for")
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise KeysRefused(f"it answers more than {MAX_ANSWER_BYTES} bytes")
            return bytes(body)
        finally:
            await answer.aclose()

    def _on_success(self, found: KeySet) -> None:
        _FETCHES.counts[self.issuer.name, "ok"] += 1
        _LAST_SUCCESS.labels(self.issuer.name).set(time.time())
        if self._failures and self._answered.is_set():
            logger.info("keys of an issuer available again", issuer=self.issuer.name)
        self._failures = 0
        self.last_error = ""
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        self._stale_timer = asyncio.get_running_loop().call_later(
            self._options.max_stale_s, self._drop
        )
        self._replace(found)

    def _on_failure(self, reason: str) -> None:
        _FETCHES.counts[self.issuer.name, "failed"] += 1
        self._failures += 1
        # Each reason once, until a request succeeds.
        if reason != self.last_error:
            logger.warning(
                "keys of an issuer not available",
                issuer=self.issuer.name,
                url=self._url,
                reason=reason,
                keys=len(self.keys.keys),
            )
        self.last_error = reason

    def _drop(self) -> None:
        logger.error(
            "keys of an issuer dropped: too old",
            issuer=self.issuer.name,
            limit_s=self._options.max_stale_s,
            reason=self.last_error,
        )
        self._replace(KeySet())

    def _replace(self, keys: KeySet) -> None:
        if keys != self.keys:
            self.keys = keys
            logger.info(
                "keys of an issuer changed",
                issuer=self.issuer.name,
                keys=[f"{key.algorithm} {key.kid or ''}".rstrip() for key in keys.keys],
            )
            self._on_change()
