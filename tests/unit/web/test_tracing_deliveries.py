"""Which trace a message belongs to, and how long its delivery is followed."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from gateway.protocol.frames import Message
from gateway.telemetry import TraceParent, read_traceparent
from gateway.web.tracing import DeliverySpans, traceparent_in
from tests.support.gateways.recorded_spans import SAMPLED as TEXT
from tests.support.gateways.recorded_spans import SPAN, TRACE, RecordedSpans, broken_tracing
from tests.support.manual_clock import ManualClock
from tests.support.websocket.session_messages import message

PARENT = TraceParent(int(TRACE, 16), int(SPAN, 16), is_sampled=True)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"traceparent": TEXT}),
        json.dumps({"specversion": "1.0", "data": {"a": [1, None]}, "traceparent": TEXT}),
        f' {{ "traceparent" : "{TEXT}" , "traceparent_id": 7 }}\n',
    ],
)
def test_a_string_at_the_top_of_an_object_says_it(body: str) -> None:
    assert PARENT == traceparent_in(body.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        TEXT.encode(),
        json.dumps({"data": {"traceparent": TEXT}}).encode(),
        json.dumps([{"traceparent": TEXT}]).encode(),
        json.dumps({"traceparent": 7}).encode(),
        json.dumps({"traceparent": None}).encode(),
        json.dumps({"traceparent": "00-1-2-01"}).encode(),
        b'{"traceparent": "' + TEXT.encode(),
        b'\xff{"traceparent": ""}',
        b'{"traceparent":"\xff"}',
        b'{"traceparent":"\xed\xa0\x80"}',
        b'{"traceparent":"\\ud800"}',
        b'{"a":' * 10_000 + b'"traceparent"',
        json.dumps({"traceparent": TEXT, "pad": "x" * 300_000}).encode(),
    ],
)
def test_anything_else_says_nothing(body: bytes) -> None:
    assert traceparent_in(body) is None


@pytest.mark.parametrize(
    "text,is_sampled",
    [(TEXT, True), (TEXT[:-1] + "0", False), (TEXT[:-2] + "03", True), ("cc" + TEXT[2:], True)],
)
def test_the_flag_says_whether_it_is_recorded(text: str, *, is_sampled: bool) -> None:
    """Other flags, and versions to come, do not matter."""
    assert PARENT._replace(is_sampled=is_sampled) == read_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ff" + TEXT[2:],
        TEXT.upper(),
        TEXT + "-more",
        TEXT + " ",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_what_is_no_traceparent_is_passed_over(text: str) -> None:
    """W3C Trace Context §3.2."""
    assert read_traceparent(text) is None


def traced(*numbers: int) -> list[Message]:
    return [message(number, json.dumps({"traceparent": TEXT}).encode()) for number in numbers]


@pytest.mark.parametrize("verb,error", [("FIN", None), ("REQ", "REQ")])
async def test_a_delivery_is_followed_until_its_answer(verb: str, error: str | None) -> None:
    """What is no FIN is an error: the message comes again."""
    recorded = RecordedSpans()
    spans = DeliverySpans(recorded.tracing, "t")
    first, second = traced(1, 2)

    spans.on_delivered(1, [first, message(3), second], "c")
    spans.on_acknowledged(1, [message(3).id, first.id], verb)

    assert [[verb], [error]] == [recorded.said("nsq.outcome"), recorded.said("error.type")]
    assert [first.id.decode()] == recorded.said("messaging.message.id")


async def test_a_source_that_is_lost_ends_its_deliveries() -> None:
    recorded = RecordedSpans()
    spans = DeliverySpans(recorded.tracing, "t")
    spans.on_delivered(1, traced(1), "c")
    spans.on_delivered(2, traced(2), "c")

    spans.on_lost(1)
    one = recorded.said("nsq.outcome")
    spans.on_lost()

    assert [["lost"], ["lost", "lost"]] == [one, recorded.said("nsq.outcome")]


async def test_a_message_that_comes_again_had_timed_out() -> None:
    """nsqd tells nobody that the time of a delivery is over."""
    recorded = RecordedSpans()
    spans = DeliverySpans(recorded.tracing, "t")

    spans.on_delivered(1, traced(1), "c")
    spans.on_delivered(1, traced(1), "c")

    assert ["timed out"] == recorded.said("nsq.outcome")


async def test_a_delivery_without_an_answer_is_not_followed_for_ever() -> None:
    """Its message may have come back to somebody else."""
    recorded = RecordedSpans()
    spans = DeliverySpans(recorded.tracing, "t")
    clock = ManualClock()
    spans.on_delivered(1, traced(1), "c")
    await clock.advance(600)
    spans.on_delivered(1, traced(2), "c")
    before = recorded.said("nsq.outcome")
    await clock.advance(600)
    spans.on_delivered(1, [message(3)], "c")
    clock.run_on()

    assert [[], ["timed out"]] == [before, recorded.said("nsq.outcome")]
    assert [message(1).id.decode()] == recorded.said("messaging.message.id")


async def test_how_many_deliveries_are_followed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room."""
    monkeypatch.setattr("gateway.web.tracing._MAX_OPEN", 2)
    recorded = RecordedSpans()
    spans = DeliverySpans(recorded.tracing, "t")

    spans.on_delivered(1, traced(1, 2, 3), "c")

    assert ["timed out"] == recorded.said("nsq.outcome")
    assert [message(1).id.decode()] == recorded.said("messaging.message.id")


async def test_a_failure_of_tracing_stays_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery does not hang on its trace; the log says so, once."""

    def fail(_body: bytes) -> None:
        raise RuntimeError("a mistake")

    spans = DeliverySpans(broken_tracing(), "t")
    with capture_logs() as lines:
        spans.on_delivered(1, traced(1), "c")
        monkeypatch.setattr("gateway.web.tracing.traceparent_in", fail)
        spans.on_delivered(1, traced(2), "c")
        spans.on_acknowledged(1, [message(1).id], "FIN")
        spans.on_lost()

    assert ["tracing failed"] == [line["event"] for line in lines]
