"""The state of a cycle is freed when its answer is made, and a cache keeps no gangs that have ended.

The arrays of a state have a row for each resource of all nodes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import ref

import pytest

from queuectl.domain.fleet import Fleet
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.diagnosis import diagnose_those
from queuectl.planner.preempt.cost import sizes_of
from queuectl.planner.problem.problem import Problem
from tests.planner.build import gang, podset
from tests.planner.generate_features import snapshot_of
from tests.planner.test_provisioning import described, template

LARGE: Final = (Problem, CycleState, AdmissionCycle)


def large() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, LARGE)}


def diagnosed(snapshot: Snapshot) -> object:
    uids = frozenset(pending.workload.uid for pending in snapshot.pending[:4])
    return [*diagnose_those(snapshot, uids)]


@pytest.mark.parametrize("answer", [plan, diagnosed])
@pytest.mark.parametrize("seed", range(900, 912))
def test_no_reference_cycle_keeps_the_state_of_a_cycle(
    seed: int, answer: Callable[[Snapshot], object]
) -> None:
    snapshot = snapshot_of(seed)
    gc.collect()
    before = large()
    gc.disable()
    try:
        answer(snapshot)
        assert large() <= before
    finally:
        gc.enable()


def with_new_gangs(snapshot: Snapshot, number: int) -> Snapshot:
    """The same cluster with other gangs, which run and wait as those of the snapshot do."""

    def other(workload: Workload) -> Workload:
        return replace(workload, uid=f"{workload.uid}-{number}", name=f"{workload.name}-{number}")

    return replace(
        snapshot,
        now=snapshot.now + number,
        admitted=tuple(
            replace(gang, workload=other(gang.workload), placement=replace(gang.placement))
            for gang in snapshot.admitted
        ),
        pending=tuple(replace(gang, workload=other(gang.workload)) for gang in snapshot.pending),
    )


@pytest.mark.parametrize("seed", range(900, 912))
def test_a_cache_keeps_no_gangs_that_have_ended(seed: int) -> None:
    snapshot, cache = snapshot_of(seed), PlannerCache()
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, Workload)}
    for number in range(16):
        plan(with_new_gangs(snapshot, number), cache=cache)
    gc.collect()
    kept = [
        each for each in gc.get_objects() if isinstance(each, Workload) and id(each) not in before
    ]
    # Gangs that have ended are forgotten together, once they are as many as those that run.
    assert len(kept) <= 4 * (len(snapshot.admitted) + len(snapshot.pending))


def both_change(snapshot: Snapshot, number: int) -> Snapshot:
    return nodes_change(configuration_changes(snapshot, number), number)


def configuration_changes(snapshot: Snapshot, number: int) -> Snapshot:
    return replace(snapshot, config=replace(snapshot.config, revision=number))


def nodes_change(snapshot: Snapshot, _: int) -> Snapshot:
    return replace(snapshot, fleet=Fleet(snapshot.fleet.nodes))


def first_one_then_the_other(snapshot: Snapshot, number: int) -> Snapshot:
    change = configuration_changes if number % 4 else nodes_change
    return change(snapshot, number)


def of_templates() -> Snapshot:
    return described(template(16, gpu=4), gang("g", podset(count=1, gpu=8)))


@pytest.mark.parametrize(
    "changed", [both_change, configuration_changes, nodes_change, first_one_then_the_other]
)
@pytest.mark.parametrize(
    "first", [*(partial(snapshot_of, seed) for seed in range(900, 906)), of_templates]
)
def test_a_cache_keeps_no_nodes_and_no_configuration_of_earlier_snapshots(
    first: Callable[[], Snapshot], changed: Callable[[Snapshot, int], Snapshot]
) -> None:
    snapshot, cache = first(), PlannerCache()
    nodes, configurations = set[ref[Fleet]](), set[ref[QueueConfig]]()
    for number in range(9):
        snapshot = changed(snapshot, number)
        plan(snapshot, cache=cache)
        nodes.add(ref(snapshot.fleet))
        configurations.add(ref(snapshot.config))
    gc.collect()
    for earlier in (nodes, configurations):
        assert sum(one() is not None for one in earlier) <= 1


def test_a_question_without_gangs_does_not_make_the_next_plan_compute_sizes_again() -> None:
    snapshot, cache = snapshot_of(900), PlannerCache()
    sizes = sizes_of(snapshot, cache)
    before = [sizes.of_running(gang) for gang in snapshot.admitted]
    assert sizes_of(replace(snapshot, admitted=()), cache.fork()) is sizes
    after = [sizes.of_running(gang) for gang in snapshot.admitted]
    assert before
    assert all(one is other for one, other in zip(before, after, strict=True))
