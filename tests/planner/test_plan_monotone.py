"""More capacity, or a smaller request, never costs a gang its start in favor of a later one.

It holds for one flavor, no preemption, BestEffortFIFO, whole gangs. With several flavors a gang takes the one
it prefers as soon as that is possible, and a StrictFIFO head holds others back as soon as it could ever fit: there more
capacity can cost a later gang its start, as intended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.plan import Proof
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSet, TopologyMode, TopologyRequest, Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner import generate, test_slices
from tests.planner.build import node
from tests.planner.oracle import queue_order
from tests.planner.test_plan_properties import under
from tests.support.examples import examples

MANY = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
UP = {HOSTNAME: "rack", "rack": "block"}

snapshots = st.one_of(
    st.integers(2, 5).flatmap(lambda n: generate.snapshots(gangs=n, tenants=4)),
    test_slices.snapshots(),
)
new_nodes = st.builds(
    node,
    st.just("new"),
    st.sampled_from(["b1/r1", "b1/r2", "b2/r1", "b3/r1"]),
    gpu=st.sampled_from([1, 4, 8]),
    cpu=st.sampled_from([4, 12]),
    labels=st.sampled_from([{"model": m} for m in generate.MODELS]),
)


def calm(snapshot: Snapshot) -> Snapshot:
    assume(len(snapshot.config.flavors) == 1)
    return under(snapshot, QueueingStrategy.BEST_EFFORT_FIFO, WithinClusterQueue.NEVER)


def vector(snapshot: Snapshot) -> list[bool]:
    """The gangs that start, in queue order."""
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assume(made.proof is not Proof.UNDECIDED)
    started = {a.uid for a in made.admitted}
    return [p.workload.uid in started for p in sorted(snapshot.pending, key=queue_order)]


def with_node(snapshot: Snapshot, new: Node) -> Snapshot:
    nodes = sorted((*snapshot.fleet.nodes, new), key=lambda n: n.name)
    return replace(snapshot, fleet=Fleet(tuple(nodes)))


@MANY
@given(snapshots, new_nodes)
def test_one_more_free_node_costs_no_gang_its_start(snapshot: Snapshot, new: Node) -> None:
    before = calm(snapshot)
    assert vector(with_node(before, new)) >= vector(before)


@MANY
@given(snapshots, st.data())
def test_one_relaxed_level_costs_no_gang_its_start(snapshot: Snapshot, data: st.DataObject) -> None:
    before = calm(snapshot)
    easier = list(relaxed(before))
    assume(easier)
    assert vector(data.draw(st.sampled_from(easier))) >= vector(before)


def relaxed(snapshot: Snapshot) -> Iterator[Snapshot]:
    """One gang, or one group of its podsets, requests less: a coarser level, a preferred one, none; no slices."""
    for at, pending in enumerate(snapshot.pending):
        for workload in _easier(pending.workload):
            entries = list(snapshot.pending)
            entries[at] = replace(pending, workload=workload)
            yield replace(snapshot, pending=tuple(entries))


def _easier(workload: Workload) -> Iterator[Workload]:
    asked = {p.topology for p in workload.podsets if p.topology is not None}
    for topology in sorted(asked, key=repr):
        for less in _less(topology):
            podsets = tuple(_asking(p, topology, less) for p in workload.podsets)
            yield replace(workload, podsets=podsets)


def _less(topology: TopologyRequest) -> Iterator[TopologyRequest]:
    if topology.slices:
        yield replace(topology, slices=())
        yield replace(topology, slices=topology.slices[:-1])
    elif topology.mode is TopologyMode.REQUIRED:
        yield replace(topology, mode=TopologyMode.PREFERRED)
        if topology.level in UP:
            yield replace(topology, level=UP[topology.level])
        yield TopologyRequest(TopologyMode.UNCONSTRAINED)


def _asking(podset: PodSet, topology: TopologyRequest, less: TopologyRequest) -> PodSet:
    return replace(podset, topology=less) if podset.topology == topology else podset
