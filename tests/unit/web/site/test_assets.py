"""What a browser gets from the package: the module for every page, the console for itself."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.web.app import AppContext, create_app
from gateway.web.origins import OriginPolicy
from gateway.web.site.assets import static_files_router
from tests.support.http.asgi import http_client

MODULE = b"export const n = 1;\n"
PAGE = "<!doctype html><script type=module src=console/console.js></script>\n"
FILES = {
    "nsq.js": MODULE,
    "nsq.d.ts": b"export const n: number;\n",
    "console/index.html": PAGE.encode(),
    "console/console.js": b"import '../nsq.js';\n",
    "console/look.css": b"p { margin: 0 }\n",
    "console/sign.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>\n",
    "console/.swp": b"an editor's",
    "openapi.yaml": b"not a file for this router",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
PATHS = ["/nsq.js", "/nsq.d.ts", "/console", "/console/console.js"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    return tmp_path


def client_of(folder: Path, *, console: bool = True) -> httpx.AsyncClient:
    """Return a client of an application with these files and nothing else."""
    parts = AppContext(
        origins=OriginPolicy(("http://friend",)),
        routers=[static_files_router(folder, console=console)],
        has_console=console,
    )
    return http_client(create_app(parts))


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(folder) as client:
        yield client


# The module


@pytest.mark.parametrize("origin", [None, "http://evil", "http://friend", "null"])
@pytest.mark.parametrize(
    "path,media_type",
    [
        ("/nsq.js", "text/javascript; charset=utf-8"),
        ("/nsq.d.ts", "text/plain; charset=utf-8"),
    ],
)
async def test_every_page_may_load_the_module(
    path: str, media_type: str, origin: str | None, client: httpx.AsyncClient
) -> None:
    """Whatever its origin: a page on the list is answered as any other."""
    headers = {"X-Request-Id": "r-1"} | ({} if origin is None else {"Origin": origin})

    answer = await client.get(path, headers=headers)

    content = FILES[path[1:]]
    assert (200, content) == (answer.status_code, answer.content)
    assert {
        "content-type": media_type,
        "content-length": str(len(content)),
        "etag": answer.headers["etag"],
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "access-control-allow-origin": "*",
        "cross-origin-resource-policy": "cross-origin",
        "x-request-id": "r-1",
    } == dict(answer.headers)


async def test_a_module_has_its_type_whatever_the_system_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser runs no module of another type, and tables of systems have had it wrong."""
    monkeypatch.setitem(mimetypes.types_map, ".js", "text/plain")
    mimetypes.add_type("text/x-odd", ".css")

    async with client_of(folder) as client:
        kinds = [
            (await client.get(path)).headers["content-type"]
            for path in ("/nsq.js", "/console/console.js", "/console/look.css")
        ]
    mimetypes.init()

    script = "text/javascript; charset=utf-8"
    assert [script, script, "text/css; charset=utf-8"] == kinds


# The console


async def test_the_console_is_a_page_with_a_strict_policy(client: httpx.AsyncClient) -> None:
    """It runs its own files only, connects to its own host only, and nobody frames it."""
    answer = await client.get("/console", headers={"X-Request-Id": "r-1"})

    assert (200, PAGE) == (answer.status_code, answer.text)
    assert {
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(PAGE)),
        "etag": answer.headers["etag"],
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "content-security-policy": POLICY,
        "referrer-policy": "same-origin",
        "x-request-id": "r-1",
    } == dict(answer.headers)


@pytest.mark.parametrize(
    "name,media_type",
    [
        ("console.js", "text/javascript; charset=utf-8"),
        ("look.css", "text/css; charset=utf-8"),
        ("sign.svg", "image/svg+xml"),
    ],
)
async def test_a_file_of_the_console_has_its_type_and_the_policy(
    name: str, media_type: str, client: httpx.AsyncClient
) -> None:
    """A picture is opened by itself, too, and may run nothing then."""
    answer = await client.get(f"/console/{name}")

    assert (200, FILES[f"console/{name}"]) == (answer.status_code, answer.content)
    assert (media_type, POLICY) == (
        answer.headers["content-type"],
        answer.headers["content-security-policy"],
    )


@pytest.mark.parametrize(
    "path",
    [
        "/console/nothing.js",
        "/console/.swp",
        "/console/index.html",
        "/console/../openapi.yaml",
        "/console/%2e%2e/openapi.yaml",
        "/console/..%2fopenapi.yaml",
        "/console/%2e%2e%2fopenapi.yaml",
        "/console/..%5copenapi.yaml",
        "/console/..",
        "/console/console.js/",
        "/console/console.js%00.css",
        "/console/%c0%ae%c0%ae/openapi.yaml",
        "/console//etc/passwd",
        "/console/sub/console.js",
        "/console/CONSOLE.JS",
        "/console/" + "a" * 10_000,
        "/openapi.yaml",
        "/nsq.js/..",
    ],
)
async def test_a_name_that_is_not_of_the_console_is_no_file(
    path: str, client: httpx.AsyncClient
) -> None:
    """What there is was known at the start: no path leads anywhere else."""
    answer = await client.get(httpx.URL("http://gateway:8080", raw_path=path.encode()))

    # What is / once the dots are gone leads to the console.
    leads_home = answer.status_code == 307 and answer.headers["location"] == "/console"
    assert leads_home or answer.status_code in {301, 404}
    assert answer.content not in FILES.values()


@pytest.mark.parametrize(
    "path,location",
    [
        ("/console/", "/console"),
        ("/Console", "/console"),
        ("//console", "/console"),
        ("/console/?topic=t", "/console?topic=t"),
        ("/NSQ.js", "/nsq.js"),
        ("/console/console.js/", "/console/console.js"),
    ],
)
async def test_a_path_that_is_nearly_right_is_redirected(
    path: str, location: str, client: httpx.AsyncClient
) -> None:
    """As nsqd's own paths are: the page refers to its files from where it is."""
    answer = await client.get(httpx.URL("http://gateway:8080", raw_path=path.encode()))

    assert (301, location) == (answer.status_code, answer.headers["location"])


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/console.js"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
async def test_without_the_console_nothing_of_it_is_there(
    method: str, path: str, folder: Path
) -> None:
    """Not its name in the list of paths, either."""
    async with client_of(folder, console=False) as client:
        answer = await client.request(method, path)

    assert 404 == answer.status_code
    assert b"/console," not in answer.content


async def test_without_the_console_the_module_stays(folder: Path) -> None:
    async with client_of(folder, console=False) as client:
        assert 200 == (await client.get("/nsq.js")).status_code


# How a browser asks


@pytest.mark.parametrize("path", PATHS)
async def test_head_tells_what_get_would_send(path: str, client: httpx.AsyncClient) -> None:
    client.headers["X-Request-Id"] = "r-1"

    got, told = await client.get(path), await client.head(path)

    assert (200, b"", got.headers) == (told.status_code, told.content, told.headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
async def test_what_a_browser_has_is_not_sent_again(
    form: str, method: str, path: str, client: httpx.AsyncClient
) -> None:
    """304, with what a browser checks all the same."""
    kept = (await client.get(path)).headers
    known = form.format(kept["etag"])

    answer = await client.request(method, path, headers={"If-None-Match": known})

    assert (304, b"") == (answer.status_code, answer.content)
    names = set(kept) - {"content-type", "content-length", "x-request-id"}
    assert {name: kept[name] for name in names} == {name: answer.headers[name] for name in names}


async def test_what_has_changed_is_sent(folder: Path) -> None:
    """A new package has other content, and so another tag."""
    async with client_of(folder) as client:
        old = (await client.get("/nsq.js")).headers["etag"]
    (folder / "nsq.js").write_text("export const n = 2;\n")
    async with client_of(folder) as client:
        answer = await client.get("/nsq.js", headers={"If-None-Match": old})

    assert (200, "export const n = 2;\n") == (answer.status_code, answer.text)


@pytest.mark.parametrize("path", PATHS)
async def test_another_method_is_405(path: str, client: httpx.AsyncClient) -> None:
    answer = await client.post(path)

    assert (405, "GET, HEAD, OPTIONS") == (answer.status_code, answer.headers["allow"])


async def test_the_list_of_paths_does_not_name_the_files_of_the_console(
    client: httpx.AsyncClient,
) -> None:
    detail = (await client.get("/nothing")).json()["detail"]

    assert "/console, " in detail
    assert "/console/" not in detail


@pytest.mark.parametrize("missing", ["nsq.js", "nsq.d.ts", "console/index.html"])
def test_a_package_without_its_files_does_not_start(missing: str, folder: Path) -> None:
    """The name of what is missing is told."""
    (folder / missing).unlink()

    with pytest.raises(FileNotFoundError, match=missing.rpartition("/")[2]):
        static_files_router(folder)
