"""Idle gangs among the victims, against brute force: every set, every order of exits, the idle ones considered first."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from queuectl.domain.plan import PreemptionReason
from queuectl.domain.queues import ClusterQueue, IdleReclaim, ReclaimMode
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW
from tests.planner.generate_cohorts import cohorts
from tests.planner.test_preempt import plan_of
from tests.planner.test_preempt_cohort import agrees_with_brute_force, ask
from tests.support.examples import examples

MODES = (ReclaimMode.ON_DEMAND, ReclaimMode.ON_DEMAND, *ReclaimMode)


def idlers(seed: int, *, fair: bool = False, nodes: bool = False) -> Snapshot:
    """One blocked gang; some of the running gangs are idle, and the idle policies of their queues differ."""
    snapshot = cohorts(seed, fair=fair, nodes=nodes)
    rng = random.Random(~seed)

    def ruled(queue: ClusterQueue) -> ClusterQueue:
        rule = IdleReclaim(mode=rng.choice(MODES), to_equal=rng.random() < 0.3)
        return replace(queue, idle_reclaim=rule)

    def doing(gang: Admitted) -> Admitted:
        return replace(gang, idle_since=NOW - 60.0 if rng.random() < 0.4 else None)

    queues = {name: ruled(queue) for name, queue in snapshot.config.cluster_queues.items()}
    config = replace(snapshot.config, cluster_queues=queues)
    return replace(snapshot, config=config, admitted=tuple(map(doing, snapshot.admitted)))


@pytest.mark.seeds
@pytest.mark.parametrize("fair", [False, True], ids=["classic", "fair"])
@pytest.mark.parametrize(("nodes", "worlds"), [(False, 300), (True, 80)], ids=["quota", "nodes"])
def test_the_victims_are_the_least_of_all_legal_sets(fair: bool, nodes: bool, worlds: int) -> None:
    for seed in range(examples(worlds)):
        agrees_with_brute_force(idlers(seed, fair=fair, nodes=nodes))


def test_a_set_refused_by_shares_does_not_refuse_idle_gangs() -> None:
    """A snapshot in which a refused set, applied to all gangs of that size, would keep an idle one from leaving."""
    agrees_with_brute_force(idlers(858, fair=True, nodes=True))


@pytest.mark.parametrize("fair", [False, True], ids=["classic", "fair"])
def test_the_snapshots_cover_every_combination_of_idle_and_other_victims(fair: bool) -> None:
    """Idle gangs alone, alongside others, and not at all; of the own queue and of another one."""
    seen = Counter[str]()
    for seed in range(300):
        oracle, answer, _ = ask(idlers(seed, fair=fair))
        reasons = {v.reason for v in answer.victims} if answer is not None else set[str]()
        taken = [v.victim for v in answer.victims if oracle.idle(v.victim)] if answer else []
        seen["own"] += any(oracle.queue_of(uid) is oracle.queue for uid in taken)
        seen["foreign"] += any(oracle.queue_of(uid) is not oracle.queue for uid in taken)
        seen["alone"] += reasons == {PreemptionReason.IDLE}
        seen["beside"] += len(reasons) > 1 and PreemptionReason.IDLE in reasons
        seen["none"] += bool(reasons) and PreemptionReason.IDLE not in reasons
    assert all(seen[kind] >= 5 for kind in ("own", "foreign", "alone", "beside", "none")), seen


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(3)))
@pytest.mark.parametrize("fair", [False, True], ids=["classic", "fair"])
def test_the_verifier_refuses_what_brute_force_finds_illegal(fair: bool, block: int) -> None:
    """Any gangs, each evicted for idleness or by policy at random."""
    refused = passed = 0
    for seed in range(200 * block, 200 * (block + 1)):
        snapshot = idlers(seed, nodes=True, fair=fair)
        oracle, answer, request = ask(snapshot)
        one = next(iter(answer.victims), None) if answer is not None else None
        if answer is None or one is None:
            continue
        rng = random.Random(seed)
        chosen = frozenset(u for u in oracle.gangs if rng.random() < 0.4)
        cost = costs(list(oracle.gangs.values()), snapshot.now, sizes_of(snapshot))

        def reason(uid: str, oracle=oracle, chosen=chosen) -> str:
            if oracle.yields(uid, chosen):
                return PreemptionReason.IDLE
            if oracle.queue_of(uid) is oracle.queue:
                return PreemptionReason.IN_CLUSTER_QUEUE
            named = PreemptionReason.IN_COHORT_FAIR_SHARING
            return named if fair else PreemptionReason.IN_COHORT_RECLAMATION

        victims = tuple(
            replace(one, victim=u, cost=cost[u], reason=reason(u)) for u in sorted(chosen)
        )
        made = plan_of(snapshot, request, replace(answer, victims=victims))
        strategies = snapshot.config.rules.fair_sharing
        legal = oracle.fair(chosen, strategies) if fair else oracle.classic(chosen)
        found = [v for v in verify(snapshot, made) if v.rule is PlanRule.VICTIM]
        assert bool(found) != legal, (seed, found)
        idle = any(oracle.idle(u) for u in chosen)
        refused, passed = refused + (idle and not legal), passed + (idle and legal)
    assert refused > 5
    assert passed > 5
