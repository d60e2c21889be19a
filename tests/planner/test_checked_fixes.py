"""Explanations where the order of the planner, and not a lack of room, keeps a gang out; and only fixes that a plan confirms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.diagnosis import Limit, LimitRun, Remedy, apply_all
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Growth, Workload
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose
from queuectl.planner.explain.fix_checks import FixChecks
from tests.planner.backfill_clock import job
from tests.planner.build import gang, holding, node, podset, queue, resources, without_quota, world
from tests.planner.test_backfill import half_full
from tests.planner.test_elastic import base, cluster, rank


def test_a_gang_that_would_delay_a_planned_start_learns_that_and_the_run_that_would_not() -> None:
    snapshot = half_full(job("long", 1, 101, queued_at=1))
    found = diagnose(snapshot, "long")
    [obstacle] = found.conflict
    assert obstacle.limit is Limit.ORDER
    assert obstacle.message.startswith("queue order: it would delay team/large")
    assert obstacle.details["behind"] == ["team/large"]
    [fix] = found.suggested_fixes
    assert (fix.remedy, fix.changes) == (Remedy.SHORTEN_RUN, (LimitRun("long", 100.0),))
    started = plan(apply_all(fix.changes, snapshot)).admitted
    assert "long" in [admission.uid for admission in started]


@pytest.mark.parametrize(
    ("snapshot", "uid"),
    [
        (half_full(job("long", 1, 101, queued_at=1)), "long"),
        (half_full(job("open", 1, None, queued_at=1)), "open"),
        (cluster(3, [rank(1), rank(2)], [holding(base(2), {"n0": 1, "n1": 1})]), "train.002"),
    ],
    ids=["delays a planned start", "of unknown length", "behind its own rank"],
)
def test_an_explanation_is_the_same_with_and_without_a_plan(snapshot: Snapshot, uid: str) -> None:
    assert diagnose(snapshot, uid) == diagnose(snapshot, uid, plan=plan(snapshot))


def test_a_pod_of_an_elastic_gang_behind_another_gang_learns_the_order_alone() -> None:
    large = gang("large", podset("w", 3, gpu=8), priority=1)
    runs = replace(holding(base(), {"n0": 1}), evictable=False)
    found = diagnose(cluster(3, [rank(1), large], [runs]), "train.001")
    [obstacle] = found.conflict
    assert obstacle.limit is Limit.ORDER
    assert "team/large is pending" in obstacle.message
    assert found.suggested_fixes == ()


def test_no_fix_for_a_pod_of_an_elastic_gang_ends_the_gang_or_drops_the_rules_that_come_from_it() -> (
    None
):
    pod = gang("train.001", podset("w", gpu=8, select={"rack": "r1"}))
    pod = replace(pod, growth=Growth("train", 1, replace(podset().shape.rules)))
    nodes = [node("n0", "r1", gpu=8), node("n1", "r2", gpu=8)]
    found = diagnose(world(nodes, [pod], [holding(base(), {"n0": 1})]), "train.001")
    assert Limit.RUNNING in [obstacle.limit for obstacle in found.conflict]
    assert [fix.remedy for fix in found.suggested_fixes] == [Remedy.ADD_NODES]


def test_a_pod_of_an_elastic_gang_learns_no_priority_above_that_of_its_gang() -> None:
    """A pod of a lower rank takes the last place."""
    snapshot = cluster(2, [rank(1), rank(2)], [holding(base(), {"n0": 1})])
    assert [admission.uid for admission in plan(snapshot).admitted] == ["train.001"]
    found = diagnose(snapshot, "train.002")
    assert [fix.remedy for fix in found.suggested_fixes] == [Remedy.ADD_NODES]


def elastic(pods: int, least: int, queued_at: float) -> Workload:
    workload = gang("elastic", podset(count=pods, gpu=2), queued_at=queued_at)
    return replace(workload, podsets=(replace(workload.podsets[0], min_count=least),))


def test_a_fix_that_a_gang_before_it_would_use_up_is_not_suggested() -> None:
    """The first gang starts with fewer pods, and takes what is added."""
    big = gang("big", podset(gpu=4), queued_at=1.0)
    nodes = [node("n0", gpu=4)]
    snapshot = world(nodes, [elastic(3, 1, 0.0), big], [], queue(gpu=4))
    found = diagnose(snapshot, "big")
    assert [fix.remedy for fix in found.suggested_fixes] == [Remedy.RAISE_PRIORITY]


def test_the_checks_of_one_gang_end_after_a_number_of_turns() -> None:
    full = world([node("n0", gpu=8)], [gang("w", podset(gpu=8))], [holding(base(), {"n0": 1})])
    fixes = diagnose(full, "w").suggested_fixes
    checks = FixChecks(full, "w", StopSignal(), PlannerCache(), turns=1)
    assert list(checks.passed(fixes)) == list(fixes[:1])
    assert checks.over


@pytest.mark.parametrize("required", [None, "block"])
@pytest.mark.parametrize(
    ("short", "message"),
    [(1, "add 1 node like r0-0 in rack r2"), (3, "add 3 nodes like r0-0 in rack r2")],
)
def test_new_nodes_complete_a_slice_where_the_fewest_are_missing(
    required: str | None, short: int, message: str
) -> None:
    """Three slices of four pods; the last rack has too few nodes."""
    nodes = [node(f"r{r}-{i}", f"b/r{r}", gpu=8) for r in range(3) for i in range(4)]
    wanted = podset(count=12, gpu=8, required=required, slices=[("rack", 4)])
    found = diagnose(world(nodes[: 12 - short], [without_quota(gang("w", wanted))]), "w")
    [fix] = [fix for fix in found.suggested_fixes if fix.remedy is Remedy.ADD_NODES]
    assert (fix.message, fix.least) == (message, True)


def test_a_new_node_is_suggested_only_if_its_daemonsets_leave_room_for_the_gang() -> None:
    held = {"n0": resources(cpu=1, pods=1)}
    for asked, remedies in ((8, []), (7, [Remedy.ADD_NODES])):
        pods = gang("w", podset(count=2, gpu=4, cpu=asked))
        snapshot = world([node("n0", gpu=8, cpu=8)], [without_quota(pods)])
        snapshot = replace(snapshot, other_pods=held, of_daemons=held)
        found = diagnose(snapshot, "w")
        assert [f.remedy for f in found.suggested_fixes if f.remedy is Remedy.ADD_NODES] == remedies


def test_no_fix_contains_another_one() -> None:
    """A higher priority starts the gang, so more quota and a higher priority is not another fix."""
    strict = replace(queue(gpu=16), strategy=QueueingStrategy.STRICT_FIFO)
    pending = [
        gang("head", podset(count=2, gpu=8), queued_at=1.0),
        gang("w", podset(gpu=8), queued_at=2.0),
    ]
    runs = holding(gang("runs", podset(gpu=8)), {"n0": 1})
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    found = diagnose(world(nodes, pending, [runs], strict), "w")
    assert [fix.remedy for fix in found.suggested_fixes] == [Remedy.RAISE_PRIORITY]


def test_a_gang_that_never_fits_starts_with_the_pods_with_which_it_comes_before_others() -> None:
    """With 2 pods it borrows nothing, so it comes before a gang of a higher priority that borrows what it needs."""
    nodes = [node(f"n{i}", "b0/r0" if i < 2 else "b0/r1", gpu=4) for i in range(3)]
    never = gang("never", podset(count=3, gpu=4, required="rack"), queue="lends")
    borrows = gang("borrows", podset(count=3, gpu=2), queue="borrows", priority=5)
    queues = [
        replace(queue(name, gpu=n), cohort="all") for name, n in (("lends", 8), ("borrows", 4))
    ]
    snapshot = world(nodes, [never, borrows], (), *queues)
    assert [admission.uid for admission in plan(snapshot).admitted] == ["borrows"]
    fixes = {fix.remedy: fix for fix in diagnose(snapshot, "never").suggested_fixes}
    assert fixes[Remedy.FEWER_PODS].message == "start with 2 of 3 pods of podset w"
    assert fixes[Remedy.FEWER_PODS].least
