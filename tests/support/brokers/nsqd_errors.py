"""
nsqd's protocol errors as a table, which is also compared with the real nsqd.

All limits are nsqd's defaults: 1 048 576 bytes a message, 5 242 880 a body, 3 600 000 ms a delay,
RDY 2 500. Source: nsqd/protocol_v2.go.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.protocol.states import State

NAME_64 = b"n" * 64
NAME_65 = b"n" * 65
ID = b"0123456789abcdef"


@dataclass(frozen=True)
class NsqdError:
    """The bytes a client sends in a state, and the text of the error frame that follows."""

    data: bytes
    text: str
    state: State = State.INIT
    at_eof: bool = False
    """True if nsqd sends the error only after the client's half-close."""

    @property
    def frame(self) -> bytes:
        """The error frame; bytes that are not UTF-8 are lone surrogates in the text."""
        data = self.text.encode("utf-8", "surrogateescape")
        return (len(data) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + data

    def __str__(self) -> str:
        """Return a name for test ids."""
        eof = "+eof" if self.at_eof else ""
        return f"{self.state.name.lower()}{eof}-{self.data[:24]!r}"


def _i(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _names(verb: str) -> list[NsqdError]:
    """Return names that a command line can carry and nsqd rejects, quoted as Go quotes."""
    row = {
        b"": "",
        NAME_65: NAME_65.decode(),
        b"n" * 55 + b"#ephemeral": "n" * 55 + "#ephemeral",
        b"#ephemeral": "#ephemeral",
        b"t#ephemeralx": "t#ephemeralx",
        b"t#": "t#",
        b"t/u": "t/u",
        b"t\x00": r"t\x00",
        b"\x07\x08\x0c\x0b\x1b\x7f": r"\a\b\f\v\x1b\x7f",
        b"t\tu\rv": r"t\tu\rv",
        b'"\\': r"\"\\",
        b"\xff\xc3": r"\xff\xc3",
        b"\xed\xa0\x80": r"\xed\xa0\x80",
        "é€😀".encode(): "é€😀",
        "\u00ad\u200b\u00a0\ufeff\ufffd".encode(): r"\u00ad\u200b\u00a0\ufeff" + "\ufffd",
        "\U0010ffff\U000e0001".encode(): r"\U0010ffff\U000e0001",
    }
    prefix = "E_BAD_TOPIC MPUB" if verb == "MPUB" else verb
    rest = {"SUB": b" c", "DPUB": b" 0"}.get(verb, b"")
    return [
        NsqdError(
            verb.encode() + b" " + name + rest + b"\n",
            f'E_BAD_TOPIC {prefix} topic name "{quoted}" is not valid',
        )
        for name, quoted in row.items()
    ]


def _wrong_states() -> list[NsqdError]:
    wrong = {
        State.INIT: ("RDY", "FIN", "REQ", "TOUCH", "CLS"),
        State.SUBSCRIBED: ("IDENTIFY", "AUTH", "SUB"),
        State.CLOSING: ("IDENTIFY", "AUTH", "SUB", "CLS"),
    }
    # The state is checked first: parameters and body are missing and not missed.
    return [
        NsqdError(f"{verb}\n".encode(), f"E_INVALID cannot {verb} in current state", state)
        for state, verbs in wrong.items()
        for verb in verbs
    ]


def _unreadable(line: bytes, verb: str, code: str, what: str) -> list[NsqdError]:
    """Return the errors for a truncated body size, and for a truncated body."""
    size = f"{code} {verb} failed to read {what} size"
    body = f"{code} {verb} failed to read {what}"
    return [
        NsqdError(line, size, at_eof=True),
        NsqdError(line + b"\x00\x00\x00", size, at_eof=True),
        NsqdError(line + _i(2), body, at_eof=True),
        NsqdError(line + _i(2) + b"x", body, at_eof=True),
    ]


_COMMANDS = [
    NsqdError(b"\n", "E_INVALID invalid command "),
    NsqdError(b"\r\n", "E_INVALID invalid command "),
    NsqdError(b" NOP\n", "E_INVALID invalid command "),
    NsqdError(b"nop\n", "E_INVALID invalid command nop"),
    NsqdError(b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
    NsqdError(b"NOP\tx\n", "E_INVALID invalid command NOP\tx"),
    NsqdError(b"PUBx t\n", "E_INVALID invalid command PUBx"),
    NsqdError(b"\x00\x00\x00\x00\n", "E_INVALID invalid command \x00\x00\x00\x00"),
    NsqdError("ÑOP\n".encode(), "E_INVALID invalid command ÑOP"),
    NsqdError(b"\xff\xc3\n", "E_INVALID invalid command \udcff\udcc3"),
    NsqdError(b"  V2\n", "E_INVALID invalid command "),
    NsqdError(b"X" * 16_383 + b"\n", "E_INVALID invalid command " + "X" * 16_383),
]

_IDENTIFY_AND_AUTH = [
    refusal
    for verb in ("IDENTIFY", "AUTH")
    for line in (f"{verb}\n".encode(),)
    for refusal in [
        NsqdError(line + _i(0), f"E_BAD_BODY {verb} invalid body size 0"),
        NsqdError(line + _i(-1), f"E_BAD_BODY {verb} invalid body size -1"),
        NsqdError(line + _i(-(2**31)), f"E_BAD_BODY {verb} invalid body size -2147483648"),
        NsqdError(line + _i(5_242_881), f"E_BAD_BODY {verb} body too big 5242881 > 5242880"),
        NsqdError(line + _i(2**31 - 1), f"E_BAD_BODY {verb} body too big 2147483647 > 5242880"),
        *_unreadable(line, verb, "E_BAD_BODY", "body"),
    ]
] + [
    NsqdError(b"AUTH secret\n", "E_INVALID AUTH invalid number of parameters"),
    NsqdError(b"AUTH \n", "E_INVALID AUTH invalid number of parameters"),
]

_SUB = [
    NsqdError(b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
    NsqdError(b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
    NsqdError(b"SUB t\nu c\n", "E_INVALID SUB insufficient number of parameters"),
    *_names("SUB"),
    NsqdError(b"SUB t \n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
    NsqdError(b"SUB t  c\n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
    NsqdError(b"SUB t c\x00\n", r'E_BAD_CHANNEL SUB channel name "c\x00" is not valid'),
    NsqdError(b"SUB t c\r\r\n", r'E_BAD_CHANNEL SUB channel name "c\r" is not valid'),
    NsqdError(b"SUB t c!\n", 'E_BAD_CHANNEL SUB channel name "c!" is not valid'),
    NsqdError(
        b"SUB t " + NAME_65 + b"\n", f'E_BAD_CHANNEL SUB channel name "{"n" * 65}" is not valid'
    ),
]

_PUBLISH = [
    refusal
    for verb, line in (("PUB", b"PUB t\n"), ("DPUB", b"DPUB t 0\n"))
    for refusal in [
        NsqdError(f"{verb}\n".encode(), f"E_INVALID {verb} insufficient number of parameters"),
        *_names(verb),
        NsqdError(line + _i(0), f"E_BAD_MESSAGE {verb} invalid message body size 0"),
        NsqdError(line + _i(-1), f"E_BAD_MESSAGE {verb} invalid message body size -1"),
        NsqdError(line + _i(1_048_577), f"E_BAD_MESSAGE {verb} message too big 1048577 > 1048576"),
        *_unreadable(line, verb, "E_BAD_MESSAGE", "message body"),
    ]
]

_DPUB = [
    NsqdError(b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
    *(
        NsqdError(
            b"DPUB t " + text.encode() + b"\n", f"E_INVALID DPUB could not parse timeout {text}"
        )
        for text in ("-1", "+1", "x", "1_0", "1.5", "0x1", "\u0663", "\x00")
    ),
    *(
        NsqdError(
            f"DPUB t {text}\n".encode(), f"E_INVALID DPUB timeout {text} out of range 0-3600000"
        )
        # The last three are seen as -1, as more than 292 years and as a negative delay.
        for text in ("3600001", "18446744073709551615", "9223372036854", "9223372036855")
    ),
]

_MPUB_LINE = b"MPUB t\n"
_MPUB = [
    NsqdError(b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    *_names("MPUB"),
    NsqdError(_MPUB_LINE + _i(0), "E_BAD_BODY MPUB invalid body size 0"),
    NsqdError(_MPUB_LINE + _i(-1), "E_BAD_BODY MPUB invalid body size -1"),
    NsqdError(_MPUB_LINE + _i(5_242_881), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
    NsqdError(_MPUB_LINE + _i(4) + _i(0), "E_BAD_BODY MPUB invalid message count 0"),
    NsqdError(_MPUB_LINE + _i(4) + _i(-1), "E_BAD_BODY MPUB invalid message count -1"),
    NsqdError(_MPUB_LINE + _i(4) + _i(1_048_576), "E_BAD_BODY MPUB invalid message count 1048576"),
    NsqdError(
        _MPUB_LINE + _i(8) + _i(1) + _i(0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"
    ),
    NsqdError(
        _MPUB_LINE + _i(13) + _i(2) + _i(1) + b"x" + _i(-1),
        "E_BAD_MESSAGE MPUB invalid message(1) body size -1",
    ),
    NsqdError(
        _MPUB_LINE + _i(8) + _i(1) + _i(1_048_577),
        "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
    ),
    # The announced size is right, the count says one more than there is.
    NsqdError(
        _MPUB_LINE + _i(9) + _i(2) + _i(1) + b"x" + b"NOP\n",
        "E_BAD_MESSAGE MPUB message too big 1313820682 > 1048576",
    ),
    NsqdError(_MPUB_LINE, "E_BAD_BODY MPUB failed to read body size", at_eof=True),
    NsqdError(_MPUB_LINE + _i(9), "E_BAD_BODY MPUB failed to read message count", at_eof=True),
    NsqdError(
        _MPUB_LINE + _i(9) + _i(1)[:3],
        "E_BAD_BODY MPUB failed to read message count",
        at_eof=True,
    ),
    NsqdError(
        _MPUB_LINE + _i(9) + _i(1),
        "E_BAD_MESSAGE MPUB failed to read message(0) body size",
        at_eof=True,
    ),
    NsqdError(
        _MPUB_LINE + _i(14) + _i(2) + _i(1) + b"x" + _i(1)[:2],
        "E_BAD_MESSAGE MPUB failed to read message(1) body size",
        at_eof=True,
    ),
    NsqdError(
        _MPUB_LINE + _i(10) + _i(1) + _i(2) + b"x",
        "E_BAD_MESSAGE MPUB failed to read message body",
        at_eof=True,
    ),
]

_RDY = [
    *(
        NsqdError(
            b"RDY " + text.encode() + b"\n",
            f"E_INVALID RDY could not parse count {text}",
            State.SUBSCRIBED,
        )
        for text in ("-1", "+1", "x", "1_0", "1.0", "\u0663")
    ),
    *(
        NsqdError(
            f"RDY {text}\n".encode(),
            f"E_INVALID RDY count {shown} out of range 0-2500",
            State.SUBSCRIBED,
        )
        for text, shown in (
            ("2501", "2501"),
            ("18446744073709551615", "-1"),
            ("9223372036854775808", "-9223372036854775808"),
            ("18446744073709554117", "2501"),
        )
    ),
]

_ANSWERS_TO_MESSAGES = [
    refusal
    for state in (State.SUBSCRIBED, State.CLOSING)
    for verb, rest in (("FIN", b""), ("TOUCH", b""), ("REQ", b" 0"))
    for refusal in [
        NsqdError(f"{verb}\n".encode(), f"E_INVALID {verb} insufficient number of params", state),
        *(
            NsqdError(
                verb.encode() + b" " + text + rest + b"\n", "E_INVALID invalid message ID", state
            )
            for text in (b"", ID[:15], ID + b"0")
        ),
    ]
] + [
    NsqdError(
        b"REQ " + ID + b"\n", "E_INVALID REQ insufficient number of params", State.SUBSCRIBED
    ),
    *(
        NsqdError(
            b"REQ " + ID + b" " + text.encode() + b"\n",
            f"E_INVALID REQ could not parse timeout {text}",
            State.SUBSCRIBED,
        )
        for text in ("-1", "x", "1_0", "\u0663")
    ),
]

NSQD_ERRORS: list[NsqdError] = [
    *_COMMANDS,
    *_wrong_states(),
    *_IDENTIFY_AND_AUTH,
    *_SUB,
    *_PUBLISH,
    *_DPUB,
    *_MPUB,
    *_RDY,
    *_ANSWERS_TO_MESSAGES,
]
"""Each ends the connection; `NsqdError.text` is the data of its error frame."""

_NOT_JSON = "failed to decode JSON body"
OFFER_REFUSALS: dict[bytes, str] = {
    **dict.fromkeys(
        [
            b"x",
            b" ",
            b"\x00",
            b"{",
            b"{}x",
            b"[]",
            b'"text"',
            b"1",
            b"true",
            b"{'client_id':1}",
            b'{"client_id":1}',
            b'{"hostname":[]}',
            b'{"heartbeat_interval":"1000"}',
            b'{"heartbeat_interval":30000.0}',
            b'{"heartbeat_interval":3e4}',
            b'{"heartbeat_interval":true}',
            b'{"heartbeat_interval":01}',
            b'{"heartbeat_interval":9223372036854775808}',
            b'{"heartbeat_interval":-9223372036854775809}',
            b'{"sample_rate":2147483648}',
            b'{"sample_rate":-2147483649}',
            b'{"feature_negotiation":1}',
            b'{"feature_negotiation":"true"}',
            b'{"TLS_V1":0}',
            b'{"user_agent":"a\nb"}',
            b'\xef\xbb\xbf{"client_id":"a"}',
        ],
        _NOT_JSON,
    ),
    b'{"heartbeat_interval":999}': "heartbeat interval (999) is invalid",
    b'{"heartbeat_interval":60001}': "heartbeat interval (60001) is invalid",
    b'{"heartbeat_interval":-2}': "heartbeat interval (-2) is invalid",
    b'{"heartbeat_interval":-9223372036854775808}': (
        "heartbeat interval (-9223372036854775808) is invalid"
    ),
    b'{"output_buffer_timeout":24}': "output buffer timeout (24) is invalid",
    b'{"output_buffer_timeout":30001}': "output buffer timeout (30001) is invalid",
    b'{"output_buffer_timeout":-2}': "output buffer timeout (-2) is invalid",
    b'{"output_buffer_size":63}': "output buffer size (63) is invalid",
    b'{"output_buffer_size":65537}': "output buffer size (65537) is invalid",
    b'{"output_buffer_size":-2}': "output buffer size (-2) is invalid",
    b'{"sample_rate":-1}': "sample rate (-1) is invalid",
    b'{"sample_rate":100}': "sample rate (100) is invalid",
    b'{"msg_timeout":999}': "msg timeout (999) is invalid",
    b'{"msg_timeout":900001}': "msg timeout (900001) is invalid",
    b'{"msg_timeout":-1}': "msg timeout (-1) is invalid",
    # The first of several, in nsqd's order.
    b'{"msg_timeout":1,"sample_rate":100,"output_buffer_size":1}': (
        "output buffer size (1) is invalid"
    ),
    b'{"output_buffer_size":1,"output_buffer_timeout":1}': "output buffer timeout (1) is invalid",
    b'{"output_buffer_timeout":1,"HeartBeat_Interval":1}': "heartbeat interval (1) is invalid",
    b'{"msg_timeout":1,"sample_rate":100}': "sample rate (100) is invalid",
}
"""JSON bodies of IDENTIFY, and the text after ``E_BAD_BODY IDENTIFY``."""
