"""Requests that test HTTP itself: expectations, lengths, chunks, pipelines, half-close."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.http.http_requests import END, Talk, chunked, get, mpub, pub, request

_PUB = "/pub?topic=<topic>"
_CHUNKED = "Transfer-Encoding: chunked"
_EXPECT = "Expect: 100-continue"


def _head(*headers: str, target: str = _PUB) -> bytes:
    return request("POST", target, None, *headers)


EXPECTATIONS: Mapping[str, Talk] = {
    "a body that is waited for": (_head(_EXPECT, "Content-Length: 1"), b"x"),
    "a body that is waited for, in capitals": (
        _head("EXPECT: 100-CONTINUE", "Content-Length: 1"),
        b"x",
    ),
    "a body that is waited for and does not wait": _head(_EXPECT, "Content-Length: 1") + b"x",
    "lines that are waited for": (
        _head(_EXPECT, "Content-Length: 3", target="/mpub?topic=<topic>"),
        b"a\nb",
    ),
    "chunks that are waited for": (_head(_EXPECT, _CHUNKED), b"1\r\nx\r\n0\r\n\r\n"),
    "a body too big to be waited for": (_head(_EXPECT, "Content-Length: 101"), END),
    "lines too big to be waited for": (
        _head(_EXPECT, "Content-Length: 1001", target="/mpub?topic=<topic>"),
        END,
    ),
    "lines to no topic, not waited for": _head(_EXPECT, "Content-Length: 1", target="/mpub"),
    "an empty body that is waited for": _head(_EXPECT, "Content-Length: 0"),
    "a body for a path that is not there": _head(_EXPECT, "Content-Length: 1", target="/nothing"),
    "a body with a method that is not there": request(
        "PUT", _PUB, None, _EXPECT, "Content-Length: 1"
    ),
    "a body of a topic to be created": _head(
        _EXPECT, "Content-Length: 1", target="/topic/create?topic=<topic>"
    ),
    "another expectation": pub("topic=<topic>", b"x", "Expect: something"),
    "an empty expectation": pub("topic=<topic>", b"x", "Expect:"),
    "an expectation of HTTP/1.0": _head(_EXPECT, "Content-Length: 1").replace(b"/1.1", b"/1.0")
    + b"x",
}

LENGTHS: Mapping[str, Talk] = {
    **{
        f"a length of {name}": _head(f"Content-Length: {value}") + b"x"
        for name, value in {
            "nothing": "",
            "a word": "one",
            "-1": "-1",
            "a plus and 1": "+1",
            "01": "01",
            "hexadecimal": "0x1",
            "a fraction": "1.0",
            "an exponent": "1e0",
            "an underscore": "1_0",
            "a unit": "1B",
            "1 and 1": "1, 1",
            "1 and 2": "1, 2",
            "20 digits": "99999999999999999999",
            "the most of 63 bits": "9223372036854775807",
            "the most of 63 bits and 1": "9223372036854775808",
            "1 in quotes": '"1"',
            "a digit that is not ASCII": "\xb2",
        }.items()
    },
    "the same length twice": _head("Content-Length: 1", "Content-Length: 1") + b"x",
    "two lengths": _head("Content-Length: 1", "Content-Length: 2") + b"x",
    "a length and chunks": _head("Content-Length: 6", _CHUNKED) + b"1\r\nx\r\n0\r\n\r\n",
    "chunks and a length": _head(_CHUNKED, "Content-Length: 6") + b"1\r\nx\r\n0\r\n\r\n",
    "a bad length and chunks": _head("Content-Length: x", _CHUNKED) + b"1\r\nx\r\n0\r\n\r\n",
    "a length of ping": request("GET", "/ping", b"", "X: y"),
}

_CHUNK = b"1\r\nx\r\n"
_LAST = b"0\r\n\r\n"

CHUNKS: Mapping[str, Talk] = {
    **{
        f"an encoding of {name}": _head(f"Transfer-Encoding: {value}") + _CHUNK + _LAST
        for name, value in {
            "nothing": "",
            "capitals": "CHUNKED",
            "chunked and spaces": "  chunked  ",
            "identity": "identity",
            "gzip": "gzip",
            "gzip and chunked": "gzip, chunked",
            "chunked and gzip": "chunked, gzip",
            "chunked and chunked": "chunked, chunked",
            "something else": "something",
            "chunked in quotes": '"chunked"',
            "chunked with a parameter": "chunked;q=1",
        }.items()
    },
    "an encoding given twice": _head(_CHUNKED, _CHUNKED) + _CHUNK + _LAST,
    **{
        f"chunks with {name}": _head(_CHUNKED) + body
        for name, body in {
            "an extension": b"1;a=b\r\nx\r\n" + _LAST,
            "an extension in quotes": b'1;a="b;c"\r\nx\r\n' + _LAST,
            "an extension without value": b"1;a\r\nx\r\n" + _LAST,
            "a space before an extension": b"1 ;a=b\r\nx\r\n" + _LAST,
            "an extension at the end": _CHUNK + b"0;a=b\r\n\r\n",
            "a long extension": b"1;a=" + b"b" * 3_000 + b"\r\nx\r\n" + _LAST,
            "a trailer": _CHUNK + b"0\r\nX: y\r\n\r\n",
            "two trailers": _CHUNK + b"0\r\nX: y\r\nZ: z\r\n\r\n",
            "a length as trailer": _CHUNK + b"0\r\nContent-Length: 5\r\n\r\n",
            "a bad trailer": _CHUNK + b"0\r\nbad\r\n\r\n",
            "zeros before the size": b"0001\r\nx\r\n000\r\n\r\n",
            "sizes in small letters": b"a\r\n0123456789\r\n" + _LAST,
            "sizes in capitals": b"A\r\n0123456789\r\n" + _LAST,
            "a space behind the size": b"1 \r\nx\r\n" + _LAST,
            "a space before the size": b" 1\r\nx\r\n" + _LAST,
            "a plus before the size": b"+1\r\nx\r\n" + _LAST,
            "a minus before the size": b"-1\r\nx\r\n" + _LAST,
            "a size of hexadecimal": b"0x1\r\nx\r\n" + _LAST,
            "a size that is no number": b"z\r\nx\r\n" + _LAST,
            "an empty size": b"\r\nx\r\n" + _LAST,
            "a size of 17 digits": b"10000000000000000\r\nx\r\n" + _LAST,
            "newlines alone": b"1\nx\n0\n\n",
            "no line end behind the data": b"1\r\nx0\r\n\r\n",
            "more data than said": b"1\r\nxy\r\n" + _LAST,
        }.items()
    },
    "chunks without end": (_head(_CHUNKED) + _CHUNK, END),
    "chunks that end in their size": (_head(_CHUNKED) + b"5", END),
    "chunks with a size of 16 digits": (_head(_CHUNKED) + b"7fffffffffffffff\r\nx", END),
    "chunks that end in their data": (_head(_CHUNKED) + b"5\r\nabc", END),
}

PIPELINES: Mapping[str, Talk] = {
    "three messages at once": pub(body=b"a") + pub(body=b"bc") + pub(body=b"def"),
    "messages and lines at once": pub(body=b"a") + mpub(body=b"b\nc") + pub(body=b"d"),
    "good and refused at once": pub() + pub("topic=") + pub(body=b"") + pub(),
    "too much and good at once": pub(body=b"x" * 101) + pub(),
    "message and ping at once": pub() + get("/ping") + pub() + get("/nothing"),
    "ping and message at once": get("/ping") + pub() + get("/PING"),
    "pings at once": get("/ping") * 3,
    "chunks at once": chunked(_PUB, b"a") + chunked(_PUB, b"b"),
    "fifty messages at once": pub() * 50,
    "the last one closes": pub() + pub("topic=<topic>", b"x", "Connection: close"),
    "the first one closes": pub("topic=<topic>", b"x", "Connection: close") + pub(),
    "the first one is of HTTP/1.0": pub().replace(b"/1.1", b"/1.0") + pub(),
    "newlines between": pub() + b"\r\n" + pub(),
    "a message and garbage": pub() + b"garbage\r\n\r\n",
    "a message and zeros": pub() + bytes(64) + b"\r\n\r\n",
    "a message and half a line": (pub() + b"POST /pu", END),
    "a message and half a head": (pub() + b"POST /pub HTTP/1.1\r\nHo", END),
    "a message and half a message": (pub() + pub(body=b"abcdef")[:-3], END),
    "a message and half a message, then the rest": (
        pub() + pub(body=b"abcdef")[:-3],
        b"def" + pub(),
    ),
    "a message and half a head, then the rest": (pub() + pub()[:30], pub()[30:] + pub()),
    "a message and half of some chunks, then the rest": (
        pub() + _head(_CHUNKED) + b"1\r\nx",
        b"\r\n0\r\n\r\n" + pub(),
    ),
    "a ping and half a message, then the rest": (get("/ping") + pub()[:-1], b"x"),
    "a message and half a ping, then the rest": (pub() + get("/ping")[:9], get("/ping")[9:]),
    "a refusal and half a message, then the rest": (pub("topic=") + pub()[:-1], b"x"),
    "a message and a bad length": pub() + _head("Content-Length: x"),
    "a ping and garbage": get("/ping") + b"garbage\r\n\r\n",
    "a message longer than said": pub().replace(b"Length: 1", b"Length: 0") + b"\r\n\r\n",
    "a head with a head in its body": pub(body=get("/ping")),
    "the same bytes twice": (pub(body=b"same"), pub(body=b"same")),
    "the same head, another body": (pub(body=b"same"), pub(body=b"other"[:4])),
    "the same head, half a body": (pub(body=b"same"), pub(body=b"same")[:-2], END),
}

ENDS: Mapping[str, Talk] = {
    "nothing at all": (b"\r\n", END),
    "half a line": (b"POST /pub?to", END),
    "half a head": (b"POST /pub?topic=<topic> HTTP/1.1\r\nHost: nsq\r\nCont", END),
    "a head and no body": (_head("Content-Length: 5"), END),
    "half a body": (_head("Content-Length: 10") + b"half", END),
    "half of some lines": (
        _head("Content-Length: 10", target="/mpub?topic=<topic>") + b"a\nb\n",
        END,
    ),
    "half of some frames": (
        _head("Content-Length: 100", target="/mpub?topic=<topic>&binary=1") + b"\0\0\0\1\0\0\0\1a",
        END,
    ),
    "half of lines to no topic": (_head("Content-Length: 10", target="/mpub") + b"a\n", END),
    "half a body for a ping": (_head("Content-Length: 10", target="/ping") + b"half", END),
    "a whole message and an end": (pub(), END),
    "whole lines and an end": (mpub(body=b"a\nb"), END),
    "a whole refusal and an end": (pub("topic="), END),
    "a whole ping and an end": (get("/ping"), END),
    "three messages and an end": (pub() * 3, END),
    "garbage": b"garbage\r\n\r\n",
    "zeros": bytes(64) + b"\r\n\r\n",
    "what is said to the TCP port": b"  V2IDENTIFY\n\0\0\0\2{}\r\n\r\n",
    "what begins TLS": b"\x16\x03\x01\x00\x05hello\r\n\r\n",
    "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
}
