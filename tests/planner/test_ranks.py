"""Ranks: the node of each rank after a repair, and the release of pods rank by rank to their planned nodes."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.jobs import PodRecord
from queuectl.domain.workload import PodSetPlacement
from queuectl.lifecycle.outstanding_writes import assign
from queuectl.planner import plan
from queuectl.planner.capacity.node_counts import rank_nodes_of
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, world
from tests.support.examples import examples


def order(name: str) -> tuple[int, str]:
    return 0, name


def rack(name: str) -> str:
    return name[0]


def test_a_lost_rank_is_placed_alongside_the_rest_of_its_slice() -> None:
    """Rank 1 uses rack b, where rank 0 is, though rack a is first in order; the lost pair 4, 5 uses rack a."""
    before = [("b0", 1), ("b9", 1), ("c0", 2), ("d9", 2)]
    after = {"a0": 2, "b0": 1, "b1": 1, "c0": 2}
    rank_nodes = rank_nodes_of(before, {"b0": 1, "c0": 2}, after, order)
    assert rank_nodes is not None
    assert rank_nodes.fill([(2, rack)]) == (("b0", 1), ("b1", 1), ("c0", 2), ("a0", 2))


def test_finer_layers_are_completed_before_coarser_ones() -> None:
    before = [("a0", 2), ("a1", 2), ("b0", 2), ("b1", 2)]
    staying = {"a0": 1, "b0": 2}
    after = {"a0": 2, "a2": 2, "b0": 2, "b2": 2}
    rank_nodes = rank_nodes_of(before, staying, after, order)
    assert rank_nodes is not None
    assert rank_nodes.fill([(2, str), (4, rack)]) == (("a0", 2), ("a2", 2), ("b0", 2), ("b2", 2))


def test_a_wrong_number_of_pods_gets_no_ranks() -> None:
    assert rank_nodes_of([("a0", 2)], {}, {"a1": 1}, order) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_healthy_ranks_stay_and_slices_stay_whole(seed: int, failures: int) -> None:
    """Nodes fail under a gang in slices of two layers; every rank that was not lost keeps its node."""
    rng = random.Random(seed)
    nodes = [
        node(f"{r}{i}", f"{r > 'b'}/{r}", gpu=rng.randint(2, 5)) for r in "abcd" for i in range(4)
    ]
    wanted = gang("g", podset(count=16, gpu=1, slices=[("rack", 4), (HOSTNAME, 2)]))
    first = plan(world(nodes, [wanted])).admitted
    if not first:
        return
    (placed,) = first[0].placement.podsets
    lost = rng.sample(sorted({name for name, _ in placed.nodes}), min(failures, len(placed.nodes)))
    running = replace(
        holding(wanted, {}),
        placement=first[0].placement,
        lost=tuple(("w", name, count) for name, count in placed.nodes if name in lost),
    )
    left = [replace(n, ready=n.name not in lost) for n in nodes]
    snapshot = world(left, [], [running])
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    for admission in made.admitted:
        (now,) = admission.placement.podsets
        ranks = zip(expanded(placed), expanded(now), strict=True)
        assert all(old == new for old, new in ranks if old not in lost)


def expanded(placed: PodSetPlacement) -> list[str]:
    return [name for name, count in placed.nodes for _ in range(count)]


@given(st.permutations(range(8)), st.integers(0, 8))
def test_pods_are_released_to_the_node_of_their_rank(arrival: list[int], pinned: int) -> None:
    """In whatever order they appear, and whichever are pinned already; a node can appear twice."""
    placed = PodSetPlacement("w", (("n1", 2), ("n2", 3), ("n1", 1), ("n3", 2)))
    nodes = expanded(placed)
    known = {name: Node(name, {HOSTNAME: name}) for name in ("n1", "n2", "n3")}
    pods = [PodRecord("a", f"p{r}", f"u{r}", 1, rank=r, podset="w", gated=True) for r in arrival]
    pods = [
        replace(p, gated=False, pin=nodes[p.rank or 0]) if i < pinned else p
        for i, p in enumerate(pods)
    ]
    waiting = [p for p in pods if p.gated]
    given_to = {p.rank: nodes[number] for p, number in assign(placed, pods, waiting, known)}
    assert given_to == {p.rank: nodes[p.rank or 0] for p in waiting}
