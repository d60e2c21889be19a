"""The snapshot as arrays: topology order, eligibility, free capacity, and use that is kept between cycles."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import (
    HOSTNAME,
    Effect,
    Fleet,
    Node,
    NodeRules,
    Requirement,
    SelectorTerm,
    Taint,
    Toleration,
)
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.state import open_state
from queuectl.planner.preempt.staying import staying_gangs
from queuectl.planner.problem.fleet import FleetIndex, grow, index_of
from queuectl.planner.problem.problem import caps, survey
from queuectl.planner.problem.usage import usage_of
from tests.planner import generate
from tests.planner.build import config, gang, holding, node, podset, queue, resources, world
from tests.support.examples import examples

# Topology.


def test_domains_are_numbered_in_natural_order_and_children_are_adjacent() -> None:
    nodes = [node(f"n{i}", f"b{i % 3}/r{i}") for i in (10, 2, 0, 5, 11)]
    tree = grow(nodes, ("block", "rack", HOSTNAME))
    assert tree.names[0] == (("b0",), ("b1",), ("b2",))
    assert tree.names[1] == (("b0", "r0"), ("b1", "r10"), ("b2", "r2"), ("b2", "r5"), ("b2", "r11"))
    assert [nodes[i].name for i in tree.order] == ["n0", "n10", "n2", "n5", "n11"]
    assert tree.sums(0, np.arange(5)).tolist() == [2, 0, 1 + 3 + 4]


def test_names_that_differ_in_leading_zeros_alone_are_different_domains() -> None:
    nodes = [node(f"n{i}", f"b/{rack}") for i, rack in enumerate(("r1", "r01", "r1", "r01"))]
    tree = grow(nodes, ("block", "rack"))
    assert tree.names[1] == (("b", "r01"), ("b", "r1"))
    assert tree.sums(1, np.arange(4)).tolist() == [1 + 3, 0 + 2]


def test_equal_names_under_different_parents_are_different_domains() -> None:
    tree = grow([node("x", "b0/r0"), node("y", "b1/r0")], ("block", "rack"))
    assert tree.names[1] == (("b0", "r0"), ("b1", "r0"))


def test_a_node_without_a_level_label_is_in_no_domain() -> None:
    bare = Node("bare", {"block": "b"}, resources(gpu=8))
    tree = grow([bare, node("n0", "b/r")], ("block", "rack", HOSTNAME))
    assert tree.domain[0].tolist() == [-1, 0]
    assert tree.order.tolist() == [1]
    assert tree.level_of(HOSTNAME) == tree.depth == 2
    assert tree.level_of("row") is None


# Eligibility: by class of nodes, with the same result as node by node.

keys = st.sampled_from(["a", "b", HOSTNAME])
values = st.sampled_from(["1", "2", "n0", "n1"])
requirements = st.builds(
    Requirement,
    keys,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    st.tuples(values),
    st.just(False),
) | st.builds(
    Requirement, st.just("metadata.name"), st.just("In"), st.tuples(values), st.just(True)
)
effects = st.sampled_from(list(Effect))
tolerations = st.builds(
    Toleration,
    st.sampled_from(["", "t", "u"]),
    st.sampled_from(["Equal", "Exists"]),
    st.sampled_from(["", "v"]),
    st.none() | effects,
)
rules = st.builds(
    NodeRules,
    st.lists(st.tuples(keys, values), max_size=2, unique_by=lambda kv: kv[0]).map(
        lambda pairs: tuple(sorted(pairs))
    ),
    st.none()
    | st.lists(
        st.builds(SelectorTerm, st.lists(requirements, max_size=2).map(tuple)), max_size=2
    ).map(tuple),
    st.lists(tolerations, max_size=2).map(tuple),
)
taints = st.builds(Taint, st.sampled_from(["t", "u"]), effects, st.sampled_from(["", "v"]))
fleets = st.lists(
    st.tuples(
        st.dictionaries(keys, values, max_size=3),
        st.lists(taints, max_size=2).map(tuple),
        st.booleans(),
    ),
    max_size=4,
).map(
    lambda rows: Fleet(
        tuple(
            Node(f"n{i}", labels, resources(gpu=1), marks, unschedulable=cordoned)
            for i, (labels, marks, cordoned) in enumerate(rows)
        )
    )
)


@settings(max_examples=examples(300), deadline=None)
@given(fleets, rules)
def test_masks_agree_with_the_domain_rule_for_every_node(fleet: Fleet, wanted: NodeRules) -> None:
    mask = FleetIndex(fleet).mask(wanted)
    assert mask.tolist() == [wanted.refusal(n) is None for n in fleet.nodes]


def test_keys_that_no_node_has_are_not_kept() -> None:
    index = FleetIndex(Fleet(tuple(node(f"n{number}", gpu=8) for number in range(100))))
    for job in range(20):
        selector = tuple((f"job-{job}-{number}", "x") for number in range(300))
        assert not index.mask(NodeRules(selector)).any()
    assert len(index._labels) <= len(index.nodes[0].labels)


def test_transient_conditions_do_not_count_for_what_can_ever_run() -> None:
    cordoned = replace(node("n0", gpu=8), unschedulable=True)
    tainted = replace(
        node("n1", gpu=8), taints=(Taint("node.kubernetes.io/not-ready", Effect.NO_EXECUTE),)
    )
    dedicated = replace(node("n2", gpu=8), taints=(Taint("dedicated", Effect.NO_SCHEDULE),))
    index = FleetIndex(Fleet((cordoned, tainted, dedicated)))
    assert index.mask(NodeRules()).tolist() == [False, False, False]
    assert index.lasting_mask(NodeRules()).tolist() == [True, True, False]


# Free capacity.


def test_two_views_of_free_capacity() -> None:
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    stays = holding(gang("s", podset(gpu=2)), {"n0": 1})
    goes = holding(gang("g", podset(count=2, gpu=3)), {"n0": 1, "n1": 1}, leaving=True)
    problem = survey(world(nodes, (), [stays, goes], other_pods={"n1": resources(gpu=1)}))
    column = problem.resources.index(GPU)
    assert problem.now[column].tolist() == [3, 4]
    assert problem.later[column].tolist() == [6, 7]


def test_pods_per_node_are_counted_like_any_resource() -> None:
    nodes = [node("n0", gpu=8, pods=2)]
    problem = survey(world(nodes, (), [holding(gang("r", podset(cpu=0)), {"n0": 1})]))
    shape = problem.shape(resources(pods=1, gpu=1), NodeRules())
    assert caps(problem.now, shape).tolist() == [1]


def test_an_overcommitted_node_fits_nothing_and_a_resource_without_supply_fits_nowhere() -> None:
    nodes = [node("n0", gpu=8), node("n1", gpu=2)]
    running = holding(gang("r", podset(count=2, gpu=4)), {"n1": 2})
    problem = survey(world(nodes, (), [running]))
    assert caps(problem.now, problem.shape(resources(gpu=1), NodeRules())).tolist() == [8, 0]
    assert caps(problem.now, problem.shape(Resources({"x/y": 1}), NodeRules())).tolist() == [0, 0]
    assert caps(problem.now, problem.shape(Resources(), NodeRules())).min() > 10**6


def test_counts_of_changed_nodes_equal_a_fresh_count() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    problem = survey(world(nodes, (), [holding(gang("r", podset(gpu=4)), {"n3": 1})]))
    state = open_state(problem)
    shape = problem.shape(resources(pods=1, gpu=3), NodeRules())
    assert state.caps(shape).tolist() == [2, 2, 2, 1]
    (running,) = list(state.evictable())
    state.evict(running)
    assert state.caps(shape).tolist() == [2, 2, 2, 1]  # it has not left yet
    assert caps(state.later.free, shape).tolist() == [2, 2, 2, 2]
    assert list(state.evictable()) == []


# Use that is kept between cycles.


@settings(max_examples=examples(100), deadline=None)
@given(generate.snapshots(tenants=6), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_kept_use_equals_a_fresh_count(snapshot: Snapshot, dropped, leaving) -> None:
    cache = PlannerCache()
    usage_of(snapshot, cache)
    changed = replace(
        snapshot,
        admitted=tuple(
            replace(g, leaving=not g.leaving) if i in leaving else g
            for i, g in enumerate(snapshot.admitted)
            if i not in dropped
        ),
    )
    nodes = [replace(n, allocatable=n.allocatable + n.allocatable) for n in snapshot.fleet.nodes]
    for later in (changed, replace(changed, fleet=Fleet(tuple(nodes)))):
        carried, fresh = usage_of(later, cache), usage_of(later, PlannerCache())
        assert (carried.free == fresh.free).all()
        assert (carried.later == fresh.later).all()
        assert (carried.leaving, carried.idle, carried.broken) == (
            fresh.leaving,
            fresh.idle,
            fresh.broken,
        )
        for ours, theirs in (
            (carried.quota_held, fresh.quota_held),
            (carried.quota_staying, fresh.quota_staying),
        ):
            assert {k: v for k, v in ours.items() if v} == {k: v for k, v in theirs.items() if v}


def test_the_sizes_of_gangs_follow_the_largest_node() -> None:
    running = holding(gang("r", podset(gpu=0, cpu=4)), {"n0": 1})
    cache, same, costs = PlannerCache(), config(queue()), list[float]()
    for cpus in (4, 4, 64):
        snapshot = world([node("n0", cpu=cpus)], (), [running])
        problem = survey(replace(snapshot, config=same), cache)
        costs.append(staying_gangs(problem).arrays.sizes.of_running(running).total)
    assert costs[0] == costs[1] > costs[2]


def test_the_same_running_gangs_are_counted_once_and_a_new_record_is_counted_again() -> None:
    running = tuple(holding(gang(f"r{i}", podset(gpu=4)), {f"n{i}": 1}) for i in range(2))
    snapshot = world([node(f"n{i}", gpu=8) for i in range(2)], (), running)
    cache = PlannerCache()
    known = usage_of(snapshot, cache)
    assert usage_of(replace(snapshot, admitted=(*snapshot.admitted,)), cache) is known
    idle = replace(running[1], idle_since=0.0)
    for again in (replace(running[1]), idle, replace(idle, leaving=True)):
        after = usage_of(replace(snapshot, admitted=(running[0], again)), cache)
        assert after.idle == ((again,) if again is idle else ())
        assert after.slots(again)[0].tolist() == [1]
        assert (after.free == known.free).all()


def test_a_fleet_is_indexed_once_and_its_index_is_freed_with_it() -> None:
    fleet = Fleet((node("n0", gpu=8),))
    cache = PlannerCache()
    assert index_of(fleet, cache) is index_of(fleet, cache)
    watch = weakref.ref(index_of(fleet, cache))
    del fleet
    gc.collect()
    assert watch() is None


def test_deleted_nodes_hold_nothing() -> None:
    running = holding(gang("r", podset(count=2, gpu=4)), {"n0": 1, "gone": 1})
    problem = survey(world([node("n0", gpu=8)], (), [running]))
    nodes, amounts = problem.use_of(running)
    assert nodes.tolist() == [0]
    assert amounts[problem.resources.index(GPU)].tolist() == [4]
    assert amounts[problem.resources.index(PODS)].tolist() == [1]
