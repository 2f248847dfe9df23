"""Alerts: rules that Prometheus takes, fire when they should, and lead to a page that helps."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart.prometheus import promtool
from tests.support.chart.promql import (
    bare_counters_of,
    buckets_without_le,
    metric_names,
    metrics_of,
    parsed,
)
from tests.support.chart.render import MINIMAL_VALUES, merged, render
from tests.support.project import ROOT

RULES = ROOT / "helm" / "files" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"

Rule = dict[str, Any]

_GROUPS = yaml.safe_load(RULES.read_text())["groups"]
_ALL: list[Rule] = [rule for group in _GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in _ALL if "alert" in rule]
RECORDED = [rule for rule in _ALL if "record" in rule]
NAMES = sorted({rule["alert"] for rule in ALERTS})
_ALERTNAME = re.compile(r'alertname="(\w+)"')
_WHICH = re.compile(r'alertname="(\w+)"[^}]* severity="(\w+)"')
# Flags that are no settings, or of others: nsqd, kubectl.
_FLAGS_OF_OTHERS = {
    *("--auth-http-address", "--broadcast-address", "--mem-queue-size", "--sync-every"),
    *("--max-msg-timeout", "--max-rdy-count"),
    *("--containers", "--from", "--previous", "--replicas", "--since"),
    "--token",  # of `access check`
}
_OF_KUBE_STATE_METRICS = {
    *("kube_job_failed", "kube_job_owner"),
    *("kube_job_status_completion_time", "kube_job_status_start_time"),
}
HEADINGS = ["What it means", "What users notice", "How to diagnose", "What to do"]


def _label(rule: Rule) -> str:
    return f"{rule['alert']} {rule['labels']['severity']}"


def _fires(case: dict[str, Any]) -> bool:
    return any(question["exp_samples"] for question in case["promql_expr_test"])


# What promtool says


@pytest.mark.promtool
def test_prometheus_takes_the_rules() -> None:
    """With every check that promtool has, duplicates among them."""
    assert f"SUCCESS: {len(_ALL)} rules found" in promtool("check", "rules", "--lint=all", RULES)


@pytest.mark.promtool
def test_each_alert_fires_when_it_should() -> None:
    """alerts_test.yaml says when, and when not; a rollout is among its cases."""
    assert "SUCCESS" in promtool("test", "rules", CASES)


@pytest.mark.promtool
def test_what_an_alert_says_can_be_written(tmp_path: Path) -> None:
    """Every template becomes a sentence: asked for nothing where all fire, promtool tells them."""
    # "0x24" is 25 times 0 here, and no number.
    cases = yaml.load(CASES.read_text(), yaml.BaseLoader)  # noqa: S506 - makes texts only
    cases |= {"rule_files": [str(RULES)], "evaluation_interval": "2m"}
    cases["tests"] = [case for case in cases["tests"] if _fires(case)]
    for case in cases["tests"]:
        case["alert_rule_test"] = [
            {"alertname": name, "eval_time": question["eval_time"], "exp_alerts": []}
            for question in case.pop("promql_expr_test")
            if question["exp_samples"]
            for name in set(_ALERTNAME.findall(question["expr"]))
        ]
    altered = tmp_path / "cases.yaml"
    altered.write_text(yaml.safe_dump(cases))

    with pytest.raises(AssertionError) as told:
        promtool("test", "rules", altered)

    said = str(told.value)
    for wrong in ("error expanding", "<no value>", "%!", "NaN"):
        assert wrong not in said
    written = set(_WHICH.findall(said))
    assert {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS} == written


# What stands in the rules


def test_each_alert_has_a_case_that_fires_and_one_that_is_silent() -> None:
    """For every severity; silent is an answer of nothing, or one without others of the case."""
    firing, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for question in case["promql_expr_test"]:
            silent.update(_ALERTNAME.findall(question["expr"]))
            for sample in question["exp_samples"]:
                firing.update(_WHICH.findall(sample["labels"]))

    assert {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS} == firing
    assert set(NAMES) == silent


@pytest.mark.parametrize("rule", ALERTS, ids=_label)
def test_an_alert_says_what_to_do(rule: Rule) -> None:
    """Severity, a short summary, a description with the value, and its page."""
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    annotations = rule["annotations"]
    assert {"summary", "description", "runbook_url"} == annotations.keys()
    assert len(annotations["summary"]) <= 80
    assert "$value" in annotations["description"] or "absent" in rule["expr"]
    assert f"docs/runbooks/{rule['alert']}.md" == annotations["runbook_url"]


@pytest.mark.parametrize(
    "base,begin",
    [
        ("", "docs/runbooks/"),
        ("https://git.example.org/docs/runbooks", "https://git.example.org/docs/runbooks/"),
        ("https://git.example.org/pages/", "https://git.example.org/pages/"),
    ],
)
def test_the_chart_says_where_the_pages_are_kept(base: str, begin: str) -> None:
    """All else is as in the file; without the value it is the path in the repository."""
    switched = {"prometheusRule": {"enabled": True, "runbookBaseUrl": base}}
    groups = render(merged(MINIMAL_VALUES, switched)).one("PrometheusRule")["spec"]["groups"]
    found = [rule for group in groups for rule in group["rules"] if "alert" in rule]

    assert [f"{begin}{rule['alert']}.md" for rule in ALERTS] == [
        rule["annotations"]["runbook_url"] for rule in found
    ]
    assert [rule["expr"] for rule in ALERTS] == [rule["expr"] for rule in found]


@pytest.mark.parametrize("rule", _ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_metrics_that_there_are(rule: Rule) -> None:
    """Our own, what is recorded here, up, and what Kubernetes tells; no counter as it stands."""
    tree = parsed(rule["expr"])
    known = metric_names() | {rule["record"] for rule in RECORDED} | {"up"}
    known |= _OF_KUBE_STATE_METRICS

    assert set() == metrics_of(tree) - known
    assert set() == bare_counters_of(tree)
    assert set() == buckets_without_le(tree)
    assert "avg(" not in rule["expr"]


def test_what_is_recorded_differs_in_its_window_only() -> None:
    """The share of failed publishes is the same question seven times."""
    shares = [rule for rule in RECORDED if "publish_failures" in rule["record"]]
    windows = [rule["record"].rpartition("ratio_rate")[2] for rule in shares]

    questions = {
        rule["expr"].replace(f"[{window}]", "[…]")
        for rule, window in zip(shares, windows, strict=True)
    }

    assert 1 == len(questions)
    assert ["5m", "30m", "1h", "2h", "6h", "1d", "3d"] == windows


@pytest.mark.parametrize("rule", [rule for rule in ALERTS if "for" in rule], ids=_label)
def test_an_alert_waits_for_two_looks_at_least(rule: Rule) -> None:
    """One scrape that went wrong is no alert."""
    number, unit = rule["for"][:-1], rule["for"][-1]
    wait = timedelta(**{{"m": "minutes", "h": "hours"}[unit]: int(number)})

    assert timedelta(minutes=1) <= wait


# The pages


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    """docs/runbooks/ holds a file for each name, and an index."""
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}

    assert set(NAMES) == pages


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_same_parts_as_the_others(name: str) -> None:
    """Its name, then what it means, what users notice, where to look and what to do."""
    lines = (RUNBOOKS / f"{name}.md").read_text().splitlines()

    assert f"# {name}" == lines[0]
    assert HEADINGS == [line.removeprefix("## ") for line in lines if line.startswith("## ")]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_metrics_that_there_are(name: str) -> None:
    """Who reads it at night is not to look for something that is called otherwise."""
    text = (RUNBOOKS / f"{name}.md").read_text()
    named = set(re.findall(r"\b(?:nsq_gateway|process|python_gc)_[a-z_]+[a-z]\b", text))
    known = metric_names() | {each.removesuffix("_bucket") for each in metric_names()}

    assert set() == named - known


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_settings_that_there_are(name: str) -> None:
    """Each flag is the gateway's, in docs/configuration.md, or one of nsqd's or kubectl's."""
    settings = (ROOT / "docs" / "configuration.md").read_text()
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z0-9-]+", (RUNBOOKS / f"{name}.md").read_text()))

    assert [] == sorted(flag for flag in named - _FLAGS_OF_OTHERS if f"`{flag}`" not in settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_leads_to_pages_that_there_are(name: str) -> None:
    """Every link is to a file beside it, or one folder up."""
    links = re.findall(r"\]\(([^)#]+)", (RUNBOOKS / f"{name}.md").read_text())

    assert [] == [link for link in links if not (RUNBOOKS / link).exists()]


def test_the_index_has_every_alert_with_its_severities() -> None:
    """docs/runbooks/README.md: name, severities, a sentence."""
    index = (RUNBOOKS / "README.md").read_text()
    rows = dict(re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| ([\w, ]+) \|", index, re.MULTILINE))
    severities: dict[str, set[str]] = {}
    for rule in ALERTS:
        severities.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])

    assert severities == {name: set(row.split(", ")) for name, row in rows.items()}
