"""A plugin of pytest for ``make test-fast``: each worker collects and runs its own files.

Workers of pytest-xdist all collect all tests, which takes half a minute of CPU time each. Here the worker takes its share of the
files before the collection. The files that take the longest are shared out first, so that no worker ends long after the others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import EachScheduling  # type: ignore[import-untyped]  # xdist ships no types

LONGEST: Final[Mapping[str, float]] = {
    "control/test_lost_answers.py": 14,
    "control/test_lifecycle.py": 14,
    "packaging/test_wheel.py": 13,
    "control/test_arrays.py": 13,
    "fuzz/test_fuzz.py": 12,
    "control/test_elastic.py": 12,
    "estimates/test_expected_starts.py": 10,
    "db/test_conformance.py": 10,
    "control/test_by_hand.py": 10,
    "db/test_faults.py": 9,
    "control/test_pod_groups.py": 9,
    "db/test_embedded.py": 8,
    "control/test_idle_reclaim.py": 8,
    "control/test_careful.py": 8,
    "control/test_after.py": 8,
    "control/test_admission_checks.py": 8,
    "api/test_workloads.py": 8,
    "unit/test_docs_commands.py": 7,
    "planner/test_verify_mutants.py": 7,
    "control/test_crash_matrix.py": 7,
    "control/test_changed_between.py": 7,
    "api/test_plans.py": 7,
    "api/test_fuzz.py": 7,
    "api/test_commands.py": 7,
    "simulate/test_advice.py": 6,
    "planner/test_degenerate.py": 6,
    "oidc/test_login.py": 6,
    "control/test_usage.py": 6,
    "unit/test_cli_main.py": 5,
    "planner/test_preempt.py": 5,
    "planner/test_fixes.py": 5,
    "planner/test_defrag.py": 5,
    "control/test_provisioning.py": 5,
    "control/test_moves.py": 5,
    "control/test_elastic_kinds.py": 5,
    "control/test_containment.py": 5,
    "api/test_recorded_jobs.py": 5,
    "api/test_limits.py": 5,
    "api/test_hostile.py": 5,
    "planner/test_plan_properties.py": 4,
    "planner/test_idle_invariants.py": 4,
    "planner/test_blocking_constraints.py": 4,
    "planner/test_backfill_histories.py": 4,
    "db/test_migrate.py": 4,
    "control/test_loop.py": 4,
    "control/test_leaderworkersets.py": 4,
    "api/test_rights.py": 4,
    "api/test_redaction.py": 4,
    "api/test_nodes.py": 4,
    "api/test_events.py": 4,
    "api/test_dryrun.py": 4,
    "unit/test_site.py": 3,
    "unit/test_log_events.py": 3,
    "unit/test_dependencies.py": 3,
    "unit/test_cli_clients.py": 3,
    "unit/test_accounted_documents.py": 3,
    "simulate/test_traces.py": 3,
    "planner/test_preempt_cohort.py": 3,
    "planner/test_never_fits.py": 3,
    "planner/test_idle_oracle.py": 3,
    "planner/test_fuzz_plans.py": 3,
    "oidc/test_provider.py": 3,
    "devices/test_verify.py": 3,
    "db/test_usage.py": 3,
    "db/test_replicas.py": 3,
    "control/test_takeover.py": 3,
    "control/test_follow_configuration.py": 3,
    "control/test_deleted_job.py": 3,
    "api/test_reports.py": 3,
    "api/test_config.py": 3,
    "api/test_auth.py": 3,
    "unit/test_plan_command.py": 2,
    "unit/test_pending_window.py": 2,
    "unit/test_localcluster_cache.py": 2,
    "unit/test_init.py": 2,
    "simulate/test_shortcuts.py": 2,
    "simulate/test_planned.py": 2,
    "planner/test_refuted.py": 2,
    "planner/test_reconfigure_mig.py": 2,
    "planner/test_preempt_histories.py": 2,
    "planner/test_preempt_fair.py": 2,
    "planner/test_invariants.py": 2,
    "planner/test_explain_known_plan.py": 2,
    "planner/test_defrag_plan.py": 2,
    "planner/test_compact.py": 2,
    "fuzz/test_reverted.py": 2,
    "devices/test_selectors.py": 2,
    "db/test_exact_hours.py": 2,
    "db/test_cli.py": 2,
    "api/test_unmanaged.py": 2,
    "api/test_queue_stops.py": 2,
    "api/test_pods.py": 2,
    "api/test_patch.py": 2,
    "api/test_connections.py": 2,
    "api/test_audit.py": 2,
}
"""Files under ``tests`` that take a few seconds of CPU time, and these seconds."""
OTHERS: Final = 0.3
"""Seconds of another file."""
AHEAD: Final = 4
"""Tests that a worker has besides the current one."""
ELSEWHERE: Final = {"image", "kinds", "operations", "real", "system", "upgrade", "versions"}
"""Folders of which other targets run all tests. They are not collected."""
_TESTS: Final = Path(__file__).parent


class OwnTests(EachScheduling):  # type: ignore[misc]  # Any to the type checker, for the same reason
    """For ``--dist each``: each worker runs all tests that it has collected.

    It gets them in small numbers: xdist sends all at once, and a worker then runs them to the end even if the run is over.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._unsent: dict[Any, deque[int]] = {}

    @property
    def tests_finished(self) -> bool:
        return super().tests_finished and not any(self._unsent.values())

    def schedule(self) -> None:
        for node, tests in self.node2collection.items():
            self._unsent[node] = deque(range(len(tests)))
            self._send(node)
        # xdist takes the number of the last worker as the number of all tests.
        session = self.config.pluginmanager.getplugin("session")
        session.testscollected = sum(map(len, self.node2collection.values()))

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        self._send(node)

    def _send(self, node: Any) -> None:
        """A worker starts a test when it knows the next one, or that no more follow."""
        unsent, sent = self._unsent[node], self.node2pending[node]
        if node.shutting_down:
            return
        if len(sent) < AHEAD:
            more = [unsent.popleft() for _ in range(min(AHEAD, len(unsent)))]
            sent += more
            node.send_runtest_some(more)
        if not unsent:
            node.shutdown()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OwnTests:
    return OwnTests(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    config = session.config
    worker: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        config.args = shares(config.args, worker["workercount"])[number]


def shares(arguments: Iterable[str], workers: int) -> list[list[str]]:
    """Share out the files of these arguments of pytest. Tests of one file stay together."""
    files: dict[Path, list[str]] = defaultdict(list)
    for argument in arguments:
        path = Path(argument.partition("::")[0])
        if path.is_dir():
            for file in sorted(path.rglob("test_*.py")):
                if ELSEWHERE.isdisjoint(file.parts):
                    files[file].append(str(file))
        else:
            files[path].append(argument)
    loads = [0.0] * workers
    own: list[list[str]] = [[] for _ in loads]
    for file in sorted(files, key=seconds, reverse=True):
        least = loads.index(min(loads))
        loads[least] += seconds(file)
        own[least] += files[file]
    return own


def seconds(file: Path) -> float:
    path = file.resolve()
    name = path.relative_to(_TESTS).as_posix() if path.is_relative_to(_TESTS) else ""
    return LONGEST.get(name, OTHERS)
