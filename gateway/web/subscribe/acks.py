"""
POST /ack: carry out FIN, REQ and TOUCH for leases, at this process or at the replica that has them.

A lease names its owner, so that an ack may reach any replica behind a balancer. A replica sends on
what it does not hold, once, to the management port of the owner, signed with the key of the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, NamedTuple, TypeAlias

import httpx
import msgspec

from gateway.client.http import ByteBudget, http_client, read_body
from gateway.errors import InvalidRequest
from gateway.session.leases import Lease, LeaseKey, Owner
from gateway.session.pulls import LEASE_LOST
from gateway.telemetry import fast_counter, get_logger
from gateway.web.auth import Principal
from gateway.web.subscribe.pull import AckVerb, LeaseIssuer, LeaseRefusal, Pulls, count_acks
from gateway.web.subscribe.request import MIN_MSG_TIMEOUT_MS

logger = get_logger()

MAX_LEASES_PER_ACK = 10_000
FORWARD_PATH = "/leases/ack"
"""The route of the management port for acks that another replica sends on."""
SIGNATURE, WORKER = "nsq-gateway-signature", "nsq-gateway-worker"
"""Headers of such an ack."""

_LEASES_PER_STEP = 500
"""Leases that are read, or answered, before other callbacks run, which takes at most 2 ms."""
_FORWARD_S = 1.0
"""Time for the owner's response, the connection included."""
_CONNECT_S = 0.5
"""Time to connect to the owner; then it is gone."""
_MAX_FORWARDS = 64
"""Acks sent on at a time; others wait, within `_FORWARD_S`."""
_MAX_RESPONSE_BYTES = 4 * 1_048_576

_FORWARDED = fast_counter(
    "lease_forwards_total",
    "Leases of other replicas in POST /ack, by whether their owner responded.",
    ("result",),
    zeros=[("answered",), ("lost",), ("unknown",)],
)

_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _Requeue(msgspec.Struct):
    lease: str
    timeout_ms: _Milliseconds = 0


class _Touch(msgspec.Struct):
    lease: str
    lease_ms: _Milliseconds = 0


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /ack."""

    fin: list[str] = []
    req: list[_Requeue] = []
    touch: list[_Touch] = []

    def __len__(self) -> int:
        """Return the number of leases."""
        return len(self.fin) + len(self.req) + len(self.touch)


class RefusedLease(msgspec.Struct):
    """A lease for which nothing was done, or of which that is unknown."""

    lease: str
    code: str
    message: str
    retryable: bool


class AckResponse(msgspec.Struct):
    """The body of the response to POST /ack."""

    done: int
    refused: list[RefusedLease]


class _Forwarded(msgspec.Struct):
    """An ack that a replica sends on: *leases* are signed, and of the receiver."""

    verb: str
    time_ms: int
    leases: list[str]


_Result: TypeAlias = LeaseRefusal | None
"""None: it was done."""

_requests = msgspec.json.Decoder(AckRequest)
_forwarded = msgspec.json.Decoder(_Forwarded)
_results = msgspec.json.Decoder(list[tuple[str, str] | None])
_OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"

_INVALID = LeaseRefusal("E_INVALID", "this is no lease of this gateway for this caller")


def read_ack(body: bytes, *, max_req_timeout_ms: int, max_lease_ms: int) -> AckRequest:
    """
    Return the ack in *body*.

    Raises:
        InvalidRequest: It is no such JSON, names no lease or too many, or a time is out of range.
    """
    try:
        ack = _requests.decode(body)
    except (ValueError, RecursionError) as error:
        text = f'the body is no ack: {error}; example: {{"fin": ["lease"]}}'
        raise InvalidRequest("INVALID_REQUEST", text) from None
    if not 0 < len(ack) <= MAX_LEASES_PER_ACK:
        text = f"the ack names {len(ack)} leases; allowed: 1 to {MAX_LEASES_PER_ACK}"
        raise InvalidRequest("INVALID_REQUEST", text)
    for requeue in ack.req:
        if requeue.timeout_ms > max_req_timeout_ms:
            text = f"timeout_ms is {requeue.timeout_ms}; allowed: 0 to {max_req_timeout_ms} ms"
            raise InvalidRequest("INVALID_REQUEST", text)
    for touch in ack.touch:
        if touch.lease_ms and not MIN_MSG_TIMEOUT_MS <= touch.lease_ms <= max_lease_ms:
            allowed = f"{MIN_MSG_TIMEOUT_MS} to {max_lease_ms} ms"
            text = f"lease_ms is {touch.lease_ms}; allowed: {allowed}"
            raise InvalidRequest("INVALID_REQUEST", text)
    return ack


class _Group(NamedTuple):
    """At most `_LEASES_PER_STEP` leases of one owner with one verb, and where their results go."""

    owner: Owner
    verb: AckVerb
    texts: list[str]
    leases: list[Lease]
    places: list[int]


class LeaseAcks:
    """
    Carry out acks.

    Args:
        pulls: Has the holders of this process.
        issuer: The key, and this process as an owner.
        forwarder: Sends acks on to other replicas.
    """

    def __init__(self, pulls: Pulls, issuer: LeaseIssuer, forwarder: AckForwarder) -> None:
        self._pulls = pulls
        self._issuer = issuer
        self._forwarder = forwarder

    async def answer(self, ack: AckRequest, principal: Principal) -> AckResponse:
        """Carry out *ack* for *principal*, and return what was done and what was refused."""
        asked: list[tuple[AckVerb, list[str]]] = [(AckVerb("FIN"), ack.fin)]
        asked += [(AckVerb("REQ", each.timeout_ms), [each.lease]) for each in ack.req]
        asked += [(AckVerb("TOUCH", each.lease_ms), [each.lease]) for each in ack.touch]
        groups = await self._groups(asked, self._issuer.caller_tag(principal))
        results: list[_Result] = [_INVALID] * len(ack)
        process = self._issuer.owner.process
        own = [group for group in groups if group.owner.process == process]
        others = [group for group in groups if group.owner.process != process]
        forwarding = [self._forward_group(group, results) for group in others]
        await asyncio.gather(self._answer_own(own, results), *forwarding)
        done = results.count(None)
        if done == len(results):
            return AckResponse(done, [])
        names = chain.from_iterable(texts for _, texts in asked)
        refused = [
            RefusedLease(text, *result, retryable=result.code == _OUTCOME_UNKNOWN)
            for text, result in zip(names, results, strict=True)
            if result is not None
        ]
        return AckResponse(done, refused)

    async def _groups(self, asked: list[tuple[AckVerb, list[str]]], caller: bytes) -> list[_Group]:
        """Return the leases of *caller* in groups; what is no such lease is in none."""
        groups: list[_Group] = []
        last: dict[tuple[Owner, AckVerb], _Group] = {}
        read, place = self._issuer.key.read, -1
        for verb, texts in asked:
            for text in texts:
                place += 1
                if place % _LEASES_PER_STEP == _LEASES_PER_STEP - 1:
                    await asyncio.sleep(0)
                lease = read(text)
                if lease is None or lease.caller != caller:
                    count_acks(verb, [_INVALID])
                    continue
                key = lease.owner, verb
                group = last.get(key)
                if group is None or len(group.places) == _LEASES_PER_STEP:
                    group = last[key] = _Group(*key, [], [], [])
                    groups.append(group)
                group.texts.append(text)
                group.leases.append(lease)
                group.places.append(place)
        return groups

    async def _answer_own(self, groups: Sequence[_Group], results: list[_Result]) -> None:
        for group in groups:
            _store(self._pulls.answer_own(group.verb, group.leases), group, results)
            await asyncio.sleep(0)

    async def _forward_group(self, group: _Group, results: list[_Result]) -> None:
        of_group = await self._forward(group)
        count_acks(group.verb, of_group)
        _store(of_group, group, results)

    async def _forward(self, group: _Group) -> Sequence[_Result]:
        """Send a group on to its owner; return the results."""
        number = len(group.leases)
        if not group.owner.address:
            return [_gone()] * number
        verb = group.verb
        body = msgspec.json.encode(_Forwarded(verb.name, verb.time_ms, group.texts))
        try:
            response = await self._forwarder.send(group.owner, body, sign(self._issuer.key, body))
            if response is None:
                _FORWARDED.counts["lost",] += number
                return [_gone()] * number
            results = _read_results(response, number)
        except ValueError as error:
            _FORWARDED.counts["unknown",] += number
            logger.warning("ack not forwarded", owner=group.owner.address, reason=str(error))
            text = f"the gateway that holds it did not answer within {_FORWARD_S:g} s; ack it again"
            return [LeaseRefusal(_OUTCOME_UNKNOWN, text)] * number
        _FORWARDED.counts["answered",] += number
        return results

    def receive(self, body: bytes, signature: str) -> bytes | None:
        """
        Carry out an ack that another replica has sent on, and return the response.

        Returns None if the signature is wrong. A lease of another process, such as the one that had
        this address before, is refused as LEASE_LOST. An ack that is sent twice finds its leases
        answered.
        """
        if not is_signed(self._issuer.key, body, signature):
            return None
        try:
            ack = _forwarded.decode(body)
        except (ValueError, RecursionError):
            return None
        verb = AckVerb(ack.verb, ack.time_ms)
        leases = [self._issuer.key.read(text) for text in ack.leases]
        own = [
            lease
            for lease in leases
            if lease is not None and lease.owner.process == self._issuer.owner.process
        ]
        done = iter(self._pulls.answer_own(verb, own))
        results: list[_Result] = []
        for lease in leases:
            if lease is None:
                results.append(_INVALID)
            elif lease.owner.process != self._issuer.owner.process:
                results.append(_gone())
            else:
                results.append(next(done))
        return msgspec.json.encode(results)


def _store(of_group: Sequence[_Result], group: _Group, results: list[_Result]) -> None:
    for place, result in zip(group.places, of_group, strict=True):
        results[place] = result


def _read_results(response: bytes, number: int) -> list[_Result]:
    """Return the results in a response; raises ValueError if it is not one for each lease."""
    results = _results.decode(response)
    if len(results) != number:
        raise ValueError(f"it answered {len(results)} results for {number} leases")
    return [None if each is None else LeaseRefusal(*each) for each in results]


def sign(key: LeaseKey, body: bytes) -> str:
    """Return the signature of an ack that is sent on."""
    return key.tag(b"ack\0" + body).hex()


def is_signed(key: LeaseKey, body: bytes, signature: str) -> bool:
    """Return whether *signature* is that of *body*."""
    try:
        return key.is_tag(bytes.fromhex(signature), b"ack\0" + body)
    except ValueError:
        return False


def _gone() -> LeaseRefusal:
    text = "the gateway that held it is gone: NSQ delivers the message again"
    return LeaseRefusal(LEASE_LOST, text)


class AckForwarder:
    """Send acks on to the management ports of other replicas."""

    def __init__(self) -> None:
        self._client = http_client(max_connections=_MAX_FORWARDS)

    async def send(self, owner: Owner, body: bytes, signature: str) -> bytes | None:
        """
        Send *body*, an ack, to *owner*; return the response, None if it cannot be connected to.

        Raises:
            ValueError: There was no valid response in time: the outcome is unknown.
        """
        url = f"http://{owner.address}{FORWARD_PATH}"
        headers = {SIGNATURE: signature, WORKER: str(owner.worker)}
        limit = httpx.Timeout(None, connect=_CONNECT_S)
        try:
            async with (
                asyncio.timeout(_FORWARD_S),
                self._client.stream(
                    "POST", url, content=body, headers=headers, timeout=limit
                ) as response,
            ):
                content = await read_body(response, ByteBudget(_MAX_RESPONSE_BYTES))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
            return None
        except Exception as error:
            # Not httpx.HTTPError: idna and h11 raise their own, and one response of a peer must not
            # fail the other leases of an ack.
            raise ValueError(str(error) or type(error).__name__) from error
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"it answered {response.status_code}")
        return content

    async def stop(self) -> None:
        """Close all connections."""
        await self._client.aclose()
