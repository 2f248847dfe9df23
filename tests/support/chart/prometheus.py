"""
Prometheus and promtool, from Debian's package.

Prometheus runs as a subprocess on a free port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.brokers.nsqd import running
from tests.support.project import ROOT

_GOT_BY_MAKE = ROOT / "tools" / "bin"
_ANSWER_TIMEOUT_S = 60.0
_PROMTOOL_TIMEOUT_S = 120.0
_READY_S = 120.0
_SCRAPE_INTERVAL_S = 1

# The whole line ends in: level=info msg="Listening on" address=127.0.0.1:40123
_LISTENING = r'msg="Listening on" address=(\S+)'


def promtool_binary() -> Path | None:
    return _binary("promtool")


def promtool(*arguments: str | Path, said: str = "") -> str:
    """
    Run promtool with *said* as its standard input; return its output.

    Raises:
        AssertionError: promtool reports an error; the message is its output.
    """
    binary = promtool_binary()
    assert binary is not None, "no promtool to start: make witnesses"
    done = subprocess.run(
        [binary, *arguments],
        input=said,
        capture_output=True,
        check=False,
        text=True,
        timeout=_PROMTOOL_TIMEOUT_S,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """A running Prometheus, queried over HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate *expression*; return its samples, each with ``metric`` and ``value``."""
        answer = await self._http.get("/api/v1/query", params={"query": expression})
        assert 200 == answer.status_code, f"{expression}: {answer.text}"
        samples: list[dict[str, Any]] = answer.json()["data"]["result"]
        return samples

    async def rules(self) -> list[dict[str, Any]]:
        """Return the rules with their state: *health* is unknown, ok or err, with *lastError*."""
        answer = await self._http.get("/api/v1/rules")
        groups = answer.raise_for_status().json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@asynccontextmanager
async def prometheus(
    targets: Sequence[str], *, rules: Sequence[Path] = (), **labels: str
) -> AsyncIterator[Prometheus]:
    """
    Run a Prometheus with an empty data folder.

    Args:
        targets: Addresses (host:port) whose ``/metrics`` is scraped every second.
        rules: Rule files, evaluated every second.
        labels: Labels added to the samples of all targets, such as *job*.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yml"
        config.write_text(_configuration(targets, rules, labels))
        arguments = (
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0",
        )
        async with running(_binary("prometheus"), "prometheus", *arguments) as (_, log):
            address = (await log.match(_LISTENING))[1]
            async with httpx.AsyncClient(
                base_url=f"http://{address}", timeout=_ANSWER_TIMEOUT_S, trust_env=False
            ) as http:
                # Prometheus listens before its storage is open, and responds 503 until then.
                async with asyncio.timeout(_READY_S):
                    while 200 != (await http.get("/-/ready")).status_code:
                        pass
                yield Prometheus(http)


def _configuration(targets: Sequence[str], rules: Sequence[Path], labels: dict[str, str]) -> str:
    """Return the scrape configuration as JSON, which is valid YAML."""
    return f"""\
global:
  scrape_interval: {_SCRAPE_INTERVAL_S}s
  scrape_timeout: {_SCRAPE_INTERVAL_S}s
  evaluation_interval: {_SCRAPE_INTERVAL_S}s
rule_files: {[str(path) for path in rules]}
scrape_configs:
  - job_name: tested
    static_configs:
      - targets: {list(targets)}
        labels: {labels}
"""


def _binary(program: str) -> Path | None:
    """Return *program* from ``make witnesses``."""
    found = shutil.which(program, path=_GOT_BY_MAKE)
    return Path(found) if found else None
