"""The archive as a Delta or Iceberg table, on a real Spark, read by other programs."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.spark.table_archive import (
    DELTA,
    ICEBERG,
    Row,
    archive,
    duplicates,
    flags_of,
    hold_commit,
    read_by,
)

pytestmark = [
    pytest.mark.java,
    pytest.mark.parametrize("broker", ["embedded"], indirect=True),
]
with_delta = pytest.mark.skipif(
    not DELTA.exists(), reason="`make .venv-delta` installs Spark 4.2 with Delta"
)

ALL = "topic = 't' AND hour >= '00'"
"""Condition for every reader: on partition columns, whose values the log has."""
SPOOL = ("--ack-mode=spool", "--max-rows-per-batch=4", "--batch-s=0", "--partitions=2")


async def publish(http: httpx.AsyncClient, first: int, count: int) -> None:
    """Publish numbers to the topic t, which has the channel archive."""
    body = "\n".join(map(str, range(first, first + count)))
    (await http.post("/mpub", params={"topic": "t"}, content=body)).raise_for_status()


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(body) for _, _, body in rows)


def bring_back(checkpoint: Path) -> None:
    """Reset *checkpoint* to its state after the first batch, as from a backup."""
    for log in ("offsets", "commits"):
        for path in (checkpoint / log).iterdir():
            if path.name.strip(".").removesuffix(".crc") != "0":
                path.unlink()


def catalog_of(folder: Path) -> tuple[dict[str, str], Catalog]:
    """Return an environment with a catalog named test in a file of *folder*, and the catalog."""
    uri = f"sqlite:///{folder}/catalog.db"
    properties = {"PYICEBERG_CATALOG__TEST__URI": uri, "PYICEBERG_CATALOG__TEST__TYPE": "sql"}
    return properties, load_catalog("test", type="sql", uri=uri)


def rows_of_iceberg(catalog: Catalog) -> list[Row]:
    """Return the rows that DuckDB reads from nsq.t, in the files that pyiceberg lists."""
    scan = catalog.load_table("nsq.t").scan(row_filter="topic = 't' and hour >= '00'")
    found = scan.to_duckdb("rows").sql("SELECT topic, id, body::varchar FROM rows").fetchall()
    return sorted((topic, number, body) for topic, number, body in found)


@with_delta
async def test_an_archive_is_a_delta_table(
    broker: KillableBroker, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """After a kill between the table's commit and Spark's, each message is there once."""
    flags = flags_of(broker, tmp_path, "--format=delta", f"--spool-dir={tmp_path}/spool", *SPOOL)
    await publish(http, 0, 10)
    environment, held = hold_commit(tmp_path, 1)
    await archive(tmp_path, *flags, python=DELTA, environment=environment, held=held)
    log = sorted(path.name for path in (tmp_path / "table" / "_delta_log").glob("*.json"))
    notes = sorted(path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    await publish(http, 10, 5)
    status, said = await archive(tmp_path, *flags, python=DELTA)
    rows = await read_by(DELTA, "delta_by_duckdb", tmp_path, f"{tmp_path}/table", ALL)

    assert (2, ["0"]) == (len(log), notes)
    assert 0 == status, said
    assert list(range(15)) == numbers(rows)
    assert rows == await read_by(DELTA, "delta_by_spark", tmp_path, f"{tmp_path}/table", ALL)

    bring_back(tmp_path / "checkpoint")
    status, said = await archive(tmp_path, *flags, python=DELTA)
    assert 2 == status, said
    assert "has later batches of the same query" in said


async def test_an_archive_is_an_iceberg_table(
    broker: KillableBroker, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """After a kill between the table's commit and Spark's, each message is there once."""
    environment, catalog = catalog_of(tmp_path)
    flags = flags_of(
        broker,
        tmp_path,
        *("--format=iceberg", "--iceberg-catalog=test", "--iceberg-table=nsq.t"),
        *(f"--spool-dir={tmp_path}/spool", *SPOOL),
    )
    await publish(http, 0, 10)
    holding, held = hold_commit(tmp_path, 1)
    await archive(tmp_path, *flags, environment=environment | holding, held=held)
    before = rows_of_iceberg(catalog)
    notes = sorted(path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    await publish(http, 10, 5)
    status, said = await archive(tmp_path, *flags, environment=environment)
    rows = rows_of_iceberg(catalog)

    assert (list(range(8)), ["0"]) == (numbers(before), notes)
    assert 0 == status, said
    assert list(range(15)) == numbers(rows)
    assert not duplicates(rows)
    if ICEBERG.exists():
        metadata = catalog.load_table("nsq.t").metadata_location
        assert rows == await read_by(ICEBERG, "iceberg_by_spark", tmp_path, metadata, ALL)
