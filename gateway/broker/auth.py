"""
Ask auth servers what a client's secret allows; see `authorization` for their answer.

Sources: internal/auth/authorizations.go (QueryAnyAuthd); internal/http_api/api_request.go.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from gateway.broker.authorization import AnswerRefused, Authorization, parse_answer
from gateway.errors import GatewayError, SettingsError

if TYPE_CHECKING:
    import httpx

_MAX_ANSWER_BYTES = 1_048_576
_MAX_REQUESTS = 100
"""Maximum requests to auth servers at the same time; further ones wait within their time limit."""
_METHODS = ("get", "post")
_OK, _FORBIDDEN = 200, 403


class AuthFailed(GatewayError):
    """No auth server gave a valid answer; the text has the reason of each."""


@dataclass(frozen=True, kw_only=True)
class AuthOptions:
    """The auth servers of a broker, and how to ask them."""

    addresses: Sequence[str]
    """host:port, or a URL."""
    method: str = "get"
    connect_timeout_ms: int = 2_000
    request_timeout_ms: int = 5_000
    root_ca_file: str = ""
    """Authorities for https; an empty string: those of the system."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an auth server is told about a client."""

    secret: bytes
    remote_ip: str
    is_tls: bool
    common_name: str
    """Common name of the client certificate; empty if there is none."""

    def __repr__(self) -> str:
        """Return the question without its secret."""
        return f"Question(remote_ip={self.remote_ip!r}, common_name={self.common_name!r})"

    def parameters(self) -> dict[str, bytes]:
        """Return the parameters of the request, in the order of their names."""
        return {
            "common_name": self.common_name.encode(),
            "remote_ip": self.remote_ip.encode(),
            "secret": self.secret,
            "tls": b"true" if self.is_tls else b"false",
        }


class AuthClient:
    """
    The client of a broker's auth servers.

    Raises:
        SettingsError: An option is invalid.
    """

    def __init__(self, options: AuthOptions) -> None:
        # Here, because httpx takes half as long to import as the broker to start.
        import httpx  # noqa: PLC0415

        if options.method not in _METHODS:
            allowed = ", ".join(_METHODS)
            raise SettingsError("--auth-http-request-method", options.method, allowed=allowed)
        self._options = options
        self._urls = [_url_of(address) for address in options.addresses]
        self._http = httpx.AsyncClient(
            verify=_tls_context(options),
            trust_env=False,
            # As Go's client does, which nsqd uses.
            follow_redirects=True,
            headers={
                "Accept": "application/vnd.nsq; version=1.0",
                # A compressed body may exceed the limit only after decompression.
                "Accept-Encoding": "identity",
            },
            limits=httpx.Limits(max_connections=_MAX_REQUESTS, max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=options.connect_timeout_ms / 1000),
        )

    async def ask(self, question: Question) -> Authorization:
        """
        Return the answer of the first auth server that gives one, from a random one on.

        Raises:
            AuthFailed: None of them gave a valid answer in time.
        """
        first = random.randrange(len(self._urls))  # noqa: S311 - spreads the load, hides nothing
        reasons = []
        for url in (*self._urls[first:], *self._urls[:first]):
            try:
                return await self._ask_one(url, question)
            except AnswerRefused as error:
                reasons.append(f"{url}: {error}")
            except TimeoutError:
                limit_ms = self._options.request_timeout_ms
                reasons.append(f"{url}: no answer within {limit_ms} ms")
            except Exception as error:  # noqa: BLE001 - httpx, h11 and idna raise errors of their own
                # Not their text, which may quote the URL with the secret.
                reasons.append(f"{url}: {type(error).__name__}")
        raise AuthFailed("; ".join(reasons))

    async def close(self) -> None:
        """End the requests; idempotent."""
        await self._http.aclose()

    async def _ask_one(self, url: str, question: Question) -> Authorization:
        async with asyncio.timeout(self._options.request_timeout_ms / 1000):
            status, body = await self._request(url, question)
            if status == _FORBIDDEN and not url.startswith("https"):
                # An nsqd-like server that wants TLS answers with its port.
                status, body = await self._request(_https_url(url, body), question)
        if status != _OK:
            raise AnswerRefused(f"status {status}")
        return parse_answer(body, now=asyncio.get_running_loop().time())

    async def _request(self, url: str, question: Question) -> tuple[int, bytes]:
        parameters = question.parameters()
        if self._options.method == "post":
            content = msgspec.json.encode(
                {name: [value.decode(errors="replace")] for name, value in parameters.items()}
            )
            headers = {"Content-Type": "application/json"}
            request = self._http.build_request("POST", url, content=content, headers=headers)
        else:
            separator = "&" if "?" in url else "?"
            request = self._http.build_request("GET", f"{url}{separator}{urlencode(parameters)}")
        answer = await self._http.send(request, stream=True)
        try:
            return answer.status_code, await _read(answer)
        finally:
            await answer.aclose()


async def _read(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise AnswerRefused(f"it has more than {_MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _url_of(address: str) -> str:
    return address if "://" in address else f"http://{address}/auth"


class _TlsRequired(msgspec.Struct):
    https_port: int


def _https_url(url: str, body: bytes) -> str:
    """Return *url* with https and the port that *body*, the answer to plain HTTP, names."""
    import httpx  # noqa: PLC0415 - see `AuthClient`

    try:
        port = msgspec.json.decode(body, type=_TlsRequired).https_port
    except msgspec.DecodeError as error:
        raise AnswerRefused(f"status {_FORBIDDEN}") from error
    return str(httpx.URL(url).copy_with(scheme="https", port=port))


def _tls_context(options: AuthOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.root_ca_file or None)
    except OSError as error:
        allowed = f"a readable PEM file with certificates; {error.strerror or error}"
        raise SettingsError("--tls-root-ca-file", options.root_ca_file, allowed=allowed) from error
    return context
