"""A plugin of pytest for ``make test-fast``: the longest tests start first, so that no worker ends long after the others.

A file is the unit that one worker runs; each test that is named below is a unit of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.units import Units, number_apart

LONGEST: Final = (
    "control/test_lifecycle.py::test_a_kill_at_any_step_of_it_changes_no_outcome",
    "control/test_crash_matrix.py::test_a_kill_at_any_step_changes_no_outcome",
    "control/test_lost_answers.py::test_a_lost_answer_to_any_request_changes_no_outcome",
    "control/test_moves.py::test_a_kill_at_any_step_of_a_migration_changes_no_outcome",
    "control/test_pod_groups.py::test_a_kill_at_any_step_changes_no_outcome_for_groups",
    "control/test_provisioning.py::test_a_kill_at_any_step_asks_for_no_node_twice",
    "control/test_admission_checks.py::test_a_kill_at_any_step_never_starts_a_gang_before_its_checks",
    "control/test_elastic_kinds.py::test_a_kill_at_any_step_of_an_elastic_job_changes_no_outcome",
    "control/test_leaderworkersets.py::test_a_kill_at_any_step_changes_no_outcome_for_groups_of_a_set",
    "control/test_elastic.py::test_a_kill_at_any_step_of_an_elastic_job_changes_no_outcome",
    "control/test_arrays.py::test_a_kill_at_any_step_of_an_array_changes_no_outcome",
    "control/test_usage.py::test_the_ledger_agrees_with_the_history_wherever_the_controller_dies",
    "control/test_provisioning.py",
    "planner/test_preempt.py",
    "control/test_refused_writes.py",
    "planner/test_explain_known_plan.py",
    "packaging/test_wheel.py",
    "db/test_faults.py",
    "planner/test_plan_properties.py",
    "planner/test_defrag.py",
    "api/test_reports.py",
    "control/test_idle_reclaim.py",
    "control/test_by_hand.py",
    "control/test_lifecycle.py",
    "estimates/test_expected_starts.py",
    "control/test_after.py",
    "control/test_careful.py",
    "control/test_elastic_kinds.py",
)
"""Files and tests under ``tests``, the longest first: those that take a worker more than ten seconds."""
_PLACES: Final = {name: place for place, name in enumerate(LONGEST)}
_TESTS: Final = Path(__file__).parent.name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    return Units(config, log, unit_of)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    number_apart(items)
    items.sort(key=lambda item: _PLACES.get(_named(item.nodeid), len(LONGEST)))


def unit_of(nodeid: str) -> str:
    """The file of a test, or the test itself with its parameters if it is one of the longest."""
    return nodeid if "::" in _named(nodeid) else nodeid.partition("::")[0]


def _named(nodeid: str) -> str:
    """The name by which a test may stand in ``LONGEST``: its own, else that of its file."""
    test = nodeid.partition("[")[0].removeprefix(f"{_TESTS}/")
    return test if test in _PLACES else test.partition("::")[0]
