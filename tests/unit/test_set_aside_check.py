"""The check that ends each rig can fail: no unit was set aside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from queuectl.demo.verdict import contained
from queuectl.domain.containment import Boundary, Containment
from queuectl.telemetry.containment import ContainmentMetrics
from tests.support.contained import SetAsideLog, counted, no_unit_is_set_aside

TESTS = Path(__file__).parents[1]
OWN_CHECK = {"chaos/stage.py", "bench/bench_neighbor.py"}
"""They list what is set aside in their results, and fail at the end."""


def fail(containment: Containment) -> None:
    with containment.unit(Boundary.OBJECT, "a-uid", "Job/team/broken"):
        raise ValueError("poison")


def test_a_unit_of_this_process_fails_the_block() -> None:
    fails = pytest.raises(AssertionError, match=r"object Job/team/broken: ValueError[^^]*poison")
    with fails, no_unit_is_set_aside():
        fail(Containment(lambda: 0.0))


def test_the_block_passes_if_nothing_is_set_aside() -> None:
    with no_unit_is_set_aside(), Containment(lambda: 0.0).unit(Boundary.OBJECT, "a-uid"):
        pass


def line(unit: str, place: str = "ValueError in stream.py:_object", **more: str) -> str:
    event = {"event": "unit_set_aside", "boundary": "object", "unit": unit, "place": place}
    return json.dumps(event | more) + "\n"


def test_only_new_lines_of_the_log_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    log = SetAsideLog(path)
    assert (log.new(), log.known) == ([], False)
    half = line("Job/team/late")
    path.write_text(
        "unit_set_aside: no JSON\n" + line("Job/team/a") + line("Job/team/b") + half[:20]
    )
    found = "set aside 2 times at object: ValueError in stream.py:_object, first Job/team/a"
    assert (log.new(), log.known) == ([found], True)
    assert log.new() == []
    with path.open("a") as file:
        file.write(half[20:])
    assert log.new() == [found.replace("2", "1").replace("/a", "/late")]


def test_the_log_leaves_out_the_units_that_a_test_poisons(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    log = SetAsideLog(path)
    path.write_text(line("Job/team/poison"))
    log.accept()
    with path.open("a") as file:
        file.write(line("Job/team/poison", "KeyError in freeze.py:_one"))
        file.write(line("Job/team/other", exception="Traceback ...\nValueError: why\n"))
    assert log.new() == [
        "set aside 1 times at object: ValueError in stream.py:_object, first Job/team/other: ValueError: why"
    ]


@pytest.mark.sets_aside
def test_metrics_of_a_process_count_a_unit_that_was_set_aside() -> None:
    registry = CollectorRegistry()
    metrics = ContainmentMetrics(registry)

    def text() -> str:
        return generate_latest(registry).decode()

    boundaries = len(Boundary)
    assert counted(text()) == []
    assert contained(text()).numbers == f"0 internal errors at {boundaries} boundaries"
    assert contained(text()).ok
    fail(Containment(lambda: 0.0, lambda found, _: metrics.report(found, None)))
    assert counted(text()) == ["set aside 1 units at object"]
    assert contained(text()).problems == ("1 errors at the boundary object",)
    assert not contained("").ok


def test_each_rig_starts_controllers_with_the_check() -> None:
    plain = re.compile(r"(?<!Checked)\bControllerProcess\.start\(")
    files = {str(path.relative_to(TESTS)): path for path in TESTS.rglob("*.py")}
    found = {name for name, path in files.items() if plain.search(path.read_text())}
    assert found == OWN_CHECK
