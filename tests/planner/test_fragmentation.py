"""Free GPUs that no gang can use: the measure by its definition, by flavor, against counting node by node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.accounting import Free
from queuectl.domain.fleet import Effect, Node, Taint, Toleration
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.snapshot import Admitted
from tests.planner.build import FLAVOR, gang, holding, node, podset, resources, world
from tests.support.counted import free_of


def busy(name: str, gpu: int, cpu: int = 0) -> Admitted:
    """A gang that holds this much of a node."""
    return holding(gang(f"on-{name}", podset(count=1, gpu=gpu, cpu=cpu)), {name: 1})


def test_a_node_with_too_few_gpus_left_is_a_fragment_for_the_larger_shape() -> None:
    nodes = [node("a", gpu=8), node("b", gpu=8)]
    waits = gang("w", podset(count=3, gpu=8))
    small = gang("s", podset(count=1, gpu=2))
    found = free_of(world(nodes, [waits, small], [busy("a", 4)]))
    # Shapes: 8 GPUs wanted by 3 pods, 2 by one, and the 4 that runs by one. Free: 4 on a, 8 on b; 8 do not fit on a.
    assert found == {FLAVOR: Free(16, 12, 3 / 5 * 4, 0)}


def test_gpus_whose_cpus_are_used_up_are_stranded() -> None:
    nodes = [node("a", gpu=8, cpu=64)]
    found = free_of(world(nodes, [gang("w", podset(count=1, gpu=1, cpu=8))], [busy("a", 1, 60)]))
    assert found[FLAVOR].stranded == found[FLAVOR].free == 7
    assert found[FLAVOR].fragmented == 7


@pytest.mark.parametrize(("ready", "cordoned"), [(False, False), (True, True)])
def test_nodes_that_take_no_pods_do_not_count(ready: bool, cordoned: bool) -> None:
    nodes = [node("a", gpu=8), replace(node("b", gpu=8), ready=ready, unschedulable=cordoned)]
    assert free_of(world(nodes))[FLAVOR].capacity == 8


def test_other_pods_hold_gpus_too() -> None:
    found = free_of(world([node("a", gpu=8)], other_pods={"a": resources(gpu=3)}))
    assert found[FLAVOR] == Free(8, 5, 0.0, 0)


def test_a_shape_for_other_nodes_does_not_count_for_a_flavor() -> None:
    flavors = [
        ResourceFlavor("h100", (("kind", "h100"),), tolerations=(Toleration("dear", "Exists"),)),
        ResourceFlavor("a100", (("kind", "a100"),)),
    ]
    nodes = [
        node("h", gpu=8, labels={"kind": "h100"}, taints=[Taint("dear", Effect.NO_SCHEDULE)]),
        node("a", gpu=4, labels={"kind": "a100"}),
    ]
    large = gang("w", podset(count=1, gpu=8))  # fits no a100 node even when it is empty
    found = free_of(world(nodes, [large], flavors=flavors))
    assert found == {"a100": Free(4, 4, 0.0, 0), "h100": Free(8, 8, 0.0, 0)}


def test_without_gpus_there_is_nothing_to_report() -> None:
    assert free_of(world([node("a", cpu=8)])) == {}
    assert free_of(world([])) == {}


SIZES = st.integers(1, 8)


@given(
    held=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    asks=st.lists(st.tuples(SIZES, st.integers(1, 5)), min_size=1, max_size=4),
)
def test_the_measure_equals_a_count_by_the_definition(
    held: list[int], asks: list[tuple[int, int]]
) -> None:
    nodes: list[Node] = [node(f"n{i}", gpu=8) for i in range(len(held))]
    running = [busy(f"n{i}", gpus) for i, gpus in enumerate(held) if gpus]
    waiting = [gang(f"w{i}", podset(count=pods, gpu=gpu)) for i, (gpu, pods) in enumerate(asks)]
    shapes = [gpu for gpu, pods in asks for _ in range(pods)] + [g for g in held if g]
    free = [8 - gpus for gpus in held]
    fragments = sum(left for shape in shapes for left in free if left < shape) / len(shapes)
    stranded = sum(left for left in free if left < min(shapes))
    found = free_of(world(nodes, waiting, running))[FLAVOR]
    assert (found.capacity, found.free, found.stranded) == (8 * len(held), sum(free), stranded)
    assert found.fragmented == pytest.approx(fragments)
