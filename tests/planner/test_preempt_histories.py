"""Consequences of evictions, cycle after cycle: every preemptor starts, no victim evicts it, and no cycle repeats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import OptOut
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.documents import TOPOLOGY, Doc, cluster_queue, flavor, nodes, planned, workload
from tests.planner.generate_cohorts import contest
from tests.planner.test_preempt_cohort import ANY, LOWER, comes, runs, team
from tests.support.examples import examples

CYCLES = 40


@dataclass(frozen=True)
class Cycle:
    snapshot: Snapshot
    made: Plan


def next_snapshot(snapshot: Snapshot, made: Plan, slow: frozenset[str] = frozenset()) -> Snapshot:
    """Victims leave, except that ``slow`` ones take until the next time, and queue again at their old positions."""
    waiting = {p.workload.uid: p.workload for p in snapshot.pending}
    held = {a.workload.uid: a for a in snapshot.admitted}
    evicted = {p.victim for p in made.preempted} | {u for u, a in held.items() if a.leaving}
    started = tuple(
        Admitted(waiting[a.uid], a.placement, started_at=snapshot.now) for a in made.admitted
    )
    staying = tuple(
        replace(a, leaving=uid in evicted) for uid, a in held.items() if uid not in evicted - slow
    )
    back = tuple(Pending(held[uid].workload) for uid in sorted(evicted - slow))
    left = tuple(Pending(waiting[r.uid], r.lease) for r in made.pending)
    return replace(snapshot, now=snapshot.now + 1, admitted=staying + started, pending=left + back)


def history(snapshot: Snapshot) -> Iterator[Cycle]:
    """Cycle after cycle until a cycle changes nothing."""
    for _ in range(CYCLES):
        made = plan(snapshot)
        assert verify(snapshot, made) == ()
        yield Cycle(snapshot, made)
        if not made.admitted and not made.preempted:
            return
        snapshot = next_snapshot(snapshot, made)
    raise AssertionError(f"still evicting or starting after {CYCLES} cycles")


@pytest.mark.seeds
@pytest.mark.parametrize("fair", [False, True], ids=["classic", "fair"])
@pytest.mark.parametrize("nodes", [False, True], ids=["quota", "nodes"])
@pytest.mark.parametrize(
    ("block", "opting_out"), [(0, False), (1, False), (1, True)], ids=["0", "1", "opting out"]
)
def test_every_preemptor_starts_and_no_victim_evicts_its_preemptor(
    block: int, opting_out: bool, nodes: bool, fair: bool
) -> None:
    evictions = 0
    for seed in range(60 * block, 60 * block + examples(60)):
        pairs: list[tuple[str, str]] = []
        reserved: set[str] = set()
        for cycle in history(contest(seed, fair=fair, nodes=nodes, opting_out=opting_out)):
            assert reserved <= {a.uid for a in cycle.made.admitted}, seed
            reserved = {p.preemptor for p in cycle.made.preempted}
            pairs += [(p.preemptor, p.victim) for p in cycle.made.preempted]
        assert not any((victim, preemptor) in pairs for preemptor, victim in pairs), seed
        evictions += len(pairs)
    assert evictions > examples(60) // 6


# Two gangs, each within the nominal quota of its ClusterQueue, of which only one can run.


def test_quota_that_stays_borrowed_does_not_let_two_gangs_evict_each_other_repeatedly() -> None:
    """g1 keeps quota of a and b; the rest is enough for one of two gangs that each request all of their queue's own."""
    snapshot = contest(106)
    held = tuple(
        replace(a, workload=replace(a.workload, preemptible=a.workload.uid != "g1"))
        for a in snapshot.admitted
    )
    queues = snapshot.config.cluster_queues
    stays = {**queues, "d": replace(queues["d"], preemption_opt_out=OptOut.ALWAYS)}
    config = replace(snapshot.config, cluster_queues=stays)
    assert list(history(replace(snapshot, config=config, admitted=held)))


def test_nodes_that_hold_less_than_the_quotas_do_not_let_two_gangs_evict_each_other_repeatedly() -> (
    None
):
    """b is over its quota because of a small low gang; without it the large one is within it, and capacity suffices for one such."""
    world: list[Doc | list[Doc]] = [
        TOPOLOGY,
        flavor(topology=True),
        *nodes("r", 1, gpu=5),
        team("a", 3),
        team("b", 3),
        workload("low-a", "a", gpu=1, flavor="default", on={"r0": 1}),
        workload("large", "b", gpu=3, priority=2, flavor="default", on={"r0": 1}),
        workload("low-b", "b", gpu=1, flavor="default", on={"r0": 1}),
        workload("in", "a", gpu=3, priority=2),
    ]
    assert [cycle.made.preempted for cycle in history(planned(*world).snapshot)] == [()]


def test_a_gang_that_uses_no_borrowed_resource_is_not_evicted_for_its_queues_share() -> None:
    """g0 would return within a's own GPUs at once: a borrows cpu alone, which g0 does not request."""
    assert list(history(contest(397, fair=True, nodes=True)))


# Cases from the peer's issues.


def test_capacity_freed_in_another_queue_is_the_preemptors_until_the_last_victim_has_left() -> None:
    """One of two victims is slow to end; the other, queued again, does not start before the preemptor."""
    world = (team("a", 8), team("b", 0), runs("b1", "b", 4), runs("b2", "b", 4))
    first = planned(flavor(), *world, comes("a", 8))
    assert first.victims == ["b1", "b2"]
    uids = {a.workload.name: a.workload.uid for a in first.snapshot.admitted}
    second = next_snapshot(first.snapshot, first.plan, frozenset({uids["b2"]}))
    assert {p.workload.name for p in second.pending} == {"in", "b1"}
    waits = plan(second)
    assert verify(second, waits) == ()
    assert (waits.admitted, waits.preempted) == ((), ())
    third = next_snapshot(second, waits)
    ends = plan(third)
    assert [a.uid for a in ends.admitted] == [
        p.workload.uid for p in third.pending if p.workload.name == "in"
    ]
    assert ends.preempted == ()


def test_a_victim_is_never_one_that_only_the_search_order_made_legal() -> None:
    """Own gangs and others' leave until it fits, and those put back make earlier exits illegal: then they evict each other."""
    world = (
        team("a", 4, borrow=LOWER), team("b", 2, reclaim=ANY), team("c", 2),
        runs("a1", "a", 3, 1), runs("b1", "b", 3, 1), runs("c1", "c", 2, 1),
    )  # fmt: skip
    rest = [cycle.made for cycle in history(planned(flavor(), *world, comes("a", 3, 5)).snapshot)]
    evicted = [p.victim for made in rest for p in made.preempted]
    assert len(evicted) == len(set(evicted))


# A rack held by a gang that is within its queue's own quota.


def rack_of_the_others(**policy: Any) -> list[Doc | list[Doc]]:
    """Team b holds half of the only rack that is large enough, within its own quota; team a has the quota for a whole rack."""
    spec: Doc = {"preemption": {"reclaimWithinCohort": ANY}, "policy": policy}
    return [
        TOPOLOGY,
        flavor(topology=True),
        *nodes("r", 2),
        *nodes("s", 1),
        cluster_queue("a", 16, "all", **spec),
        cluster_queue("b", 8, "all"),
        workload("low", "b", gpu=8, priority=1, flavor="default", on={"r0": 1}),
        workload("in", "a", 2, gpu=8, priority=5, rack=True),
    ]


def test_a_gang_within_its_quota_stays_though_a_higher_one_needs_its_rack() -> None:
    made = planned(*rack_of_the_others())
    assert (made.victims, made.waiting["in"]) == ([], "TopologyPlacementFailed")


def test_where_the_queue_allows_it_a_gang_within_its_quota_yields_to_a_higher_one() -> None:
    made = planned(*rack_of_the_others(evictWithinNominal=True))
    assert made.victims == ["low"]
    assert made.document["preempted"][0]["reason"] == "InCohortRoom"
    cycles = list(history(made.snapshot))
    assert [len(c.made.preempted) for c in cycles] == [1, 0, 0]
    assert {a.workload.name for a in cycles[-1].snapshot.admitted} == {"in", "low"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"priority": 1}, "not for one of equal priority"),
        ({"gpu": 7, "count": 3}, "not for one that would borrow"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_gang_within_its_quota_yields_only_to_higher_ones_within_their_own(
    change: dict[str, int], why: str
) -> None:
    world = rack_of_the_others(evictWithinNominal=True)[:-1]
    asks = {"count": 2, "gpu": 8, "priority": 5} | change
    blocked = workload(
        "in", "a", asks["count"], gpu=asks["gpu"], priority=asks["priority"], rack=True
    )
    assert planned(*world, blocked).victims == [], why
