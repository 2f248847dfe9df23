"""
Intended differences between the gateway's HTTP and nsqd's, each with its reason.

Names are those of the talks in http_requests_*.py, texts those of differential.py: where nsqd has
the one text, the gateway has the other one. More than one row may be about a talk, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.brokers.nsqd import NSQD_VERSION, is_older_nsqd


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The gateway's response in place of nsqd's, for some talks."""

    reason: str
    nsqd: str
    gateway: str
    talks: tuple[str, ...]

    def applied_to(self, outcome: str) -> str:
        """
        Return the gateway's intended outcome for nsqd's *outcome*.

        Raises AssertionError if nsqd's outcome has changed.
        """
        assert self.nsqd in outcome, f"{self.nsqd!r} is not in {outcome!r}: {self.reason}"
        return outcome.replace(self.nsqd, self.gateway)


_EMPTY_TOPIC = " [: 0 messages of 0 bytes, 0 waiting]"
_STORED_ONE = " [: 1 messages of 1 bytes, 1 waiting]"

NO_EMPTY_TOPIC = (
    Difference(
        reason="nsqd makes the topic before it looks at what is behind; the gateway looks first, "
        "and asks nsqd for nothing when there is nothing to publish",
        nsqd=_EMPTY_TOPIC,
        gateway="",
        talks=(
            "a bad delay to a new topic",
            "nothing but empty lines",
            "one empty line",
            "no lines",
            "no lines, without length",
            "no lines in chunks",
            "a line of the most and one",
            "a line of the most and one at the end",
            "a line of the most and a carriage return",
            "a line too long before too much",
            "a line too long across the limit",
            "a line too long up to the limit",
            "lines in chunks of the most and one",
            "lines in chunks far too big",
            "half of some lines",
            *(
                f"frames that are {name}"
                for name in (
                    "not there",
                    "one byte",
                    "three bytes",
                    "a count of 0",
                    "a count of 0 and a frame",
                    "a count of -1",
                    "the least count",
                    "the highest count",
                    "one more than may be",
                    "a count and nothing",
                    "a count and one byte",
                    "a count and three bytes",
                    "a size of 0",
                    "a size of 0 behind a good one",
                    "a size of -1",
                    "the highest size",
                    "the most and one",
                    "the most and one, and not there",
                    "cut short by one byte",
                    "cut short by one message",
                    "cut short behind a size",
                    "little-endian",
                    "text",
                )
            ),
            "frames in chunks, cut short",
            "frames in chunks, not there",
        ),
    ),
)

LIMITS = (
    *(
        Difference(
            reason="what goes to nsqd is MPUB, whose body has a size before each message: it is "
            "above max_body_size where the lines are not",
            nsqd=f"200 OK, open [: {stored}]",
            gateway="413 BODY_TOO_BIG, open",
            talks=(talk,),
        )
        for talk, stored in {
            "lines of the most": "17 messages of 984 bytes, 17 waiting",
            "lines of 1 byte, one more than MPUB takes": "200 messages of 200 bytes, 200 waiting",
            "lines of 1 byte, as many as the body takes": "500 messages of 500 bytes, 500 waiting",
            "lines that MPUB does not take by one byte": "11 messages of 953 bytes, 11 waiting",
        }.items()
    ),
    *(
        Difference(
            reason="nsqd reads frames that come in chunks without end; the gateway holds a body in "
            "memory, and so bounds every one",
            nsqd=f"200 OK, open [: {stored}]",
            gateway="413 BODY_TOO_BIG, open",
            talks=(talk,),
        )
        for talk, stored in {
            "frames in chunks of the most and one": "1 messages of 1 bytes, 1 waiting",
            "frames in chunks far too big": "20 messages of 2000 bytes, 20 waiting",
        }.items()
    ),
    Difference(
        reason="nsqd multiplies the delay to nanoseconds in 64 bits, and takes what wraps around "
        "into its limit",
        nsqd="200 OK, open" + _STORED_ONE,
        gateway="400 INVALID_DEFER, open",
        talks=("a delay of what wraps around to 448384 ns",),
    ),
    Difference(
        reason="the same, around to 0",
        nsqd="200 OK, open [: 1 messages of 1 bytes, 0 waiting; channel c: 1 waiting, 0 deferred]",
        gateway="400 INVALID_DEFER, open [: 0 messages of 0 bytes, 0 waiting; "
        "channel c: 0 waiting, 0 deferred]",
        talks=("a delay of the least of 64 bits",),
    ),
    Difference(
        reason="a bound on the work that one address makes; newer Go has one of 10000",
        nsqd="200 OK, open" + _STORED_ONE,
        gateway="400 INVALID_REQUEST, open",
        talks=("10000 pairs", "10001 pairs"),
    ),
    Difference(
        reason="a length that no machine has is a length that is too big",
        nsqd="400 text unversioned",
        gateway="413 MSG_TOO_BIG",
        talks=("a length of the most of 63 bits and 1",),
    ),
)

ROUTES = (
    Difference(
        reason="who opens the address in a browser is led to the console",
        nsqd="404 NOT_FOUND",
        gateway="307 location=/console unversioned",
        talks=("GET /", "an address with a host and no path"),
    ),
    Difference(
        reason="/config is not on the gateway: what it would change is one nsqd of several",
        nsqd="200 100,",
        gateway="404 NOT_FOUND,",
        talks=("GET /config/max_msg_size",),
    ),
    Difference(
        reason="the same, for an option that nsqd does not have",
        nsqd="400 INVALID_OPTION",
        gateway="404 NOT_FOUND",
        talks=("GET /config/nothing",),
    ),
    Difference(
        reason="the same, to set one",
        nsqd="200 2,",
        gateway="404 NOT_FOUND,",
        talks=("PUT /config/log_level",),
    ),
    Difference(
        reason="/debug tells of a Go program, which the gateway is not",
        nsqd="405 METHOD_NOT_ALLOWED allow=GET, OPTIONS, POST",
        gateway="404 NOT_FOUND",
        talks=("PUT /debug/pprof/symbol",),
    ),
    Difference(
        reason="the gateway's own: a WebSocket, which is told here what it would be refused with",
        nsqd="404 NOT_FOUND",
        gateway="400 MISSING_ARG_TOPIC",
        talks=("GET /sub",),
    ),
    Difference(
        reason="the gateway's own: a page of documentation",
        nsqd="404 NOT_FOUND",
        gateway="200 text/html unversioned",
        talks=("GET /docs",),
    ),
    Difference(
        reason="the gateway's own: the contract",
        nsqd="404 NOT_FOUND",
        gateway="200 application/yaml unversioned",
        talks=("GET /openapi.yaml",),
    ),
    Difference(
        reason="a path with a bad escape is a path that is not there; Go's HTTP server does not "
        "get so far as to look",
        nsqd="400 text unversioned, closed",
        gateway="404 NOT_FOUND, open",
        talks=("POST /pub%", "POST /pub%4", "POST /pub%zz"),
    ),
    Difference(
        reason="Go's HTTP server answers for the whole server itself",
        nsqd="200 unversioned",
        gateway="404 NOT_FOUND",
        talks=("OPTIONS of everything",),
    ),
    Difference(
        reason="a redirect stays on the host that was asked, whatever the address says",
        nsqd="location=http://NSQ/ping",
        gateway="location=/ping",
        talks=("an address with a host, in capitals",),
    ),
)

_NOT_HTTP = (
    "an address without a slash",
    "an address of a query",
    "an address with a space",
    "an address with a tab",
    "an address with a zero",
    "no address",
    "a version in small letters",
    "a space before the colon",
    "a space before the name",
    "a header without a colon",
    "a header without a name",
    "a name that is no token",
    "a value with a zero",
    *(
        f"a length of {name}"
        for name in (
            "a word",
            "-1",
            "a plus and 1",
            "hexadecimal",
            "a fraction",
            "an exponent",
            "an underscore",
            "a unit",
            "1 and 1",
            "1 and 2",
            "20 digits",
            "1 in quotes",
            "a digit that is not ASCII",
        )
    ),
    "two lengths",
    "a bad length and chunks",
    "garbage",
    "zeros",
    "what is said to the TCP port",
    "what begins TLS",
    "an answer",
    "a message and garbage",
    "a message and zeros",
    "a message and a bad length",
    "a ping and garbage",
    "a message longer than said",
    "no Host",
    "no Host, ping",
    "Host twice",
    "a Host with a space",
)

HTTP = (
    Difference(
        reason="what is no HTTP is refused before nsqd's code sees it, by Go's server in text; "
        "the gateway has a problem body for it too",
        nsqd="400 text unversioned",
        gateway="400 INVALID_REQUEST",
        talks=_NOT_HTTP,
    ),
    Difference(
        reason="an encoding that is not spoken is 400 like everything that cannot be read",
        nsqd="501 text unversioned",
        gateway="400 INVALID_REQUEST",
        talks=(
            *(
                f"an encoding of {name}"
                for name in (
                    "nothing",
                    "identity",
                    "gzip",
                    "gzip and chunked",
                    "chunked and gzip",
                    "chunked and chunked",
                    "something else",
                    "chunked in quotes",
                    "chunked with a parameter",
                )
            ),
            "an encoding given twice",
        ),
    ),
    Difference(
        reason="a version that is not spoken is 400 like everything that cannot be read",
        nsqd="505 text unversioned",
        gateway="400 INVALID_REQUEST",
        talks=("HTTP/2.0",),
    ),
    Difference(
        reason="the same, without a version",
        nsqd="400 text unversioned",
        gateway="400 INVALID_REQUEST",
        talks=("HTTP/0.9", "no version"),
    ),
    Difference(
        reason="bad chunks are the fault of who sent them; nsqd says that it could not read",
        nsqd="500 INTERNAL_ERROR",
        gateway="400 INVALID_REQUEST",
        talks=tuple(
            f"chunks with {name}"
            for name in (
                "a space before an extension",
                "a bad trailer",
                "a space before the size",
                "a plus before the size",
                "a minus before the size",
                "a size of hexadecimal",
                "a size that is no number",
                "an empty size",
                "a size of 17 digits",
                "newlines alone",
                "no line end behind the data",
                "more data than said",
            )
        ),
    ),
    Difference(
        reason="two ways to tell where a body ends are how requests are smuggled past a proxy "
        "(RFC 9112 §6.3): the gateway takes one way, told once, and as the RFC spells it",
        nsqd="200 OK, open" + _STORED_ONE,
        gateway="400 INVALID_REQUEST, closed",
        talks=(
            "the same length twice",
            "a length and chunks",
            "chunks and a length",
            "chunks with a length as trailer",
            "chunks with a space behind the size",
            "a folded header",
            "lines that end in newlines alone",
            "HTTP/1.2",
        ),
    ),
    Difference(
        reason="the same; nsqd takes an empty length for none, and what follows for a request",
        nsqd="400 MSG_EMPTY, 404 NOT_FOUND, closed",
        gateway="400 INVALID_REQUEST, closed",
        talks=("a length of nothing",),
    ),
    Difference(
        reason="an address is ASCII (RFC 3986); other bytes are escaped",
        nsqd="400 INVALID_TOPIC, open",
        gateway="400 INVALID_REQUEST, closed",
        talks=("letters that are not ASCII, raw", "a byte that is not UTF-8, raw"),
    ),
    Difference(
        reason="the parser has a list of methods; one that is not there is no HTTP for it",
        nsqd="405 METHOD_NOT_ALLOWED allow=OPTIONS, POST, open",
        gateway="400 INVALID_REQUEST, closed",
        talks=("post in small letters", "a method of nobody", "a method with a body of its own"),
    ),
    Difference(
        reason="the same, for the first line of HTTP/2",
        nsqd="405 METHOD_NOT_ALLOWED allow=GET, OPTIONS, POST, PUT",
        gateway="400 INVALID_REQUEST",
        talks=("the preface of HTTP/2",),
    ),
    Difference(
        reason="a server ought to pass over an empty line before a request (RFC 9112 §2.2)",
        nsqd="400 text unversioned, closed",
        gateway="200 OK, open" + _STORED_ONE,
        talks=("an empty line before the request", "two empty lines before the request"),
    ),
    Difference(
        reason="the same for an expectation that nobody can meet",
        nsqd="417 unversioned",
        gateway="417 EXPECTATION_FAILED",
        talks=("another expectation",),
    ),
    Difference(
        reason="Go passes over chunks in HTTP/1.0; RFC 9112 §6.1 calls the framing faulty",
        nsqd="400 MSG_EMPTY, closed",
        gateway="400 INVALID_REQUEST, closed",
        talks=("HTTP/1.0 and chunks",),
    ),
)

ENDS = (
    Difference(
        reason="how much is still to come of a body in chunks is not known, so that the "
        "connection ends with its refusal",
        nsqd="open",
        gateway="closed",
        talks=(
            "chunks that are skipped",
            "lines in chunks and no topic",
            "lines in chunks too big, and no topic",
        ),
    ),
    Difference(
        reason="HTTP/1.0 has one request on a connection",
        nsqd="open",
        gateway="closed",
        talks=("HTTP/1.0 and keep-alive", "HTTP/1.0 and ping and keep-alive"),
    ),
    Difference(
        reason="who closes in the middle of a request has gone: nobody is there to be answered",
        nsqd="400 text unversioned, ",
        gateway="",
        talks=(
            "nothing at all",
            "half a line",
            "half a head",
            "a message and half a line",
            "a message and half a head",
        ),
    ),
    Difference(
        reason="the same, in the middle of a body",
        nsqd="500 INTERNAL_ERROR, ",
        gateway="",
        talks=(
            "chunks without end",
            "chunks that end in their size",
            "chunks with a size of 16 digits",
            "chunks that end in their data",
            "a head and no body",
            "half a body",
            "half of some lines",
            "a message and half a message",
            "the same head, half a body",
        ),
    ),
    Difference(
        reason="nsqd publishes as soon as the counted frames are there; the gateway waits for the "
        "whole body, and half of one is none",
        nsqd="200 OK, closed" + _STORED_ONE,
        gateway="closed",
        talks=("half of some frames",),
    ),
)

# /info of nsqd 1.2.1 has no limits.
_NODE_LIMITS = (
    ',"max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,'
    '"max_output_buffer_timeout":30000000000,"max_deflate_level":6'
)
_NODE = (
    f'"version":"{NSQD_VERSION}","broadcast_address":<own>,"hostname":<own>,"http_port":<own>,'
    f'"tcp_port":<own>,"start_time":<own>{"" if is_older_nsqd else _NODE_LIMITS}'
)

ADMINISTRATION = (
    Difference(
        reason="there may be several nodes, and the topic may be on another one: it is made "
        "where it is missing",
        nsqd="404 TOPIC_NOT_FOUND, open",
        gateway="200, open [: 0 messages of 0 bytes, 0 waiting; channel c: 0 waiting, 0 deferred]",
        talks=("/channel/create of a channel of a topic that is not there",),
    ),
    Difference(
        reason="beside nsqd's own members the nodes, for there may be several",
        nsqd='"producers":null}',
        gateway='"producers":null,"nodes":'
        f'[{{"version":"{NSQD_VERSION}","health":"OK","start_time":<own>,"node":<own>}}]}}',
        talks=(
            "a topic with messages is deleted",
            *(
                f"/stats {name}"
                for name in (
                    "of a topic that is not there",
                    "of an empty topic",
                    "of a full topic",
                    "of an empty channel",
                    "of a paused topic",
                    "of one channel",
                    "of a channel that is not there",
                    "of an empty filter",
                    "with flags in other words",
                )
            ),
        ),
    ),
    Difference(
        reason="the same, on which node a topic is",
        nsqd='"percentiles":null}}],"producers"',
        gateway='"percentiles":null},"node":<own>}],"producers"',
        talks=(
            "/stats of an empty topic",
            "/stats of a full topic",
            "/stats of an empty channel",
            "/stats of a paused topic",
            "/stats of one channel",
            "/stats with flags in other words",
        ),
    ),
    Difference(
        reason="the same, about each node",
        nsqd=f"{{{_NODE}}}",
        gateway=f'{{{_NODE},"gateway":<own>,"nodes":[{{{_NODE},"node":<own>}}]}}',
        talks=("/info",),
    ),
)

DIFFERENCES = (*NO_EMPTY_TOPIC, *LIMITS, *ROUTES, *HTTP, *ENDS, *ADMINISTRATION)


def intended(talk: str, outcome: str) -> str:
    """Return the gateway's expected result of *talk* where nsqd's is *outcome*."""
    for difference in DIFFERENCES:
        if talk in difference.talks:
            outcome = difference.applied_to(outcome)
    return outcome
