"""Which pages may call, and what a browser is told so that a page can read the answers."""

from __future__ import annotations

import json

import pytest

from gateway.errors import Forbidden
from gateway.web.origins import OriginPolicy, origins_and_host, same_origin_referer

ALLOWED = ["https://App.example.org", "http://127.0.0.1:5173", "https://tls.example.org:443"]
FRIEND = b"https://app.example.org"
POLICY = OriginPolicy(ALLOWED)
EVERYBODY = OriginPolicy(["*"])
CAREFUL = OriginPolicy(["http://listed.example.org"], trusts_host=False)

Headers = list[tuple[bytes, bytes]]


def preflight_of(origin: bytes, *more: tuple[bytes, bytes]) -> Headers:
    """Return the headers of a browser that asks whether a page may POST."""
    return [
        (b"host", b"gateway:8080"),
        (b"origin", origin),
        (b"access-control-request-method", b"POST"),
        *more,
    ]


def test_a_request_without_an_origin_passes() -> None:
    OriginPolicy().check([], b"gateway:8080")


@pytest.mark.parametrize(
    "origin,host",
    [
        (b"http://gateway:8080", b"gateway:8080"),
        (b"http://Gateway:8080", b"gateway:8080"),
        (b"http://gateway", b"gateway"),
        (b"http://gateway", b"gateway:80"),
        (b"https://gateway", b"gateway"),
        (b"https://gateway:443", b"gateway"),
        (b"http://[::1]:8080", b"[::1]:8080"),
        (b"https://app.example.org", b"gateway"),
        (b"https://app.example.org:443", b"gateway"),
        (b"https://tls.example.org", b"gateway"),
        (b"http://127.0.0.1:5173", b"127.0.0.1:8080"),
    ],
)
def test_our_own_page_and_a_listed_one_pass(origin: bytes, host: bytes) -> None:
    """Host and port are compared, letter case and the scheme's own port are not."""
    POLICY.check([origin], host)


@pytest.mark.parametrize(
    "origin,host",
    [
        (b"http://evil", b"gateway"),
        (b"http://gateway:8081", b"gateway:8080"),
        (b"http://gateway", b"gateway:8080"),
        (b"https://gateway", b"gateway:80"),
        (b"http://gateway.evil", b"gateway"),
        (b"http://evil/gateway", b"gateway"),
        (b"http://app.example.org", b"gateway"),
        (b"https://app.example.org:8443", b"gateway"),
        (b"https://app.example.org.evil", b"gateway"),
        (b"https://sub.app.example.org", b"gateway"),
        (b"https://app.example.org http://evil", b"gateway"),
        (b"null", b"null"),
        (b"null", b"gateway"),
        (b"*", b"gateway"),
        (b"", b""),
        (b"http://", b""),
        (b"gateway", b"gateway"),
        (b"http://\xe4", b"gateway"),
    ],
)
def test_a_foreign_page_is_refused(origin: bytes, host: bytes) -> None:
    """Another host, port or listed scheme is foreign, and so is no page at all."""
    with pytest.raises(Forbidden, match="--allow-origin"):
        POLICY.check([origin], host)


def test_an_empty_list_refuses_every_foreign_page() -> None:
    """Nothing on the list means nobody."""
    with pytest.raises(Forbidden):
        OriginPolicy().check([b"http://127.0.0.1:5173"], b"127.0.0.1:8080")


def test_a_second_origin_is_checked_too() -> None:
    """A good Origin does not cover for a foreign one."""
    with pytest.raises(Forbidden, match="'http://evil'"):
        OriginPolicy().check([b"http://gateway", b"http://evil"], b"gateway")


@pytest.mark.parametrize("origin", [b"http://evil", b"null", b"moz-extension://1-2", b""])
def test_a_star_allows_every_page(origin: bytes) -> None:
    """The operator has said so; one in a sandbox, which has no origin, is a page too."""
    EVERYBODY.check([origin], b"gateway")


# A name that leads here by itself (DNS rebinding)


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1:8080",
        b"127.0.0.1",
        b"10.0.0.7:8080",
        b"[::1]:8080",
        b"[::1]",
        b"localhost:8080",
        b"LocalHost",
        b"app.localhost:8080",
    ],
)
def test_a_page_of_this_machine_is_our_own_on_its_port(host: bytes) -> None:
    """An address cannot be rebound, and browsers keep localhost on their machine."""
    CAREFUL.check([b"http://" + host], host)


@pytest.mark.parametrize(
    "host",
    [
        b"rebound.example.org:8080",
        b"gateway",
        b"localhost.example.org",
        b"notlocalhost",
        b"127.0.0.1.example.org:8080",
        b"127.1",
        b"a:b:c",
        b"[rebound]",
        b"localhost:80:80",
        b".localhost",
        b"rebound.example.org#.localhost",
        b"rebound.example.org/.localhost",
        b"[fe80::1%rebound.example.org]",
        b"\xff",
    ],
)
def test_a_page_of_a_name_is_not_our_own_on_a_port_of_this_machine(host: bytes) -> None:
    """Whose name it is nobody knows; the text tells who is behind a proxy what to do."""
    with pytest.raises(Forbidden, match="--allow-origin http://"):
        CAREFUL.check([b"http://" + host], host)


def test_a_listed_page_of_a_name_passes_on_a_port_of_this_machine() -> None:
    """That of a proxy in front, which leaves its own name in Host."""
    CAREFUL.check([b"http://listed.example.org"], b"listed.example.org")


def test_the_text_of_a_refusal_is_bounded() -> None:
    """A long header does not fill a log."""
    with pytest.raises(Forbidden) as caught:
        POLICY.check([b"http://" + b"a" * 10_000], b"b" * 10_000)

    assert len(str(caught.value)) < 300


# Reading the answers


def test_a_listed_page_may_read_the_answer() -> None:
    """The page is named as it wrote itself, and what it may see besides the body."""
    assert (
        (b"access-control-allow-origin", b"https://App.Example.org"),
        (b"access-control-expose-headers", b"X-Request-Id, Retry-After, X-Nsq-Content-Type"),
        (b"vary", b"Origin"),
    ) == POLICY.cors_headers([b"https://App.Example.org"])


def test_every_page_may_read_the_answer_when_all_are_allowed() -> None:
    headers = dict(EVERYBODY.cors_headers([b"null"]))

    assert b"*" == headers[b"access-control-allow-origin"]


@pytest.mark.parametrize(
    "origins",
    [[], [b"http://gateway"], [b"http://evil"], [b"null"], [FRIEND, b"http://evil"], [FRIEND] * 2],
    ids=["no page", "our own", "foreign", "null", "one is foreign", "two"],
)
def test_nobody_else_is_told_anything(origins: list[bytes]) -> None:
    """Our own page needs no leave, and a foreign one has none."""
    assert () == POLICY.cors_headers(origins)


# What a browser asks before it posts


def test_a_browser_that_asks_for_a_listed_page_is_told_what_it_may_send() -> None:
    """The secret, the kind of the body and the request id may be sent along."""
    assert (
        204,
        [
            *POLICY.cors_headers([FRIEND]),
            (b"access-control-allow-methods", b"OPTIONS, POST"),
            (
                b"access-control-allow-headers",
                b"authorization, content-type, nsq-gateway-client, x-request-id",
            ),
            (b"access-control-max-age", b"600"),
        ],
        b"",
    ) == POLICY.preflight(preflight_of(FRIEND), "OPTIONS, POST")


@pytest.mark.parametrize("value,expected", [(b"true", b"true"), (b"false", None), (None, None)])
def test_a_page_of_another_network_may_call_when_it_is_listed(
    value: bytes | None, expected: bytes | None
) -> None:
    """Chromium asks for a public page that calls a private address."""
    asked = [] if value is None else [(b"access-control-request-private-network", value)]

    answer = POLICY.preflight(preflight_of(FRIEND, *asked), "POST")

    assert answer is not None
    assert expected == dict(answer[1]).get(b"access-control-allow-private-network")


@pytest.mark.parametrize("origin", [b"http://evil", b"null"])
def test_a_browser_that_asks_for_a_foreign_page_is_refused(origin: bytes) -> None:
    """The browser shows the page nothing; a person sees why among the requests."""
    answer = POLICY.preflight(preflight_of(origin, (b"x-request-id", b"seven")), "POST")

    assert answer is not None
    status, headers, body = answer
    told = json.loads(body)
    assert (403, "FORBIDDEN", "seven", []) == (
        status,
        told["message"],
        told["request_id"],
        [name for name, _ in headers if name.startswith(b"access-control-")],
    )


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"gateway")],
        [(b"host", b"gateway"), (b"origin", FRIEND)],
        [(b"host", b"gateway"), (b"access-control-request-method", b"POST")],
        preflight_of(b"http://gateway:8080"),
    ],
    ids=["no page", "no question", "no origin", "our own page"],
)
def test_another_options_request_is_no_preflight(headers: Headers) -> None:
    """It is answered as nsqd does."""
    assert None is POLICY.preflight(headers, "POST")


def test_the_page_of_a_request_is_its_origins_and_its_host() -> None:
    headers = [(b"origin", b"a"), (b"host", b"b"), (b"accept", b"c"), (b"origin", b"d")]

    assert ([b"a", b"d"], b"b") == origins_and_host(headers)


@pytest.mark.parametrize(
    "referer,host,origin",
    [
        (b"http://gateway:8080/page.html", b"gateway:8080", b"http://gateway:8080"),
        (b"https://Gateway.example/a/b?c=//d", b"gateway.example", b"https://Gateway.example"),
        (b"http://gateway/", b"gateway:80", b"http://gateway"),
        (b"http://127.0.0.1:8080", b"127.0.0.1:8080", b"http://127.0.0.1:8080"),
        (b"http://elsewhere/gateway:8080", b"gateway:8080", None),
        (b"http://gateway:8081/", b"gateway:8080", None),
        (b"gateway:8080", b"gateway:8080", None),
        (b"about:blank", b"gateway:8080", None),
        (b"", b"gateway:8080", None),
        (b"://", b"", None),
    ],
)
def test_our_own_page_is_known_by_its_referer(
    referer: bytes, host: bytes, origin: bytes | None
) -> None:
    """A page of another host is not: who follows a link is not meant."""
    assert origin == same_origin_referer([(b"host", host), (b"referer", referer)])


def test_without_a_referer_no_page_is_known() -> None:
    """A program sends none, and a page may keep it back."""
    assert same_origin_referer([(b"host", b"gateway")]) is None
