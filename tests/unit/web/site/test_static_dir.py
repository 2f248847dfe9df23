"""The folder of --static-dir: its files are served, and nothing else of the machine is."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.web.app import AppContext, create_app
from gateway.web.origins import OriginPolicy
from gateway.web.site.static_dir import StaticDir
from tests.support.http.asgi import Exchange, http_client, http_scope
from tests.support.second_user import as_unprivileged_user, world_readable_folder

TEN = b"0123456789"
OUTSIDE = b"not for everybody"
FILES = {
    "index.html": b"<!doctype html>",
    "app.js": b"export {};",
    "module.mjs": b"export {};",
    "style.css": b"p {}",
    "picture.webp": b"RIFF",
    "code.wasm": b"\0asm",
    "archive.js.gz": b"\x1f\x8b",
    "noname": b"\0",
    "ten": TEN,
    "empty": b"",
    "Info": b"big letters",
    "with space.txt": b"space",
    "ümlaut.txt": b"letters",
    "semi;colon.txt": b";",
    "deep/index.html": b"deep",
    "deep/er/file.txt": b"deeper",
    "a:b/index.html": b"colon",
    "bare/file.txt": b"a folder without a page",
    "404.html": b"a page",
    ".env": OUTSIDE,
    ".git/config": OUTSIDE,
    "deep/.hidden": OUTSIDE,
    ".well-known/security.txt": b"Contact: mailto:me@example.org",
    "..data/page.txt": b"linked to",
    "ping": b"never seen",
    "console/index.html": b"never seen",
    "topic/create": b"never seen",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a page, beside a file that is not in it."""
    (tmp_path / "outside.txt").write_bytes(OUTSIDE)
    folder = tmp_path / "page"
    for name, content in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (folder / "inner.txt").symlink_to("..data/page.txt")
    (folder / "outer.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    return folder


def client_of(folder: Path) -> httpx.AsyncClient:
    """Return a client of an application with this folder under everything else."""
    origins = OriginPolicy(("http://friend",))
    parts = AppContext(origins=origins, static_dir=StaticDir(str(folder)))
    return http_client(create_app(parts))


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(folder) as client:
        yield client


def raw(path: str) -> httpx.URL:
    return httpx.URL("http://gateway:8080", raw_path=path.encode())


# What is there


@pytest.mark.parametrize(
    "path,name,media_type",
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/index.html", "index.html", "text/html; charset=utf-8"),
        ("/app.js", "app.js", "text/javascript; charset=utf-8"),
        ("/module.mjs", "module.mjs", "text/javascript; charset=utf-8"),
        ("/style.css", "style.css", "text/css; charset=utf-8"),
        ("/picture.webp", "picture.webp", "image/webp"),
        ("/code.wasm", "code.wasm", "application/wasm"),
        ("/archive.js.gz", "archive.js.gz", "application/octet-stream"),
        ("/noname", "noname", "application/octet-stream"),
        ("/empty", "empty", "application/octet-stream"),
        ("/with%20space.txt", "with space.txt", "text/plain; charset=utf-8"),
        ("/%C3%BCmlaut.txt", "ümlaut.txt", "text/plain; charset=utf-8"),
        ("/semi;colon.txt", "semi;colon.txt", "text/plain; charset=utf-8"),
        ("/app.js?v=2", "app.js", "text/javascript; charset=utf-8"),
        ("/deep/", "deep/index.html", "text/html; charset=utf-8"),
        ("/deep/er/file.txt", "deep/er/file.txt", "text/plain; charset=utf-8"),
        ("/deep%2Fer%2Ffile.txt", "deep/er/file.txt", "text/plain; charset=utf-8"),
        ("/deep/../app.js", "app.js", "text/javascript; charset=utf-8"),
        ("//app.js", "app.js", "text/javascript; charset=utf-8"),
        ("/.well-known/security.txt", ".well-known/security.txt", "text/plain; charset=utf-8"),
        ("/inner.txt", "..data/page.txt", "text/plain; charset=utf-8"),
    ],
)
async def test_a_file_of_the_folder_is_served(
    path: str, name: str, media_type: str, client: httpx.AsyncClient
) -> None:
    """With its type, never guessed, and to be asked for again."""
    answer = await client.get(raw(path), headers={"X-Request-Id": "r-1"})

    assert (200, FILES[name]) == (answer.status_code, answer.content)
    assert {
        "content-type": media_type,
        "content-length": str(len(FILES[name])),
        "etag": answer.headers["etag"],
        "last-modified": answer.headers["last-modified"],
        "accept-ranges": "bytes",
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "x-request-id": "r-1",
    } == dict(answer.headers)


@pytest.mark.parametrize(
    "path,location",
    [
        ("/deep", "./deep/"),
        ("/deep?x=1&y=%20", "./deep/?x=1&y=%20"),
        ("//deep", "./deep/"),
        ("/a:b", "./a%3Ab/"),
    ],
)
async def test_a_folder_is_named_with_a_slash(
    path: str, location: str, client: httpx.AsyncClient
) -> None:
    """So that its page finds its files; a proxy in front may have the path below another one."""
    answer = await client.get(raw(path))

    assert (307, location) == (answer.status_code, answer.headers["location"])


@pytest.mark.parametrize(
    "path", ["/", "/app.js", "/ten", "/deep/", "/deep/er/file.txt", "/with%20space.txt"]
)
async def test_head_tells_what_get_would_send(path: str, client: httpx.AsyncClient) -> None:
    client.headers["X-Request-Id"] = "r-1"

    got, told = await client.get(raw(path)), await client.head(raw(path))

    assert (200, b"", got.headers) == (told.status_code, told.content, told.headers)


async def test_a_page_on_the_list_may_read_it(client: httpx.AsyncClient) -> None:
    """The rules for pages are those of every other path."""
    friend = await client.get("/app.js", headers={"Origin": "http://friend"})
    evil = await client.get("/app.js", headers={"Origin": "http://evil"})

    assert "http://friend" == friend.headers["access-control-allow-origin"]
    assert "access-control-allow-origin" not in evil.headers


# What is not


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/bare/",
        "/bare",
        "/app.js/",
        "/app.js/x",
        "/.env",
        "/.git/config",
        "/.git",
        "/.GIT/config",
        "/%2egit/config",
        "/deep/.hidden",
        "/deep/../.env",
        "/..data/page.txt",
        "/.well-known/../.env",
        "/outer.txt",
        "/up/outside.txt",
        "/up",
        "/loop",
        "/dangling",
        "/pipe",
        "/../outside.txt",
        "/../page/app.js",
        "/%2e%2e/outside.txt",
        "/%2e%2e%2foutside.txt",
        "/..%2foutside.txt",
        "/deep/../../outside.txt",
        "/..%5coutside.txt",
        "/..\\outside.txt",
        "/%252e%252e/outside.txt",
        "/%c0%ae%c0%ae/outside.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/%5cetc/passwd",
        "/app.js%00",
        "/app.js%00.html",
        "/%ff",
        "/..",
        "/...",
        "/~root",
        "/" + "a" * 256,
        "/" + "a/" * 2_500,
        "/" + "../" * 100 + "etc/passwd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_is_hidden_or_elsewhere_is_404(method: str, path: str, folder: Path) -> None:
    """As if it were not there, whatever the path is made of."""
    # As a server gives it: a client would tidy it up.
    scope = http_scope(method, unquote(path))
    app = create_app(AppContext(static_dir=StaticDir(str(folder))))

    [head, body] = (await Exchange(scope, []).run(app)).sent

    assert (404, [b"application/problem+json"]) == (
        head["status"],
        [value for name, value in head["headers"] if name == b"content-type"],
    )
    assert b"NOT_FOUND" in body["body"]


@pytest.mark.parametrize(
    "method,path,status",
    [
        ("GET", "/ping", 200),
        ("HEAD", "/ping", 405),
        ("GET", "/pub", 405),
        ("GET", "/topic/create", 405),
        ("GET", "/console/", 301),
        ("GET", "/Info", 301),
        ("POST", "/app.js", 404),
        ("PUT", "/new.txt", 404),
        ("DELETE", "/app.js", 404),
        ("OPTIONS", "/app.js", 404),
        ("PROPFIND", "/", 404),
    ],
)
async def test_the_gateways_own_paths_and_methods_are_as_before(
    method: str, path: str, status: int, client: httpx.AsyncClient
) -> None:
    """A folder adds GET and HEAD of what was 404."""
    answer = await client.request(method, path)

    assert status == answer.status_code
    assert b"never seen" not in answer.content


async def test_a_page_that_is_missing_is_told_with_a_problem(client: httpx.AsyncClient) -> None:
    """For programs, the word is that of every other path."""
    answer = await client.get("/nothing")

    assert "NOT_FOUND" == answer.json()["message"]
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


# What a browser has already, and parts


async def test_what_a_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    kept = (await client.get("/app.js")).headers

    answers = [
        await client.get("/app.js", headers={"If-None-Match": kept["etag"]}),
        await client.get("/app.js", headers={"If-None-Match": f"W/{kept['etag']}"}),
        await client.head("/app.js", headers={"If-None-Match": "*"}),
        await client.get("/app.js", headers={"If-Modified-Since": kept["last-modified"]}),
        await client.get("/app.js", headers={"If-None-Match": '"other"'}),
    ]

    assert [304, 304, 304, 304, 200] == [answer.status_code for answer in answers]
    assert [b"", b"", b"", b""] == [answer.content for answer in answers[:4]]
    assert kept["etag"] == answers[0].headers["etag"]


async def test_a_file_that_was_written_is_sent_at_once(
    folder: Path, client: httpx.AsyncClient
) -> None:
    """Nothing is kept here: save, reload."""
    old = (await client.get("/app.js")).headers["etag"]
    (folder / "app.js").write_bytes(b"export const n = 1;")

    answer = await client.get("/app.js", headers={"If-None-Match": old})

    assert (200, b"export const n = 1;") == (answer.status_code, answer.content)


@pytest.mark.parametrize(
    "asked,status,content",
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=-3", 206, b"789"),
        ("bytes=7-", 206, b"789"),
        ("bytes=7-999", 206, b"789"),
        ("Bytes = 7-", 206, b"789"),
        ("bytes=10-", 416, b""),
        ("bytes=5-2", 200, TEN),
        ("bytes=", 200, TEN),
        ("bytes=-", 200, TEN),
        ("bytes=a-b", 200, TEN),
        ("bytes=0-3,x", 200, TEN),
        ("lines=0-3", 200, TEN),
        ("0-3", 200, TEN),
        ("bytes=" + "9" * 5_000 + "-", 200, TEN),
        ("bytes=" + ",".join(["0-9"] * 1_000), 200, TEN),
    ],
)
async def test_a_part_of_a_file_may_be_asked_for(
    asked: str, status: int, content: bytes, client: httpx.AsyncClient
) -> None:
    answer = await client.get("/ten", headers={"Range": asked})

    assert (status, content) == (answer.status_code, answer.content)


async def test_several_parts_come_in_one_answer(client: httpx.AsyncClient) -> None:
    """As for what browsers of documents ask for."""
    answer = await client.get("/ten", headers={"Range": "bytes=0-1,8-9"})

    assert (206, True) == (
        answer.status_code,
        answer.headers["content-type"].startswith("multipart/byteranges; boundary="),
    )
    assert b"\r\n\r\n01\r\n" in answer.content


# What goes wrong meanwhile


async def test_a_folder_that_is_gone_is_404_and_may_come_back(folder: Path) -> None:
    """Before the first request, and between two: a build may clear it away."""
    away = folder.with_name("away")
    async with client_of(folder) as client:
        shutil.move(folder, away)
        gone = await client.get("/app.js")
        shutil.move(away, folder)
        back = await client.get("/app.js")
        shutil.rmtree(folder)
        gone_again = await client.get("/app.js")

    assert [404, 200, 404] == [answer.status_code for answer in (gone, back, gone_again)]


@pytest.fixture
def guarded() -> Iterator[Path]:
    """Return a folder with a file and a folder in it that nobody may read."""
    with world_readable_folder() as folder:
        (folder / "dir").mkdir()
        for each in ("file", "dir/file"):
            (folder / each).write_bytes(OUTSIDE)
        (folder / "file").chmod(0)
        (folder / "dir").chmod(0)
        yield folder
        (folder / "dir").chmod(0o755)


@pytest.mark.parametrize("path", ["/file", "/dir/file", "/dir/", "/dir"])
async def test_a_file_that_may_not_be_read_is_403(path: str, guarded: Path) -> None:
    """The caller is told, the log says why, and there is no traceback."""
    async with client_of(guarded) as client:
        with capture_logs() as logs, as_unprivileged_user():
            answer = await client.get(path)

    problem = answer.json()
    assert (403, "FORBIDDEN") == (answer.status_code, problem["message"])
    assert f"the gateway has no permission to read {path}; try chmod a+r" == problem["detail"]
    [line] = logs
    assert ("static file not readable", path) == (line["event"], line["path"])
    assert "exc_info" not in line


class _Watched:
    """An ASGI `send` that does something to the file once its first bytes are out."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.sent: list[dict[str, object]] = []
        self._do = do

    async def __call__(self, event: object) -> None:
        assert isinstance(event, dict)
        self.sent.append(event)
        if len(self.sent) == 2:
            self._do()


@pytest.mark.parametrize("size,whole", [(0, False), (100_000, False), (5_000_000, True)])
async def test_a_file_that_is_written_meanwhile_is_cut_not_padded(
    size: int, folder: Path, *, whole: bool
) -> None:
    """Never more than the head has promised; less is an answer that breaks off."""
    file = folder / "big"
    file.write_bytes(b"x" * 1_000_000)
    send = _Watched(partial(os.truncate, file, size))
    scope = http_scope("GET", "/big") | {"state": {"request_id": "r"}}

    with capture_logs() as logs:
        await StaticDir(str(folder)).serve(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    bodies = [event["body"] for event in send.sent[1:]]
    size_bytes = sum(len(body) for body in bodies if isinstance(body, bytes))
    assert whole is (size_bytes == 1_000_000)
    assert (not whole) is bool(send.sent[-1]["more_body"])
    assert ["static file changed while being sent"] * (not whole) == [
        line["event"] for line in logs
    ]


async def test_a_client_that_leaves_is_not_sent_the_rest(folder: Path) -> None:
    """Its file is let go of."""
    (folder / "big").write_bytes(b"x" * 10_000_000)
    scope = http_scope("GET", "/big") | {"state": {"request_id": "r"}}
    exchange = Exchange(scope, [{"type": "http.disconnect"}])

    await exchange.run(StaticDir(str(folder)).serve)  # type: ignore[arg-type]

    assert 100 > len(exchange.sent)
