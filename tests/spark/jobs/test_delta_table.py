"""The Spark settings for a Delta archive, and errors before Spark starts."""

from __future__ import annotations

import pytest

from gateway.errors import SettingRefused
from gateway.pipeline.jobs.delta_table import DeltaTable, maven_coordinates, merged

REQUIRES = ["pyspark<=4.2.0,>=4.0.1", "importlib_metadata<=8.7.1,>=1.0.0"]


@pytest.mark.parametrize("spark", ["4.2.0", "4.2.1"])
def test_the_jar_is_the_one_for_this_spark(spark: str) -> None:
    """Delta has a jar for each minor version of Spark."""
    expected = "io.delta:delta-spark_4.2_2.13:4.4.0"

    assert expected == maven_coordinates(spark, "4.4.0", REQUIRES)


def test_a_missing_package_is_reported_with_the_versions() -> None:
    """The error has the versions of Spark and Delta."""
    with pytest.raises(SettingRefused) as refused:
        maven_coordinates("4.3.0", None, [])

    said = str(refused.value)
    assert said.startswith("--format delta: the package delta-spark is not installed")
    assert "this is Spark 4.3.0" in said
    assert "pip install 'pyspark==4.2.0' 'delta-spark==4.4.0'" in said


@pytest.mark.parametrize("asked", ["pyspark<=4.2.0,>=4.0.1", "pyspark (<4.3,>=4.0)"])
def test_a_spark_that_is_too_new_is_refused(asked: str) -> None:
    """Delta's jar would fail with missing classes."""
    with pytest.raises(SettingRefused, match=r"4\.4\.0 requires pyspark.* is Spark 4\.3\.0"):
        maven_coordinates("4.3.0", "4.4.0", [asked])


def test_a_package_that_asks_for_nothing_is_taken() -> None:
    """For example a private build without requirements."""
    assert "io.delta:delta-spark_4.9_2.13:5.0" == maven_coordinates("4.9.1", "5.0", [])


def test_given_spark_settings_are_kept() -> None:
    """Extensions and packages are appended to; other given settings replace the defaults."""
    given = {
        "spark.sql.extensions": "a.B",
        "spark.jars.packages": "x:y:1",
        "spark.sql.parquet.compression.codec": "snappy",
    }
    conf = merged(given, "io.delta:delta-spark_4.2_2.13:4.4.0")

    assert "a.B,io.delta.sql.DeltaSparkSessionExtension" == conf["spark.sql.extensions"]
    assert "x:y:1,io.delta:delta-spark_4.2_2.13:4.4.0" == conf["spark.jars.packages"]
    assert "spark.sql.parquet.compression.codec" not in conf


def test_jars_that_are_named_are_not_fetched() -> None:
    """Without access to Maven, jars are given as files; the Python package is not needed then."""
    given = {"spark.jars": "/jars/delta-spark_4.2_2.13-4.4.0.jar,/jars/delta-storage-4.4.0.jar"}

    assert "spark.jars.packages" not in DeltaTable("/out").spark_settings(given)
