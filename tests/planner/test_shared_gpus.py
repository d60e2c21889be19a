"""Pods of a gang on nodes where the device plugin offers each GPU several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSet, PodShape
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.limit_rows import with_limit_rows
from queuectl.planner.problem.problem import survey
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import gang, holding, node, podset, resources, world
from tests.planner.generate import snapshots

SLICED = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}


def shared(name: str, gpu: int = 8) -> Node:
    return node(name, gpu=gpu, labels=SLICED)


def asks(count: int, gpu: int = 1, way: SharedGpus | None = None, name: str = "w") -> PodSet:
    return replace(podset(name, count, gpu=gpu), shared_gpus=way)


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def under(snapshot: Snapshot, rule: SharedGpus) -> Snapshot:
    """The snapshot with this rule in all ClusterQueues."""
    queues = {
        name: replace(queue, shared_gpus=rule)
        for name, queue in snapshot.config.cluster_queues.items()
    }
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


def places(made: Plan) -> dict[str, dict[str, int]]:
    """Pods by node of each gang that starts."""
    return {
        admission.uid: {
            name: sum(placed.by_node.get(name, 0) for placed in admission.placement.podsets)
            for placed in admission.placement.podsets
            for name in placed.by_node
        }
        for admission in made.admitted
    }


ONE, ANY, NEVER = SharedGpus.ONE_PER_NODE, SharedGpus.ANY, SharedGpus.NEVER


@pytest.mark.parametrize(
    ("podsets", "starts"),
    [
        pytest.param([asks(1)], True, id="one pod"),
        pytest.param([asks(2)], True, id="a pod on each node"),
        pytest.param([asks(3)], False, id="more pods than nodes"),
        pytest.param([asks(3, way=ANY)], True, id="more pods, and it asks for that"),
        pytest.param([asks(1, name="a"), asks(1, name="b")], True, id="two podsets"),
        pytest.param([asks(1, name="a"), asks(2, name="b")], False, id="podsets of three pods"),
        pytest.param([asks(1, gpu=2)], False, id="two replicas"),
        pytest.param([asks(1, gpu=2, way=ANY)], True, id="two replicas, and it asks for that"),
        pytest.param([asks(1, way=NEVER)], False, id="one pod that never shares"),
        pytest.param([podset("w", 6, cpu=1)], True, id="pods without GPUs"),
    ],
)
def test_a_gang_has_one_pod_with_one_replica_on_each_node_with_shared_gpus(
    podsets: Sequence[PodSet], starts: bool
) -> None:
    nodes = [
        replace(n, allocatable=n.allocatable + n.allocatable) for n in (shared("a"), shared("b"))
    ]
    made = planned(world([*nodes, node("c", cpu=8)], [gang("g", *podsets)]))
    assert list(places(made)) == (["g"] if starts else [])


@pytest.mark.parametrize(
    ("queue", "asked", "starts"),
    [
        (NEVER, None, False),
        (NEVER, ANY, False),
        (ONE, None, False),
        (ONE, ANY, True),
        (ANY, None, True),
        (ANY, ONE, False),
        (ANY, NEVER, False),
    ],
)
def test_a_gang_can_ask_otherwise_than_its_queue_unless_the_queue_forbids_it(
    queue: SharedGpus, asked: SharedGpus | None, starts: bool
) -> None:
    snapshot = under(world([shared("a")], [gang("g", asks(2, way=asked))]), queue)
    assert bool(places(planned(snapshot))) is starts


def test_whole_gpus_have_no_limit() -> None:
    waiting = [gang("g", asks(8)), gang("h", asks(2)), gang("i", asks(2))]
    made = planned(world([shared("a"), node("b", gpu=8)], waiting))
    assert places(made) == {"g": {"a": 1, "b": 7}, "h": {"a": 1, "b": 1}}


def test_several_gangs_share_the_gpus_of_a_node() -> None:
    waiting = [gang(f"g{i}", asks(2)) for i in range(4)]
    made = planned(world([shared("a", 4), shared("b", 4)], waiting))
    assert places(made) == {f"g{i}": {"a": 1, "b": 1} for i in range(4)}


def test_a_running_gang_gets_its_lost_pod_on_another_node() -> None:
    running = replace(holding(gang("g", asks(2)), {"a": 1, "gone": 1}), lost=(("w", "gone", 1),))
    made = planned(world([shared("a"), shared("b")], [], [running]))
    assert places(made) == {"g": {"a": 1, "b": 1}}
    alone = planned(world([shared("a")], [], [running]))
    assert places(alone) == {}


def test_the_refusal_names_the_limit() -> None:
    made = planned(world([shared("a")], [gang("g", asks(1, gpu=2))]))
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.SHAPE_NEVER_FITS
    assert "nvidia.com/gpu (not shared)" in refusal.reasons[0].message


def test_a_plan_with_two_pods_on_one_shared_gpu_is_refused() -> None:
    snapshot = world([shared("a")], [gang("g", asks(2, way=ANY))])
    made = plan(snapshot)
    stricter = world([shared("a")], [gang("g", asks(2))])
    assert [v.rule for v in verify(stricter, made)] == [PlanRule.SHARED_GPUS]
    two = world([shared("a")], [gang("g", asks(1, gpu=2, way=ANY))])
    single = world([shared("a")], [gang("g", asks(1, gpu=2))])
    assert [v.rule for v in verify(single, plan(two))] == [PlanRule.SHARED_GPUS]


def test_a_fleet_without_shared_gpus_is_unchanged() -> None:
    snapshot = world([node("a", gpu=8)], [gang("g", asks(2))])
    assert with_limit_rows(snapshot, PlannerCache()) is snapshot


def test_nodes_and_gangs_are_the_same_objects_in_the_next_cycle() -> None:
    cache = PlannerCache()
    snapshot = world([shared("a"), shared("b")], [gang("g", asks(2)), gang("h", asks(1))])
    first, second = (survey(replace(snapshot, now=now), cache).snapshot for now in (1.0, 2.0))
    assert first.fleet is second.fleet
    assert all(one is other for one, other in zip(first.pending, second.pending, strict=True))
    assert survey(first, cache).snapshot is first


COUNTS = st.integers(1, 3)


@given(
    gangs=st.lists(st.tuples(COUNTS, st.integers(1, 2), st.sampled_from([None, ONE, ANY, NEVER])), max_size=5),
    nodes=st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=4),
    queue=st.sampled_from(SharedGpus),
)  # fmt: skip
def test_a_gang_starts_alone_if_and_only_if_an_allowed_placement_exists(
    gangs: list[tuple[int, int, SharedGpus | None]],
    nodes: list[tuple[bool, int]],
    queue: SharedGpus,
) -> None:
    fleet = [
        (shared if sliced else _whole)(f"n{i}", gpus) for i, (sliced, gpus) in enumerate(nodes)
    ]
    for count, gpu, way in gangs:
        asked = gang("g", asks(count, gpu, way))
        found = planned(under(world(fleet, [asked]), queue))
        assert bool(places(found)) is _possible(fleet, count, gpu, queue.unless(way))
    together = [gang(f"g{i}", asks(*each)) for i, each in enumerate(gangs)]
    planned(under(world(fleet, together), queue))


def _whole(name: str, gpu: int) -> Node:
    return node(name, gpu=gpu)


def _possible(fleet: Sequence[Node], count: int, gpu: int, rule: SharedGpus) -> bool:
    """Brute force over the numbers of pods on each node."""
    most = []
    for each in fleet:
        fits = each.allocatable[GPU] // gpu
        if each.labels.get("nvidia.com/gpu.replicas"):
            fits = {NEVER: 0, ONE: min(fits, 1) if gpu == 1 else 0, ANY: fits}[rule]
        most.append(range(fits + 1))
    return any(sum(pods) == count for pods in product(*most))


@given(
    snapshot=snapshots(),
    sliced=st.lists(st.booleans(), min_size=5, max_size=5),
    rule=st.sampled_from(SharedGpus),
)
def test_evictions_repairs_and_moves_respect_the_limits(
    snapshot: Snapshot, sliced: list[bool], rule: SharedGpus
) -> None:
    """Running gangs can have several pods on such a node, because they started before it had shared GPUs."""
    nodes = tuple(
        replace(each, labels={**each.labels, **SLICED}) if some else each
        for each, some in zip(snapshot.fleet.nodes, sliced, strict=False)
    )
    planned(under(replace(snapshot, fleet=Fleet(nodes)), rule))


def test_the_resource_of_a_vendor_decides_the_nodes_of_a_gang() -> None:
    amd = replace(node("amd"), allocatable=resources(**{"amd.com/gpu": 8, "pods": 110}))
    both = [amd, node("nvidia", gpu=8)]
    shape = PodShape(resources(**{"amd.com/gpu": 4, "pods": 1}))
    waiting = [gang("n", podset(count=2, gpu=4)), gang("a", PodSet("w", 2, shape))]
    snapshot = world(both, waiting)
    free = replace(snapshot.config.rules, ignore_undeclared=True)
    made = planned(replace(snapshot, config=replace(snapshot.config, rules=free)))
    assert places(made) == {"n": {"nvidia": 2}, "a": {"amd": 2}}
