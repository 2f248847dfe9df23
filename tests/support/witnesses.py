"""
External programs that tests need ("witnesses"), and what happens if one is missing.

A test names its witness with a marker of the same name (``@pytest.mark.nsqd``). Without the
witness, the test is skipped, which the summary of the run reports; with ``CI=true`` it fails.
To add a witness, add it to WITNESSES, and its marker to pyproject.toml.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.brokers import nsq_clients, nsqd, toxiproxy
from tests.support.browser import binaries, javascript_tools
from tests.support.chart import prometheus
from tests.support.chart import tools as chart_tools
from tests.support.spark import java
from tests.support.websocket import asyncapi_parser
from tests.support.websocket import clients as socket_clients


@dataclass(frozen=True, kw_only=True)
class Witness:
    """An external program that some tests need; its marker has the same name."""

    name: str
    find: Callable[[], Path | None]
    """The path of the program, or None."""
    remedy: str
    """Instruction if the witness is missing."""

    @property
    def complaint(self) -> str:
        """Reason of a skipped or failed test."""
        return f"witness {self.name} is missing: {self.remedy}"


_BUILD_IT = "`make witnesses` builds it with Go (Debian: golang-go)"
_INSTALL_IT = "`make witnesses` installs it with npm (Debian: nodejs npm)"

WITNESSES = (
    Witness(name="nsqd", find=nsqd.nsqd_binary, remedy=_BUILD_IT),
    Witness(name="nsq_apps", find=nsq_clients.nsq_apps, remedy=_BUILD_IT),
    Witness(
        name="nsq_clients",
        find=nsq_clients.nsq_clients,
        remedy="`make witnesses` builds them with Go and npm; pynsq comes with `make setup`",
    ),
    Witness(name="toxiproxy", find=toxiproxy.toxiproxy_binary, remedy=_BUILD_IT),
    Witness(name="gorilla", find=socket_clients.go_client, remedy=_BUILD_IT),
    Witness(name="node", find=socket_clients.node_clients, remedy=_INSTALL_IT),
    Witness(name="chromium", find=binaries.chromium_binary, remedy="Debian: chromium"),
    Witness(name="firefox", find=binaries.firefox_binary, remedy="Debian: firefox-esr"),
    Witness(name="javascript", find=javascript_tools.javascript_tools, remedy=_INSTALL_IT),
    Witness(
        name="promtool",
        find=prometheus.promtool_binary,
        remedy="`make witnesses` gets it from Debian's package prometheus",
    ),
    Witness(name="helm", find=chart_tools.helm, remedy=_BUILD_IT),
    Witness(name="kube_score", find=chart_tools.kube_score, remedy=_BUILD_IT),
    Witness(name="pod_security", find=chart_tools.pod_security, remedy=_BUILD_IT),
    Witness(
        name="checkov", find=chart_tools.checkov, remedy="`make witnesses` installs it from PyPI"
    ),
    Witness(
        name="java", find=java.java_binary, remedy="Debian: openjdk-17-jre-headless, for Spark"
    ),
    Witness(name="asyncapi", find=asyncapi_parser.asyncapi_parser, remedy=_INSTALL_IT),
)


def in_ci() -> bool:
    """Return whether a missing witness is a failure: CI is ``true`` in the environment."""
    return os.environ.get("CI") == "true"


def require_witnesses(
    markers: Iterable[str], *, ci: bool, witnesses: Iterable[Witness] = WITNESSES
) -> None:
    """Skip the running test, or fail it if *ci*, if a witness in its *markers* is missing."""
    names = set(markers)
    for witness in witnesses:
        if witness.name not in names or witness.find() is not None:
            continue
        if ci:
            pytest.fail(witness.complaint, pytrace=False)
        pytest.skip(witness.complaint)
