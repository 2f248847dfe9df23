"""The rules for outside witnesses, and the real nsqd as tests start it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.nsqd import real_nsqd, real_nsqlookupd
from tests.support.witnesses import Witness, require

ABSENT = Witness(name="oracle", find=lambda: None, remedy="ask at Delphi")
PRESENT = Witness(name="oracle", find=lambda: Path("oracle"), remedy="ask at Delphi")


def test_a_missing_witness_skips_its_tests() -> None:
    """Without CI, a test that is marked with a missing witness is skipped, with the remedy."""
    with pytest.raises(pytest.skip.Exception, match="oracle is missing: ask at Delphi"):
        require(["oracle"], ci=False, witnesses=[ABSENT])


def test_a_missing_witness_fails_its_tests_in_ci() -> None:
    """In CI, a test that is marked with a missing witness fails, with the remedy."""
    with pytest.raises(pytest.fail.Exception, match="oracle is missing: ask at Delphi"):
        require(["oracle"], ci=True, witnesses=[ABSENT])


def test_a_witness_that_is_there_stops_nothing() -> None:
    """A marked test runs when its witness is found, in CI as elsewhere."""
    require(["oracle"], ci=True, witnesses=[PRESENT])


def test_a_test_without_the_marker_needs_no_witness() -> None:
    """A test that does not name the witness runs without it, in CI as elsewhere."""
    require(["parametrize"], ci=True, witnesses=[ABSENT])


@pytest.mark.nsqd
async def test_the_real_nsqd_answers_until_the_block_ends() -> None:
    """real_nsqd gives an nsqd 1.3.0 that answers on HTTP, and ends it at the end of the block."""
    async with httpx.AsyncClient() as http, real_nsqd() as nsqd:
        info = (await http.get(f"http://{nsqd.http_address}/info")).json()

    assert ("1.3.0", 0) == (info["version"], nsqd.process.returncode)


@pytest.mark.nsqd
async def test_a_real_nsqd_registers_with_a_real_nsqlookupd() -> None:
    """A topic that is made on an nsqd becomes known to the nsqlookupd it was given."""
    async with (
        httpx.AsyncClient() as http,
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
    ):
        await http.post(f"http://{nsqd.http_address}/topic/create?topic=greetings")
        await lookupd.log.match("REGISTER category:topic key:greetings")
        found = (await http.get(f"http://{lookupd.http_address}/lookup?topic=greetings")).json()

    assert [nsqd.tcp_address] == [f"127.0.0.1:{node['tcp_port']}" for node in found["producers"]]


@pytest.mark.nsqd
async def test_an_nsqd_that_cannot_start_shows_its_log() -> None:
    """An address that nsqd cannot listen on ends in an error with nsqd's own words."""
    with pytest.raises(RuntimeError, match=r"before the log ended:(.|\n)*99999"):
        async with real_nsqd("--tcp-address=127.0.0.1:99999"):
            pytest.fail("nsqd listened on a port that there is not")
