"""`nsq-gateway broker` takes nsqd's command line and file, and says what tools of nsqd read."""

from __future__ import annotations

import asyncio
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from gateway.cli.main import commands
from gateway.cli.options import flags_given
from gateway.settings.broker import BrokerSettings
from gateway.settings.loader import load
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import is_older_nsqd, nsqd_binary, real_nsqd
from tests.support.brokers.v2_peer import v2_peer
from tests.support.gateways.programs import nsq_gateway
from tests.support.http.raw_http import exchange

pytestmark = [
    pytest.mark.nsqd,
    pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version"),
]

STARTED = r"TCP: listening on (\S+)$"
NOT_THERE = {"config", "version"}
"""The command's own."""


OWN_VALUES = {
    "broadcast-tcp-port": "0",
    "broadcast-http-port": "0",
    "max-channel-consumers": "0",
    "e2e-processing-latency-percentile": "1.0,0.99",
    "auth-http-address": "127.0.0.1:1",
    "lookupd-tcp-address": "127.0.0.1:1",
    "statsd-address": "127.0.0.1:1",
    "data-path": "messages",
    "tls-cert": "",
    "tls-key": "",
    "tls-root-ca-file": "",
    "tls-client-auth-policy": "",
}
"""Values of flags whose default nsqd does not tell, or not in their own form."""


async def help_of_nsqd() -> dict[str, tuple[str, str]]:
    """Return the kind and the default of each flag, by its name; empty for a boolean's kind."""
    nsqd = await asyncio.create_subprocess_exec(
        str(nsqd_binary()), "-help", stdout=DEVNULL, stderr=PIPE
    )
    text = (await nsqd.communicate())[1].decode()
    found = re.findall(r"^  -([a-z0-9-]+)(?: (\S+))?\n(.*)$", text, re.MULTILINE)
    defaults = {
        name: re.findall(r'\(default "?([^")]*)"?\)', about)[-1:] for name, _, about in found
    }
    return {
        name: (kind, *(defaults[name] or [""])) for name, kind, _ in found if name not in NOT_THERE
    }


def settings_of(arguments: list[str], config: Path | None = None) -> BrokerSettings:
    """Return the settings of `broker` with *arguments*."""
    command = commands.commands["broker"]
    params = command.make_context("broker", arguments).params
    params.pop("config")
    return load(BrokerSettings, flags_given(params), config).settings


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("glued", [True, False])
async def test_a_line_with_every_flag_of_nsqd_is_taken(dashes: str, *, glued: bool) -> None:
    line: list[str] = []
    for name, (kind, default) in (await help_of_nsqd()).items():
        value = OWN_VALUES.get(name, default) if kind else default or "false"
        if glued or not kind:  # a boolean has its value after =
            line.append(f"{dashes}{name}={value}")
        else:
            line += [f"{dashes}{name}", value]

    settings = settings_of(line)

    assert ("0.0.0.0:4150", 250, 900_000, "nsq.%s", True) == (
        settings.tcp_address,
        settings.output_buffer_timeout,
        settings.max_msg_timeout,
        settings.statsd_prefix,
        settings.snappy,
    )


async def test_a_file_with_every_key_of_nsqd_is_taken(tmp_path: Path) -> None:
    names = {
        "node-id": "id = 7",
        "lookupd-tcp-address": 'nsqlookupd_tcp_addresses = ["127.0.0.1:4160"]',
        "auth-http-address": "auth_http_addresses = []",
        "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles = [1.0, 0.95]",
        "broadcast-address": 'broadcast_address = "127.0.0.1"',
        "worker-id": "",
        "data-path": "",
        "max-channel-consumers": "max_channel_consumers = 0",
    }
    lines = []
    for name, (kind, default) in (await help_of_nsqd()).items():
        key = name.replace("-", "_")
        if not kind:
            value = default or "false"
        elif kind == "int":
            value = default or "0"
        else:
            value = f'"{default}"'
        lines.append(names.get(name, f"{key} = {value}"))
    path = tmp_path / "nsqd.toml"
    path.write_text("\n".join(lines))
    flags = [f"--config={path}", f"--data-path={tmp_path}", f"--lookupd-tcp-address={UNUSED}"]

    settings = settings_of([], path)

    assert (7, ("127.0.0.1:4160",), 60_000) == (
        settings.node_id,
        settings.lookupd_tcp_address,
        settings.msg_timeout,
    )
    # nsqd itself takes the file, too: it has nsqd's keys.
    async with real_nsqd(*flags) as nsqd:
        assert b"7" == (await exchange(nsqd.http_address, "GET", "/config/id")).body


UNUSED = "127.0.0.1:1"


async def test_the_addresses_are_told_in_nsqds_words() -> None:
    flags = ("-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", "-snappy=false")
    async with nsq_gateway("broker", *flags) as broker:
        tcp = (await broker.said(STARTED))[1]
        http = (await broker.said(r"HTTP: listening on (\S+)$"))[1]

        async with v2_peer(tcp) as peer:
            assert (0, b"OK") == await peer.ask(b"PUB t\n\0\0\0\x01x")
        assert b"OK" == (await exchange(http, "GET", "/ping")).body
        assert b"false" == (await exchange(http, "GET", "/config/snappy")).body


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_it_ends_by_a_signal_and_starts_on_the_same_ports_at_once(
    number: signal.Signals, status: int
) -> None:
    tcp = f"127.0.0.1:{free_port()}"
    flags = (f"-tcp-address={tcp}", f"-http-address=127.0.0.1:{free_port()}")
    async with nsq_gateway("broker", *flags) as first:
        await first.said(STARTED)
        async with v2_peer(tcp) as peer:
            await peer.ask(b"SUB t c\n")
            first.signal(number)
            assert [] == await peer.frames_to_end()

            assert status == await first.ended()
            async with nsq_gateway("broker", *flags) as second:
                assert tcp == (await second.said(STARTED))[1]


async def test_an_option_without_effect_is_told_at_the_start() -> None:
    flags = ("-tcp-address=127.0.0.1:0", "-http-address=", "-statsd-address=127.0.0.1:8125")
    async with nsq_gateway("broker", *flags) as broker:
        await broker.said(
            "option without effect.*--statsd-address|--statsd-address.*without effect"
        )
        await broker.said(STARTED)
