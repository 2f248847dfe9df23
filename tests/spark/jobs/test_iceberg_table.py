"""An Iceberg archive without Spark: catalog, table, commits and batch numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.types import NestedField, StringType
from pyiceberg.utils.config import Config

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.jobs import archive
from gateway.pipeline.jobs.iceberg_table import (
    IcebergTable,
    commit,
    last_batch,
    location_of,
    new_schema,
)
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings


def configure(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    """Configure the catalog test at *uri*; pyiceberg reads its configuration only at import."""
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__URI", uri)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Return a catalog in a file, configured with the name test."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    configure(monkeypatch, uri)
    return load_catalog("test", type="sql", uri=uri)


def settings_of(folder: Path, **given: str) -> ArchiveSettings:
    flags = {
        "output": f"{folder}/table",
        "format": "iceberg",
        "iceberg_catalog": "test",
        "iceberg_table": "nsq.t",
    }
    return load(ArchiveSettings, flags | given).settings


def test_a_missing_table_is_created(catalog: Catalog, tmp_path: Path) -> None:
    """With its namespace, at --output; the next start finds it."""
    for _ in range(2):
        assert archive.open_table(settings_of(tmp_path)) is not None
    table = catalog.load_table("nsq.t")

    assert f"file://{tmp_path}/table" == table.location()
    assert ["topic", "date", "hour"] == [field.name for field in table.spec().fields]
    assert table.schema().as_struct() == new_schema().as_struct()


@pytest.mark.parametrize("name", ["", "t", "nsq.", ".t"])
def test_a_table_has_a_namespace(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingRefused, match=r"--iceberg-table: .*namespace\.table"):
        IcebergTable(settings_of(tmp_path, iceberg_table=name))


def test_a_catalog_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingRefused, match=r"--iceberg-catalog nowhere: .*pipeline-iceberg\.md"):
        IcebergTable(settings_of(tmp_path, iceberg_catalog="nowhere"))


def test_an_unusable_catalog_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Spark starts, in one sentence."""
    configure(monkeypatch, f"sqlite:///{tmp_path}/none/catalog.db")

    with pytest.raises((StartError, SettingRefused), match=r"test.*unable to open") as refused:
        IcebergTable(settings_of(tmp_path))

    assert "\n" not in str(refused.value)


def test_a_table_that_is_elsewhere_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    """Otherwise files would be outside the table's location."""
    IcebergTable(settings_of(tmp_path))

    with pytest.raises(
        SettingRefused, match=rf"location is file://{tmp_path}/table, and --output is"
    ):
        IcebergTable(settings_of(tmp_path, output=f"{tmp_path}/other"))
    assert catalog.table_exists("nsq.t")


def test_a_table_of_something_else_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    """The error has the first missing column."""
    schema = Schema(NestedField(1, "topic", StringType(), required=False))
    catalog.create_namespace("nsq")
    catalog.create_table("nsq.t", schema, f"file://{tmp_path}/table")

    with pytest.raises(SettingRefused, match="it has no nsqd string; an archive"):
        IcebergTable(settings_of(tmp_path))


def test_a_table_with_other_partitions_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    """Files of the archive have rows of one topic and hour."""
    catalog.create_namespace("nsq")
    location = f"file://{tmp_path}/table"
    catalog.create_table("nsq.t", new_schema(), location, PartitionSpec())

    with pytest.raises(SettingRefused, match="partitioned by topic, date, hour"):
        IcebergTable(settings_of(tmp_path))


def written(folder: Path, number: int) -> str:
    """Write an archive file with one row, whose id is *number*; return its path."""
    path = folder / f"{number}.parquet"
    ts = datetime(2026, 11, 22, 4, tzinfo=UTC)
    kinds = [(field.name, field.type) for field in new_schema().as_arrow()]
    row: dict[str, object] = {
        "topic": "t",
        "nsqd": "n:1",
        "id": str(number),
        "ts": ts,
        "attempts": 1,
    }
    row |= {"received": ts, "body": b"x", "date": "2026-11-22", "hour": "04"}
    # Without the ids of fields, as Spark writes it.
    pq.write_table(pa.Table.from_pylist([row], schema=pa.schema(kinds)), path)
    return f"file://{path}"


def test_a_conflicting_commit_is_retried(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query has its own batch numbers, and the files of both are in the table."""
    IcebergTable(settings_of(tmp_path))
    mine, other = (catalog.load_table("nsq.t") for _ in range(2))
    begin = mine.transaction
    others = [written(tmp_path, 1)]

    def transaction() -> Transaction:
        begun = begin()
        if others:
            commit(other, [others.pop()], "b", 0)
        return begun

    monkeypatch.setattr(mine, "transaction", transaction)
    commit(mine, [written(tmp_path, 2)], "a", 0)
    table = catalog.load_table("nsq.t")

    assert ["1", "2"] == sorted(table.scan().to_arrow()["id"].to_pylist())
    assert (0, 0) == (last_batch(table, "a"), last_batch(table, "b"))


def test_a_committed_batch_is_not_committed_again(catalog: Catalog, tmp_path: Path) -> None:
    """Whichever process committed it; a batch without rows is recorded too."""
    IcebergTable(settings_of(tmp_path))
    table = catalog.load_table("nsq.t")
    commit(table, [], "a", 0)
    for number in (1, 2):
        commit(catalog.load_table("nsq.t"), [written(tmp_path, number)], "a", 1)

    assert ["1"] == table.refresh().scan().to_arrow()["id"].to_pylist()
    assert 1 == last_batch(table, "a")


@pytest.mark.parametrize(
    "output, expected",
    [
        ("/data/archive/", "file:///data/archive"),
        ("file:/data/archive", "file:///data/archive"),
        ("file:///data/archive", "file:///data/archive"),
        ("s3a://bucket/archive", "s3://bucket/archive"),
        ("gs://bucket/archive", "gs://bucket/archive"),
    ],
)
def test_a_folder_is_spelled_as_iceberg_does(output: str, expected: str) -> None:
    """Other readers than Spark do not know s3a."""
    assert expected == location_of(output)
