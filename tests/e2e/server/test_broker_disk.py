"""A broker whose disk takes no more: publishes are refused, and what is there is served."""

from __future__ import annotations

import resource
from pathlib import Path

import httpx

from gateway.broker.store import FILE_NAME
from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.brokers.v2_peer import ERROR, OK, body_and_attempts, publish, v2_peer

MIB = 1_048_576


def limit_files(broker: KillableBroker, size_bytes: int) -> None:
    """Let the broker write no file beyond *size_bytes*: the system's limit, as a full disk."""
    limit = resource.RLIM_INFINITY if size_bytes < 0 else size_bytes
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


async def test_a_full_disk_refuses_publishes_and_serves_what_is_there(tmp_path: Path) -> None:
    async with (
        killable_broker("embedded", f"--data-path={tmp_path}") as broker,
        httpx.AsyncClient(base_url=f"http://{broker.http_address}") as http,
    ):
        async with v2_peer(broker.tcp_address) as peer:
            assert OK == await peer.ask(publish(b"orders", b"before"))
            written = (tmp_path / f"{FILE_NAME}-wal").stat().st_size
            limit_files(broker, written + MIB)

            stored = 0
            while (answer := await peer.ask(publish(b"orders", b"x" * 100_000))) == OK:
                stored += 1
            assert ERROR == answer[0]
            assert answer[1].startswith(b"E_PUB_FAILED PUB failed exiting: ")
        refused = await http.post("/pub?topic=orders", content=b"x" * 100_000)
        assert (503, "EXITING") == (refused.status_code, refused.json()["message"])
        ping = await http.get("/ping")
        assert 500 == ping.status_code
        assert ping.text.startswith("NOK - ")

        async with v2_peer(broker.tcp_address) as peer:
            limit_files(broker, -1)
            assert OK == await peer.ask(b"SUB orders c\n")
            await peer.send(b"RDY 2500\n")
            bodies = [body_and_attempts(await peer.frame())[0] for _ in range(1 + stored)]
            assert [b"before", *[b"x" * 100_000] * stored] == bodies
        again = await http.post("/pub?topic=orders", content=b"after")
        assert (200, "OK") == (again.status_code, again.text)
        assert "OK" == (await http.get("/ping")).text
