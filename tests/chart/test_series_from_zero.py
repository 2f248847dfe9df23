"""
Every series that an alert or a dashboard reads is there, with 0, before the first event.

Prometheus sees no increase in a series that begins with its first event: 20 000 answers of 503
within one scrape interval, the first ones of a process, were a rate of 0.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.brokers.nsqd import real_nsqd
from tests.support.chart.promql import Selector, parsed, selectors_of
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd
from tests.support.project import ROOT

HELM = ROOT / "helm"

# What a gateway does not have from its start, and why.
_WITHOUT = {
    "nsq_gateway_access_checks_total": "for each issuer of an access file, and a rate over 10 min",
    "nsq_gateway_jwks_last_success_timestamp_seconds": "a gauge, for each issuer with a jwks_url",
    "nsq_gateway_certificate_expiry_timestamp_seconds": "a gauge, for each certificate there is",
}
# Of an nsqd: they are as old as its topics and channels, which a gateway may not have seen begin.
_OF_BROKERS = "nsq_gateway_broker_"
_OF_JOBS = "nsq_gateway_pipeline_"
_OF_WORKERS = "nsq_gateway_worker_"
_COUNTERS = ("_total", "_bucket")
# Who scrapes: chosen in Grafana, or given by Prometheus.
_OF_TARGETS = {"namespace", "job", "pod"}


class Asked(NamedTuple):
    """What one selector asks for; each of *alternatives* is a pattern for every label in it."""

    name: str
    text: str
    alternatives: tuple[Mapping[str, tuple[bool, str]], ...]
    """By label: whether the pattern is to match, and the pattern."""


def _expressions() -> Iterator[str]:
    """Return what all alerts, recorded rules and panels ask for."""
    for group in yaml.safe_load((HELM / "files" / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for path in sorted((HELM / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                text = target["expr"].replace("$__rate_interval", "61s")
                yield text.replace("$__range", "67s")


def _asked(selector: Selector) -> Asked:
    """Return what *selector* asks for; ``a|b`` asks for both."""
    choices = []
    for label, is_equal, is_pattern, value in selector.matchers:
        if label in _OF_TARGETS:
            continue
        patterns = value.split("|") if is_equal and is_pattern else [value]
        choices.append(
            [
                (label, (is_equal, pattern if is_pattern else re.escape(pattern)))
                for pattern in patterns
            ]
        )
    return Asked(selector.name, selector.text, tuple(map(dict, itertools.product(*choices))))


def asked_of_gateways() -> list[Asked]:
    found = {
        selector.text: _asked(selector)
        for expression in _expressions()
        for selector in selectors_of(parsed(expression))
    }
    return [
        asked
        for asked in found.values()
        if asked.name.startswith("nsq_gateway_")
        and not asked.name.startswith((_OF_JOBS, _OF_BROKERS))
        and asked.name not in _WITHOUT
    ]


def _matches(sample: Sample, wanted: Mapping[str, tuple[bool, str]]) -> bool:
    """Tell whether *sample* has the labels *wanted*; one that it does not have is empty."""
    return all(
        (re.fullmatch(pattern, sample.labels.get(label, "")) is not None) is is_equal
        for label, (is_equal, pattern) in wanted.items()
    )


async def _samples(gateway: RunningGateway) -> dict[str, list[Sample]]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{gateway.management_url}/metrics")
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def _absent(samples: Mapping[str, list[Sample]], asked: list[Asked]) -> dict[str, str]:
    """Return what of *asked* is not there, and counters that are chosen and not 0."""
    wrong = {}
    for each in asked:
        for wanted in each.alternatives:
            found = [one for one in samples.get(each.name, ()) if _matches(one, wanted)]
            if not found:
                wrong[each.text] = f"no series for {wanted}"
            elif each.name.endswith(_COUNTERS) and wanted.keys() - {"worker", "role"}:
                wrong |= dict.fromkeys([each.text for one in found if one.value], "not 0")
    return wrong


def test_alerts_and_dashboards_ask_for_something() -> None:
    """The list that the tests below go by is not empty, and has what began all this."""
    texts = [asked.text for asked in asked_of_gateways()]

    assert len(texts) > 50
    assert any("http_requests_total" in text and "5.." in text for text in texts)


@pytest.mark.parametrize("flags", [(), ("--workers=2",)], ids=["one process", "workers"])
async def test_what_alerts_and_dashboards_read_is_there_before_it_happens(
    flags: tuple[str, ...],
) -> None:
    """For each alternative that a selector names; counters are 0."""
    async with gateway_alone(*flags) as gateway:
        samples = await _samples(gateway)

    asked = [
        each
        for each in asked_of_gateways()
        if (flags or not each.name.startswith(_OF_WORKERS))
        and each.name != "nsq_gateway_lookup_failures_total"  # there is no nsqlookupd; see below
    ]
    assert {} == _absent(samples, asked)


@pytest.mark.nsqd
async def test_failures_of_an_nsqlookupd_begin_at_zero() -> None:
    async with real_nsqd() as nsqd:
        lookupd = "--lookupd-http-address=127.0.0.1:1"
        async with gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address], lookupd) as gateway:
            samples = await _samples(gateway)

    by_reason = {
        sample.labels["reason"]: sample.value > 0
        for sample in samples["nsq_gateway_lookup_failures_total"]
    }
    reasons = ("malformed", "status", "timeout", "too_big")
    assert {"unreachable": True, **dict.fromkeys(reasons, False)} == by_reason


async def test_what_fails_for_a_topic_is_an_increase_from_zero() -> None:
    """A topic has every result once nsqd has taken a first message for it."""
    async with gateway_alone() as gateway:
        await gateway.publish("orders", b"one")
        samples = await _samples(gateway)

    for name in ("publish_messages_total", "publish_message_bytes_total"):
        found = {
            sample.labels["result"]: sample.value > 0
            for sample in samples[f"nsq_gateway_{name}"]
            if sample.labels["topic"] == "orders"
        }
        assert {"ok": True, "rejected": False, "unavailable": False, "unknown": False} == found


async def test_series_are_bounded() -> None:
    """What is shown before anything happens is a few hundred lines for each process."""
    async with gateway_alone() as gateway:
        samples = await _samples(gateway)

    own = {name: len(found) for name, found in samples.items() if name.startswith("nsq_gateway_")}
    assert sum(own.values()) < 700, own
