"""
Spark's classes, read and checked once: a session starts in four seconds, and in eleven without.

`make` writes them to .venv by running this module; a JVM that cannot use the file goes on without.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.support.java import java_binary

_FOLDER = Path(__file__).parents[2] / ".venv"
_NAME = "spark-classes-{}.jsa"
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What lives for a minute on two cores is done before the better compiler is."""


def archive() -> Path | None:
    """
    Return where the classes of this Spark on this Java are, or would be.

    None: there is no Java, or the end of its processes cannot be watched (not Linux).
    """
    java = java_binary()
    if java is None or sys.platform != "linux":
        return None
    said = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    key = hashlib.sha256(pyspark.__version__.encode() + said).hexdigest()[:12]
    return _FOLDER / _NAME.format(key)


def java_options() -> str:
    """Return what a JVM of the tests is started with."""
    found = archive()
    if found is None or not found.is_file():
        return _SMALL
    return f"{_SMALL} -XX:SharedArchiveFile={found}"


def main() -> None:
    """Write the classes, unless they are there; older ones go."""
    # Here: it asks this module for the options of its JVM.
    from tests.support.spark_program import spark_program  # noqa: PLC0415
    from tests.support.spark_training import train  # noqa: PLC0415

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
        # There are JVMs that cannot write it, and tests do without it.
        if written.is_file():
            written.replace(wanted)


if __name__ == "__main__":
    main()
