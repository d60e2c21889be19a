"""Values that a job states about itself, and the conditions on which the policy of its ClusterQueue accepts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    IdleReclaim,
    LocalQueue,
    OptOut,
    QueueConfig,
    ResourceGroup,
)
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.state.claims import checkpoint_of, exempt_from_idle_reclaim, idle_rule, priority_of
from queuectl.state.gpu_holders import held_gangs
from queuectl.state.holdings import Holdings
from tests.unit.test_defaults import QUEUE, config, job, local_queue
from tests.unit.test_idleness import ENDS, FIRST, Leader, configured
from tests.unit.test_state import LIVE, RESUMED, World, on
from tests.unit.test_use_watch import RULE, RUNNING

GPU = "nvidia.com/gpu"
NEVER, WITHIN, ALWAYS = OptOut.NEVER, OptOut.WITHIN_NOMINAL, OptOut.ALWAYS


def queue(**policy: Any) -> ClusterQueue:
    return ClusterQueue("cq", **policy)


@pytest.mark.parametrize(
    ("policy", "borrowing", "asked", "warmup"),
    [
        (WITHIN, False, 500.0, 500.0),
        (WITHIN, False, 86_400.0, 900.0),  # maxWarmupSeconds
        (WITHIN, False, 50.0, 100.0),
        (WITHIN, True, 500.0, 100.0),
        (ALWAYS, True, 500.0, 500.0),
        (ALWAYS, True, 86_400.0, 900.0),
        (NEVER, False, 500.0, 100.0),
        (WITHIN, False, None, 100.0),
    ],
)
def test_the_warmup_that_a_job_asks_for(
    policy: OptOut, borrowing: bool, asked: float | None, warmup: float
) -> None:
    rule = IdleReclaim(warmup=100.0, max_warmup=900.0)
    known = queue(idle_reclaim=rule, preemption_opt_out=policy)
    found = idle_rule(replace(RESUMED, warmup=asked), known, borrowing=borrowing)
    assert found == replace(rule, warmup=warmup)


def test_a_queue_whose_own_warmup_is_longer_than_jobs_may_ask_for_keeps_it() -> None:
    known = queue(idle_reclaim=IdleReclaim(warmup=100.0, max_warmup=50.0))
    assert idle_rule(replace(RESUMED, warmup=70.0), known, borrowing=False).warmup == 100.0


@pytest.mark.parametrize(
    ("says", "policy", "borrowing", "exempt"),
    [
        ({"idle_reclaim": False}, WITHIN, False, True),
        ({"idle_reclaim": False}, WITHIN, True, False),
        ({"idle_reclaim": False}, ALWAYS, True, True),
        ({"idle_reclaim": False}, NEVER, False, False),
        ({"preemptible": False}, WITHIN, False, True),
        ({"preemptible": False}, ALWAYS, True, True),
        ({"preemptible": False}, NEVER, False, False),
        ({}, ALWAYS, False, False),
    ],
)
def test_when_a_job_is_exempt_from_idle_reclaim(
    says: dict[str, Any], policy: OptOut, borrowing: bool, exempt: bool
) -> None:
    known = queue(preemption_opt_out=policy)
    assert exempt_from_idle_reclaim(replace(RESUMED, **says), known, borrowing=borrowing) == exempt


@pytest.mark.parametrize(
    ("policy", "borrowing", "taken", "says"),
    [
        (WITHIN, frozenset(), False, ""),
        (WITHIN, {"cq"}, True, "exempts it while that ClusterQueue does not borrow"),
        (ALWAYS, {"cq"}, False, ""),
        (NEVER, frozenset(), True, "No annotation exempts it: preemptionOptOut of ClusterQueue cq"),
    ],
)
def test_an_idle_gang_that_opts_out_is_taken_where_its_queue_borrows(
    policy: OptOut, borrowing: frozenset[str], taken: bool, says: str
) -> None:
    job = replace(RESUMED, idle_reclaim=False)
    leader = Leader(
        job=job, config=configured(preemption_opt_out=policy), borrowing=lambda: borrowing
    )
    leader.sample(FIRST)
    notes = [change.note for change in leader.cycle(FIRST + 1)]
    assert [note is not None and says in note.reason.message for note in notes] == [True] * taken
    leader.idle(ENDS)
    assert (leader.gang(FIRST + ENDS).idle_since is not None) == taken


def test_an_observation_uses_the_quota_that_the_queue_borrows() -> None:
    pods = [on("p1", "n1", started_at=15.0), on("p2", "n2", started_at=16.0)]
    made = World(RUNNING, records=[replace(RESUMED, warmup=500.0), *pods])
    known = QueueConfig(cluster_queues={"cq": queue(idle_reclaim=RULE)})
    found = [
        gang.rule.warmup
        for names in ((), {"cq"})
        for gang in held_gangs(made.mirror, made.ledger, known, names)
    ]
    assert found == [500.0, 100.0]


@pytest.mark.parametrize(("nominal", "borrows"), [(16, set()), (15, {"cq"})])
def test_a_queue_borrows_that_uses_more_than_its_nominal_quota(
    nominal: int, borrows: set[str]
) -> None:
    made = World(LIVE, records=[RESUMED])
    flavor = dict.fromkeys(RESUMED.podsets[0].shape.requests, "default")
    placed = tuple(
        PodSetPlacement(p.podset, p.nodes, flavor)
        for p in (LIVE.placement or Placement(())).podsets
    )
    entry = replace(LIVE, state=State.RUNNING, placement=Placement(placed))
    plenty = dict.fromkeys(flavor, 10**15)
    quotas = FlavorQuotas("default", plenty | {GPU: nominal})
    known = QueueConfig(
        cluster_queues={"cq": queue(groups=(ResourceGroup(tuple(flavor), (quotas,)),))},
        local_queues={("a", "q"): LocalQueue("a", "q", "cq")},
    )
    holdings = Holdings(made.mirror)
    holdings.configure(known, [entry])
    assert holdings.borrowing() == borrows


@pytest.mark.parametrize(
    ("trusted", "final", "saved"),
    [(True, False, 12.0), (False, False, None), (True, True, 5.0)],
)
def test_checkpoints_that_jobs_declare(trusted: bool, final: bool, saved: float | None) -> None:
    """One that would not start again has none after its start."""
    entry = replace(LIVE, started_at=5.0)
    made = World(entry, records=[replace(RESUMED, checkpoint_at=12.0, final=final)])
    known = QueueConfig(cluster_queues={"cq": queue(trusts_checkpoints=trusted)})
    job = made.mirror.jobs[LIVE.uid]
    assert checkpoint_of(made.mirror, entry, job, known) == saved


@pytest.mark.parametrize(
    ("named", "pod_class", "local_queue", "priority"),
    [
        ("high", None, "capped", 100),
        ("low", None, "capped", 10),
        (None, "system", "capped", 100),
        ("high", None, "open", 1000),
        (None, "system", "open", 2000),
        ("high", None, "nowhere", 1000),
    ],
)
def test_no_class_gives_more_priority_than_the_queue_allows(
    named: str | None, pod_class: str | None, local_queue: str, priority: int
) -> None:
    known = QueueConfig(
        cluster_queues={"cq": queue(max_priority=100), "free": ClusterQueue("free")},
        local_queues={
            ("a", "capped"): LocalQueue("a", "capped", "cq"),
            ("a", "open"): LocalQueue("a", "open", "free"),
        },
        priority_classes={"high": 1000, "low": 10},
    )
    asks = replace(RESUMED, queue=local_queue, priority_class=named, pod_priority_class=pod_class)
    assert priority_of(asks, known, {"system": 2000}) == priority


def test_a_plan_of_files_applies_the_same_policy() -> None:
    capped = QUEUE | {"spec": {"namespaceSelector": {}, "policy": {"maxPriority": 5}}}
    high = config("WorkloadPriorityClass", "high", value=1000)
    waits = job(labels={"queuectl.dev/priority-class": "high"})
    documents = [as_document(one) for one in (capped, local_queue(), high, waits)]
    (pending,) = read_snapshot(documents).snapshot.pending
    assert pending.workload.priority == 5
