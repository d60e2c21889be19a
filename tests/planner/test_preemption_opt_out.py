"""A gang that is not preemptible is evicted, by default, only to return borrowed quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import (
    ClusterQueue,
    IdleReclaim,
    OptOut,
    Protection,
    ReclaimMode,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, world

NODES = [node("n0", gpu=8), node("n1", gpu=8)]
FAIR = Rules(fair_sharing=tuple(FairStrategy))
HOUR = Protection(min_runtime=3600.0)
NONE: Mapping[str, Any] = MappingProxyType({})
IDLE = IdleReclaim(mode=ReclaimMode.ON_DEMAND)


def team(name: str, gpus: int, **options: Any) -> ClusterQueue:
    made = replace(queue(name, gpu=gpus), cohort="all")
    return replace(made, **({"reclaim_within_cohort": ReclaimWithinCohort.ANY} | options))


class Row(NamedTuple):
    """Queue ``b`` holds both nodes with gangs that are not preemptible; one of ``by`` requests a node.

    Attributes:
        own: GPUs of 16 that are ``b``'s own.
        goes: one of them is evicted for it.
    """

    why: str
    goes: bool
    own: int = 8
    by: str = "a"
    about_a: Mapping[str, Any] = NONE
    about_b: Mapping[str, Any] = NONE
    rules: Rules = Rules()
    running: Mapping[str, Any] = NONE


NEVER = {"preemption_opt_out": OptOut.NEVER}
LOWER = {"within_cluster_queue": WithinClusterQueue.LOWER_PRIORITY}

ROWS = [
    Row("the owner of borrowed quota gets it back", True),
    Row("by shares as well", True, rules=FAIR),
    Row("not where the policy of their ClusterQueue is Always", False, about_b={"preemption_opt_out": OptOut.ALWAYS}),
    Row("nor by shares", False, about_b={"preemption_opt_out": OptOut.ALWAYS}, rules=FAIR),
    Row("a ClusterQueue within its nominal quota keeps them", False, own=16, about_a={"evicts_within_nominal": True}),
    Row("a higher gang of their own ClusterQueue evicts none", False, by="b"),
    Row("one that does not reclaim evicts none", False, about_a={"reclaim_within_cohort": ReclaimWithinCohort.NEVER}),
    Row("the protections of their ClusterQueue count", False, about_b={"protection": HOUR}),
    Row("idle, they are not evicted for their own ClusterQueue either", False, own=16, by="b", about_b={"idle_reclaim": IDLE}, running={"idle_since": NOW - 9.0}),
    Row("what the API server does not suspend frees nothing", False, running={"evictable": False}),
    Row("where the policy is Never they are preemptible: for a higher gang of the same queue", True, by="b", about_b=NEVER | LOWER),
    Row("and idle", True, own=16, by="b", about_b=NEVER | {"idle_reclaim": IDLE}, running={"idle_since": NOW - 9.0}),
]  # fmt: skip


def scene(row: Row) -> Snapshot:
    holders = [
        replace(
            holding(gang(f"b{i}", podset(gpu=8), queue="b", preemptible=False), {f"n{i}": 1}),
            **({"started_at": NOW - 60.0} | dict(row.running)),
        )
        for i in range(2)
    ]
    wants = gang("wants", podset(gpu=8), queue=row.by, priority=5)
    queues = (team("a", 16 - row.own, **row.about_a), team("b", row.own, **row.about_b))
    made = world(NODES, [wants], holders, *queues)
    return replace(made, config=replace(made.config, rules=row.rules))


def decided(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_opting_out_of_preemption_protects_a_gang(row: Row) -> None:
    assert len(decided(scene(row)).preempted) == row.goes


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"about_b": {"preemption_opt_out": OptOut.ALWAYS}}, id="the policy is Always"),
        pytest.param({"running": {"evictable": False}}, id="it cannot be suspended"),
    ],
)
@pytest.mark.parametrize("rules", [Rules(), FAIR], ids=["classic", "fair"])
def test_the_verifier_rejects_an_eviction_that_the_policy_forbids(
    changed: dict[str, Any], rules: Rules
) -> None:
    row = ROWS[0]._replace(rules=rules)
    made = decided(scene(row))
    (found,) = verify(scene(row._replace(**changed)), made)
    assert found.rule is PlanRule.VICTIM


def test_a_borrowing_queue_loses_its_cheapest_gang_whether_or_not_it_opted_out() -> None:
    snapshot = scene(ROWS[0])
    cheap, dear = snapshot.admitted
    willing = replace(dear.workload, preemptible=True)
    dear = replace(dear, started_at=NOW - 3600.0, workload=willing)
    made = decided(replace(snapshot, admitted=(cheap, dear)))
    assert [p.victim for p in made.preempted] == [cheap.workload.uid]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROWS[2], "it is not preemptible, and preemptionOptOut of ClusterQueue b is Always"),
        (
            ROWS[2],
            "or set preemptionOptOut of ClusterQueue b to Never; the gang then evicts 1 gang",
        ),
        (ROWS[5], "it is not preemptible"),
        (ROWS[6], "reclaimWithinCohort of ClusterQueue a is Never"),
        (ROWS[9], "the API server does not suspend its job"),
    ],
    ids=lambda value: value.why if isinstance(value, Row) else "",
)
def test_explain_names_the_rule_that_protects_it(row: Row, message: str) -> None:
    assert message in str(diagnose(scene(row), "wants"))
