"""Requests that test HTTP itself: methods, paths and headers."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.http.http_requests import END, Talk, chunked, get, mpub, post, pub, request

_PUB = "/pub?topic=<topic>"

_PATHS = (
    "/pub",
    "/mpub",
    "/ping",
    "/info",
    "/stats",
    "/topic/create",
    "/topic/delete",
    "/topic/empty",
    "/topic/pause",
    "/topic/unpause",
    "/channel/create",
    "/channel/delete",
    "/channel/empty",
    "/channel/pause",
    "/channel/unpause",
)
_READ = {"/ping", "/info", "/stats"}

METHODS: Mapping[str, Talk] = {
    **{
        f"{method} {path}": request(method, f"{path}?topic=<topic>", None)
        for path in _PATHS
        for method in ("GET", "HEAD", "OPTIONS")
        if not (method == "GET" and path in _READ)
    },
    **{
        f"{method} {path}": request(method, f"{path}?topic=<topic>", b"x")
        for path in ("/pub", "/mpub", "/ping", "/topic/create", "/channel/create")
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "POST")
        if not (method == "POST" and path != "/ping")
    },
    "POST /stats": post("/stats", b"x"),
    "POST /info": post("/info", b"x"),
    "CONNECT /pub": request("CONNECT", _PUB, b"x"),
    "post in small letters": request("post", _PUB, b"x"),
    "a method of nobody": request("HELLO", _PUB, b"x"),
    "a method with a body of its own": request("PUBLISH", _PUB, b"x"),
    "OPTIONS of everything": request("OPTIONS", "*", None),
    "OPTIONS with a body": request("OPTIONS", "/pub", b"x"),
    "GET with a body": request("GET", "/ping", b"x"),
    "HEAD with a body": request("HEAD", "/ping", b"x"),
}

PATHS: Mapping[str, Talk] = {
    **{
        f"POST {path}": post(f"{path}?topic=<topic>", b"x")
        for path in (
            "/pub/",
            "/pub//",
            "//pub",
            "/Pub",
            "/PUB",
            "/PUB/",
            "/pub/x",
            "/pu",
            "/pubx",
            "/./pub",
            "/../pub",
            "/x/../pub",
            "/pub/.",
            "/pub/..",
            "/.pub",
            "/mpub/",
            "/MPub",
            "//mpub//",
            "/topic",
            "/topic/",
            "/topic//create",
            "/Topic/Create/",
            "/topic/nothing",
            "/channel/Delete",
            "/nothing",
            "/",
            "/p%75b",
            "/%70%75%62",
            "/%2Fpub",
            "/pub%2F",
            "/pub%20",
            "/pub%00",
            "/pub%FF",
            "/pub%C3%A4",
            "/pub%",
            "/pub%4",
            "/pub%zz",
            "/pub;x=1",
            "/%50UB",
            "/p%55b",
            "/pub%3Ftopic=a",
        )
    },
    **{
        f"GET {path}": get(path)
        for path in (
            "/",
            "/ping/",
            "/ping?x=%zz",
            "/ping?x;y",
            "/PING",
            "/PING/?x=1&y=%20",
            "//ping",
            "/ping/x",
            "/%70ing",
            "/ping%2F",
            "/Stats?format=json",
            "/INFO",
            "/favicon.ico",
            "/nothing",
            "/nothing/",
            "/config/max_msg_size",
            "/config/nothing",
            "/sub",
            "/docs",
            "/openapi.yaml",
        )
    },
    "PUT /config/log_level": request("PUT", "/config/log_level", b"info"),
    "PUT /debug/pprof/symbol": request("PUT", "/debug/pprof/symbol", b"x"),
    "PUT /ping/": request("PUT", "/ping/", b"x"),
    "HEAD /ping/": request("HEAD", "/ping/", None),
    "OPTIONS /pub/": request("OPTIONS", "/pub/", None),
    "OPTIONS /nothing": request("OPTIONS", "/nothing", None),
    "an address with a host": post("http://nsq/pub?topic=<topic>", b"x"),
    "an address with another host": post("http://elsewhere/pub?topic=<topic>", b"x"),
    "an address with a host and a port": post("http://nsq:4151/pub?topic=<topic>", b"x"),
    "an address with a host and no path": get("http://nsq"),
    "an address with a host, to ping": get("http://nsq/ping"),
    "an address with a host, in capitals": get("HTTP://NSQ/PING"),
    "an address of https": post("https://nsq/pub?topic=<topic>", b"x"),
    "an address of another scheme": post("ftp://nsq/pub?topic=<topic>", b"x"),
    "an address without a slash": post("pub?topic=<topic>", b"x"),
    "an address of a query": post("?topic=<topic>", b"x"),
    "an address with a space": post("/pub?topic=<topic>&x=a b", b"x"),
    "an address with a tab": post("/pub?topic=<topic>&x=a\tb", b"x"),
    "an address with a zero": post("/pub?topic=<topic>&x=a\0b", b"x"),
    "an address of 3000 bytes": post(f"{_PUB}&x=" + "y" * 3_000, b"x"),
    "an address of 30000 bytes": post(f"{_PUB}&x=" + "y" * 30_000, b"x"),
    "no address": b"POST  HTTP/1.1\r\nHost: nsq\r\n\r\n",
}

HEADERS: Mapping[str, Talk] = {
    "Connection: close": pub("topic=<topic>", b"x", "Connection: close"),
    "Connection: CLOSE": pub("topic=<topic>", b"x", "Connection: CLOSE"),
    "Connection: keep-alive": pub("topic=<topic>", b"x", "Connection: keep-alive"),
    "Connection: close, in a list": pub("topic=<topic>", b"x", "Connection: x, close"),
    "Connection: close, in /mpub": mpub("topic=<topic>", b"x", "Connection: close"),
    "Connection: close, refused": pub("topic=", b"x", "Connection: close"),
    "Connection: close, ping": get("/ping", "Connection: close"),
    "Connection: close, not found": get("/nothing", "Connection: close"),
    "Connection: upgrade": pub("topic=<topic>", b"x", "Connection: upgrade", "Upgrade: something"),
    "Upgrade: h2c": pub(
        "topic=<topic>",
        b"x",
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
    ),
    "Upgrade: h2c, ping": get("/ping", "Connection: Upgrade", "Upgrade: h2c"),
    "HTTP/1.0": pub().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.0 and keep-alive": pub("topic=<topic>", b"x", "Connection: keep-alive").replace(
        b"HTTP/1.1", b"HTTP/1.0"
    ),
    "HTTP/1.0 and refused": pub("topic=").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.0 without Host": b"POST /pub?topic=<topic> HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.0 and ping": get("/ping").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.0 and ping and keep-alive": get("/ping", "Connection: keep-alive").replace(
        b"HTTP/1.1", b"HTTP/1.0"
    ),
    "HTTP/1.0 and chunks": chunked(_PUB, b"x").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.0 and no length": (
        b"POST /pub?topic=<topic> HTTP/1.0\r\nHost: nsq\r\n\r\nx",
        END,
    ),
    "HTTP/1.2": pub().replace(b"HTTP/1.1", b"HTTP/1.2"),
    "HTTP/2.0": pub().replace(b"HTTP/1.1", b"HTTP/2.0"),
    "HTTP/0.9": b"GET /ping\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"POST /pub?topic=<topic>\r\nContent-Length: 1\r\n\r\nx",
    "a version in small letters": pub().replace(b"HTTP/1.1", b"http/1.1"),
    "no Host": pub().replace(b"Host: nsq\r\n", b""),
    "no Host, ping": get("/ping").replace(b"Host: nsq\r\n", b""),
    "Host twice": pub("topic=<topic>", b"x", "Host: nsq"),
    "an empty Host": pub().replace(b"Host: nsq", b"Host:"),
    "a Host with a space": pub().replace(b"Host: nsq", b"Host: n sq"),
    "names in small letters": pub().replace(b"Content-Length", b"content-length"),
    "names in capitals": pub().replace(b"Content-Length", b"CONTENT-LENGTH"),
    "no space behind the colon": pub().replace(b"Content-Length: ", b"Content-Length:"),
    "many spaces behind the colon": pub().replace(b"Content-Length: ", b"Content-Length:   "),
    "spaces behind the length": pub().replace(b"Length: 1", b"Length: 1  "),
    "a space before the colon": pub().replace(b"Content-Length:", b"Content-Length :"),
    "a space before the name": pub("topic=<topic>", b"x", " X: y"),
    "a folded header": pub("topic=<topic>", b"x", "X: y\r\n z"),
    "a header without a colon": pub("topic=<topic>", b"x", "X"),
    "a header without a name": pub("topic=<topic>", b"x", ": y"),
    "a header without a value": pub("topic=<topic>", b"x", "X:"),
    "a name that is no token": pub("topic=<topic>", b"x", "X(Y): z"),
    "a value with a zero": pub("topic=<topic>", b"x", b"X: y\0z"),
    "a value that is not ASCII": pub("topic=<topic>", b"x", b"X: \xff\xc3\xa4"),
    "lines that end in newlines alone": pub().replace(b"\r\n", b"\n"),
    "an empty line before the request": b"\r\n" + pub(),
    "two empty lines before the request": b"\r\n\r\n" + pub(),
    "one hundred headers": pub("topic=<topic>", b"x", *[f"X-{n}: y" for n in range(100)]),
    "a header of 10000 bytes": pub("topic=<topic>", b"x", "X: " + "y" * 10_000),
    "a type that is JSON": pub("topic=<topic>", b"{}", "Content-Type: application/json"),
    "a body that says it is gzip": pub("topic=<topic>", b"x", "Content-Encoding: gzip"),
    "an answer that may be gzip": pub("topic=<topic>", b"x", "Accept-Encoding: gzip"),
    "an answer of the old kind": pub(
        "topic=<topic>", b"x", "Accept: application/vnd.nsq; version=1.0"
    ),
    "an answer that may be nothing": pub("topic=<topic>", b"x", "Accept: image/png;q=0"),
    "a password": pub("topic=<topic>", b"x", "Authorization: Basic dTpw"),
    "an ETag that is asked for": pub("topic=<topic>", b"x", "If-None-Match: *"),
    "a range": pub("topic=<topic>", b"x", "Range: bytes=0-0"),
    "another method in a header": pub("topic=<topic>", b"x", "X-HTTP-Method-Override: GET"),
    "a cookie": pub("topic=<topic>", b"x", "Cookie: a=b; c=d"),
}
