"""Explanations of snapshots that mix all features agree with plans: of the blocking constraints, and of each fix."""

from __future__ import annotations

from itertools import islice

import pytest

from queuectl.domain.diagnosis import apply_all
from queuectl.domain.plan import Proof
from queuectl.domain.reasons import Code
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose, diagnose_those
from queuectl.planner.order.limits import GangLimits
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.problem.fleet import FleetIndex
from queuectl.planner.problem.usage import AdmittedUsage
from tests.planner.generate import crowded
from tests.planner.generate_features import snapshot_of

_GANGS = 6


@pytest.mark.parametrize("seed", [15, 17])
def test_an_explanation_proves_a_set_and_each_fix_starts_the_gang_with_and_without_a_plan(
    seed: int,
) -> None:
    snapshot = snapshot_of(seed)
    planned = plan(snapshot)
    pending = {gang.workload.uid: gang for gang in snapshot.pending}
    waiting = [r.uid for r in planned.pending if r.lease is None and r.proof is Proof.OPTIMAL]
    limits = GangLimits(snapshot)
    for found in islice(diagnose_those(snapshot, frozenset(waiting), plan=planned), _GANGS):
        gang = pending[found.uid]
        over = next(limits.over(gang.workload, Code.RESOURCE_QUOTA_EXCEEDED), None)
        stated = inadmissible(snapshot, gang) or over or limits.claims.in_use(gang.workload)
        assert bool(found.conflict) != bool(stated)
        assert found.proof is Proof.OPTIMAL
        for fix in found.suggested_fixes:
            after = plan(apply_all(fix.changes, snapshot))
            leased = [r.uid for r in after.pending if r.lease is not None]
            assert found.uid in [*(a.uid for a in after.admitted), *leased], fix
    assert diagnose(snapshot, waiting[-1]) == diagnose(snapshot, waiting[-1], plan=planned)


def test_an_explanation_leaves_the_cache_of_plans_as_it_is() -> None:
    snapshot, cache = crowded(0), PlannerCache()
    planned = plan(snapshot, cache=cache)
    counted = cache.latest(AdmittedUsage)
    uids = [r.uid for r in planned.pending if r.lease is None]
    assert any(diagnose(snapshot, uid, plan=planned, cache=cache).suggested_fixes for uid in uids)
    assert counted is not None
    assert cache.latest(AdmittedUsage) is counted


def test_a_value_that_is_dropped_in_a_fork_of_a_cache_is_kept_in_the_cache() -> None:
    snapshot, cache = crowded(0), PlannerCache()
    plan(snapshot, cache=cache)
    fork = cache.fork()
    assert fork.get(snapshot.fleet, FleetIndex) is cache.get(snapshot.fleet, FleetIndex)
    assert fork.latest(AdmittedUsage) is cache.latest(AdmittedUsage) is not None
    fork.drop(snapshot.fleet, FleetIndex)
    assert fork.get(snapshot.fleet, FleetIndex) is None
    assert cache.get(snapshot.fleet, FleetIndex) is not None
