"""
A class data sharing (CDS) archive of Spark's classes: sessions start in 4 s instead of 11 s.

`make` runs this module to write the archive to .venv. A JVM that cannot use the file ignores it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.support.project import ROOT
from tests.support.spark.java import java_binary

_FOLDER = ROOT / ".venv"
_NAME = "spark-classes-{}.jsa"
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM flags for short tests: the optimizing compiler does not pay off within a minute."""


def archive() -> Path | None:
    """
    Return the path of the archive for this Spark and this Java.

    None without Java, and on systems other than Linux, where the JVM's end cannot be observed.
    """
    java = java_binary()
    if java is None or sys.platform != "linux":
        return None
    said = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    key = hashlib.sha256(pyspark.__version__.encode() + said).hexdigest()[:12]
    return _FOLDER / _NAME.format(key)


def java_options() -> str:
    found = archive()
    if found is None or not found.is_file():
        return _SMALL
    return f"{_SMALL} -XX:SharedArchiveFile={found}"


def main() -> None:
    """Write the archive unless it exists; delete older ones."""
    # Imported here to avoid a cycle: that module imports this one for the JVM's options.
    from tests.support.spark.class_archive_training import train  # noqa: PLC0415
    from tests.support.spark.program import spark_program  # noqa: PLC0415

    wanted = archive()
    if wanted is None or wanted.is_file():
        return
    sys.stdout.write("Reading Spark's classes once, for sessions that start soon ...\n")
    for old in _FOLDER.glob(_NAME.format("*")):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="classes-", dir=_FOLDER) as folder:
        written = Path(folder) / "classes.jsa"
        options = f"{_SMALL} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit={written}"
        conf = {"spark.driver.extraJavaOptions": options}
        with spark_program(Path(folder), conf=conf) as program:
            program.call(train, folder)
            program.end()
        # Some JVMs cannot write an archive; tests run without one.
        if written.is_file():
            written.replace(wanted)


if __name__ == "__main__":
    main()
