"""Pages over HTTP: a static folder, the console, and what pages may request."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.gateways.workers import gateway_with_two_workers
from tests.support.http.raw_http import send_raw_request
from tests.support.websocket.raw_socket import handshake, raw_socket
from tests.support.websocket.subscriber_client import open_socket, refused_upgrade

pytestmark = pytest.mark.asyncio(loop_scope="module")

OUTSIDE = b"not for everybody"
BIG_BYTES = 8 * 1_048_576


def page(folder: Path) -> Path:
    page = folder / "page"
    page.mkdir()
    (folder / "outside.txt").write_bytes(OUTSIDE)
    (page / ".env").write_bytes(OUTSIDE)
    (page / "index.html").write_bytes(b"<!doctype html>")
    (page / "app.js").write_bytes(b"export {};")
    (page / "out").symlink_to(folder / "outside.txt")
    with (page / "big.bin").open("wb") as big:
        big.truncate(BIG_BYTES)
    return page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page(tmp_path_factory.mktemp("served"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(folder: Path) -> AsyncIterator[RunningGateway]:
    """Return a gateway with a page of its own; at its end, its log has no traceback."""
    async with gateway_alone(f"--static-dir={folder}", "--allow-origin=http://friend") as gateway:
        yield gateway


async def ask(gateway: RunningGateway, method: bytes, target: bytes) -> tuple[int, bytes]:
    """Return status and body for a *target* as it stands."""
    host = gateway.address.encode()
    head = b"%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (method, target, host)
    answer = await send_raw_request(gateway.address, head)
    return answer.status, answer.body


async def test_a_page_and_its_module_have_one_origin(served: RunningGateway) -> None:
    """The page, its script, the module that it imports, and the console beside them."""
    answers = [await served.http.get(path) for path in ("/", "/app.js", "/nsq.js", "/console")]

    html, script = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
    assert [(200, html), (200, script), (200, script), (200, html)] == [
        (answer.status_code, answer.headers["content-type"]) for answer in answers
    ]


async def test_a_page_of_the_folder_is_our_own(served: RunningGateway) -> None:
    """It may subscribe and publish without being on any list."""
    own = {"Origin": served.url}
    answer = await served.http.post("/pub?topic=t", content=b"x", headers=own)
    async with open_socket(served.sub_url("t", "c"), headers=own) as client:
        first = await client.receive()

    assert (200, "SUB") == (answer.status_code, first["cmd"])


@pytest.mark.parametrize(
    "target",
    [
        b"/../outside.txt",
        b"/..",
        b"/%2e%2e/outside.txt",
        b"/%2e%2e%2foutside.txt",
        b"/..%2Foutside.txt",
        b"/x/../../outside.txt",
        b"/.%2e/outside.txt",
        b"/..%5coutside.txt",
        b"/..\\outside.txt",
        b"/%252e%252e/outside.txt",
        b"/%c0%ae%c0%ae/outside.txt",
        b"/..;/outside.txt",
        b"//etc/passwd",
        b"/%2fetc/passwd",
        b"/etc/passwd",
        b"http://elsewhere/../outside.txt",
        b"/.env",
        b"/%2eenv",
        b"/%2Eenv",
        b"/x/../.env",
        b"/out",
        b"/app.js%00.txt",
        b"/%00",
        b"/%ff%fe",
        b"/\xff\xfe",
        b"/" + b"a" * 300,
        b"/" + b"a/" * 10_000,
        b"/" + b"../" * 5_000 + b"etc/passwd",
        b"/console/../page/.env",
        b"/console/%2e%2e/%2e%2e/outside.txt",
        b"/console/..%2f..%2foutside.txt",
        b"/console/%2e%2e%2fdocs.css",
        b"/nsq.js%00",
        b"/nsq.js/../docs.css",
    ],
)
async def test_no_path_leads_out_of_the_folder(served: RunningGateway, target: bytes) -> None:
    """Every path gets a defined response, and no byte of another file."""
    status, body = await ask(served, b"GET", target)
    head_status, no_body = await ask(served, b"HEAD", target)

    assert status in {400, 404}
    assert OUTSIDE not in body
    assert b"root:" not in body
    assert (status, b"") == (head_status, no_body)


async def test_a_slow_download_delays_no_other_client(served: RunningGateway) -> None:
    """It waits for its reader, in little memory, and others are served."""
    async with raw_socket(served.address) as raw:
        await raw.send(b"GET /big.bin HTTP/1.1\r\nHost: gateway\r\n\r\n")
        head = await raw.read_until(b"\r\n\r\n")
        others = [(await served.http.get(path)).status_code for path in ("/ping", "/app.js", "/")]
        size_bytes = len(await raw.read_exactly(BIG_BYTES))

    assert head.startswith(b"HTTP/1.1 200 OK")
    assert ([200, 200, 200], BIG_BYTES) == (others, size_bytes)


async def test_a_reader_that_leaves_in_the_middle_is_no_error(served: RunningGateway) -> None:
    """As everybody does who clicks on; the log of the gateway says nothing of it."""
    async with raw_socket(served.address) as raw:
        await raw.send(b"GET /big.bin HTTP/1.1\r\nHost: gateway\r\n\r\n")
        await raw.read_until(b"\r\n\r\n")

    assert 200 == (await served.http.get("/app.js")).status_code


async def test_a_folder_may_go_and_come_while_it_is_served(tmp_path: Path) -> None:
    """404 meanwhile, and / leads to the console; the gateway's own paths are not touched."""
    folder, away = page(tmp_path), tmp_path / "away"
    async with gateway_alone(f"--static-dir={folder}") as gateway:
        os.rename(folder, away)  # noqa: PTH104 - a Path would do the same
        gone = [(await gateway.http.get(path)).status_code for path in ("/", "/app.js", "/nsq.js")]
        os.rename(away, folder)  # noqa: PTH104
        back = [(await gateway.http.get(path)).status_code for path in ("/", "/app.js", "/nsq.js")]

    assert ([307, 404, 200], [200, 200, 200]) == (gone, back)


async def test_every_worker_serves_the_page(folder: Path) -> None:
    """Connections may reach different workers."""
    async with gateway_with_two_workers(f"--static-dir={folder}", "--no-console") as gateway:
        seen = set()
        for _ in range(20):
            async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
                paths = ("/", "/app.js", "/nsq.js", "/console")
                seen.add(tuple([(await client.get(path)).status_code for path in paths]))

    assert {(200, 200, 200, 404)} == seen


# What a page may ask about a socket


@pytest.mark.parametrize(
    "query,headers,status",
    [
        ("topic=t&chanel=c", {}, 400),
        ("", {}, 400),
        ("topic=a%20b&channel=c", {}, 400),
        ("topic=t&channel=c&max_in_flight=0", {}, 400),
        ("topic=t&channel=c", {"Origin": "http://evil"}, 403),
        ("topic=t&chanel=c", {"Origin": "http://evil"}, 403),
        ("topic=t&chanel=c", {"Origin": "http://friend"}, 400),
        ("topic=t&channel=c", {"Authorization": "Bearer a b"}, 400),
    ],
)
async def test_a_plain_get_has_the_same_error_as_the_upgrade(
    served: RunningGateway, query: str, headers: dict[str, str], status: int
) -> None:
    """Status and body are the same: a page reads here what its browser keeps back there."""
    ours = {**headers, "X-Request-Id": "same"}

    told = await served.http.get(f"/sub?{query}", headers=ours)

    refused = await refused_upgrade(f"{served.websocket_url}/sub?{query}", headers=ours)
    assert (status, refused) == (told.status_code, (told.status_code, told.json()))
    # A page that may not call may read at least that.
    page_may_read = status == 403 or headers.get("Origin") == "http://friend"
    assert page_may_read is ("access-control-allow-origin" in told.headers)


async def test_a_page_under_another_host_name_gets_the_reason(served: RunningGateway) -> None:
    """Behind a proxy, its upgrade is refused; its GET, without an Origin, gets the reason."""
    target = "/sub?topic=t&channel=c"
    upgrade = handshake("nsq.example.org", target).removesuffix(b"\r\n")
    headers = {"Host": "nsq.example.org", "Referer": "https://nsq.example.org/page.html"}

    refused = await send_raw_request(
        served.address, upgrade + b"Origin: https://nsq.example.org\r\nX-Request-Id: r\r\n\r\n"
    )
    told = await served.http.get(target, headers={**headers, "X-Request-Id": "r"})

    assert (403, refused.status, refused.body) == (told.status_code, 403, told.content)
    assert "--allow-origin https://nsq.example.org" in told.json()["detail"]


async def test_a_plain_get_of_a_valid_subscription_counts_as_no_socket() -> None:
    """426 for any number of requests; then a socket opens, and the next one is refused."""
    async with gateway_alone("--max-sockets=1") as gateway:
        before = [(await gateway.http.get("/sub?topic=t&channel=c")) for _ in range(3)]
        async with gateway.subscribe("t", "c"):
            full = await gateway.http.get("/sub?topic=t&channel=c")

    assert [(426, "websocket")] * 3 == [
        (answer.status_code, answer.headers["upgrade"]) for answer in before
    ]
    assert (503, "FULL", "5") == (
        full.status_code,
        full.json()["message"],
        full.headers["retry-after"],
    )
