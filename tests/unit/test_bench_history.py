"""The history of benchmarks: which runs it takes, and how it compares them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.history import HISTORY, VARIABLE, Run, measurements, record, runs, table

NAME = "one gang of 512 pods: from submission until all run"


def test_a_recorded_run_has_its_unit_commit_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "history"))
    record(NAME, 4.44444)
    record(NAME, 5)
    first, second = runs(tmp_path / "history")
    assert (first.measurement, first.value, first.unit, second.value) == (NAME, 4.444, "s", 5)
    assert first.commit.rstrip("+").isalnum()
    assert first.cores >= 1
    assert first.memory >= 1


def test_nothing_is_written_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    record(NAME, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_that_is_not_listed_is_refused() -> None:
    with pytest.raises(KeyError, match="no such measurement"):
        record("no such measurement", 1)


def test_the_newest_run_is_compared_with_the_median_of_the_others() -> None:
    run = replace(Run.now(NAME, 4), commit="abc")
    assert table([]) == []
    assert table([run]) == [f"{NAME}: 4 s at abc, the first run"]
    history = [run, replace(run, value=6), replace(run, value=5), replace(run, value=10)]
    assert table(history) == [f"{NAME}: 10 s at abc, 2.00 × the median of 3 runs (5)"]


def test_each_measurement_of_the_readme_is_recorded_by_a_benchmark() -> None:
    benches = "".join(file.read_text() for file in HISTORY.parent.rglob("*.py"))
    assert [name for name in measurements() if json.dumps(name) not in benches] == []


def test_the_history_of_the_repository_can_be_read() -> None:
    assert {run.measurement for run in runs()} <= measurements().keys()
