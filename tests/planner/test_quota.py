"""Flavors and nominal quotas: which flavor is charged, which gangs are refused, and the text of the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.fleet import (
    HOSTNAME,
    Effect,
    Fleet,
    NodeRules,
    Requirement,
    SelectorTerm,
    Taint,
    Toleration,
)
from queuectl.domain.plan import Plan, Refusal
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import (
    FlavorQuotas,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet, PodShape, TopologyMode, TopologyRequest
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, queue, without_quota, world


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def refusal(made: Plan) -> Refusal:
    (only,) = made.pending
    return only


def flavors_of(made: Plan, uid: str) -> list[str]:
    """GPU flavor per podset."""
    (admission,) = [a for a in made.admitted if a.uid == uid]
    return [p.flavors[GPU] for p in admission.placement.podsets]


def models(*names: str, topology: str | None = "gpus") -> list[ResourceFlavor]:
    return [ResourceFlavor(m, (("model", m),), topology=topology) for m in names]


def rack_of(model: str, count: int = 1):
    return [node(f"{model}{i}", model, gpu=8, labels={"model": model}) for i in range(count)]


# Nominal quota.


def test_a_request_beyond_the_whole_quota_never_fits() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    made = planned(world(nodes, [gang("g", podset(count=3, gpu=8))], (), queue(gpu=16)))
    reason = refusal(made).reasons[0]
    assert reason.code is Code.EXCEEDS_MAX_QUOTA
    assert reason.details["quota"] == [
        {"flavor": "default", "resource": GPU, "needs": 24, "nominal": 16}
    ]


def test_a_gang_waits_for_quota_in_use() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    running = holding(gang("r", podset(gpu=8)), {"n0": 1})
    made = planned(world(nodes, [gang("g", podset(count=2, gpu=8))], [running], queue(gpu=16)))
    reason = refusal(made).reasons[0]
    assert reason.code is Code.WAITING_FOR_QUOTA
    assert reason.details["quota"] == [
        {"flavor": "default", "resource": GPU, "needs": 16, "used": 8, "nominal": 16}
    ]


def test_leaving_gangs_are_charged_until_they_left() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    leaving = holding(gang("r", podset(gpu=8)), {"n0": 1}, leaving=True)
    snapshot = world(
        nodes, [gang("g", podset(gpu=8))], [leaving], queue(gpu=8, within=WithinClusterQueue.NEVER)
    )
    assert refusal(planned(snapshot)).reasons[0].code is Code.WAITING_FOR_QUOTA
    assert planned(replace(snapshot, admitted=())).admitted


def test_gangs_kept_in_the_same_plan_are_charged() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    gangs = [gang(f"g{i}", podset(gpu=8), queued_at=float(i)) for i in range(3)]
    made = planned(world(nodes, gangs, (), queue(gpu=16)))
    assert [a.uid for a in made.admitted] == ["g0", "g1"]


def test_quota_of_one_queue_is_not_that_of_another() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    gangs = [gang("a", podset(gpu=8), queue="one"), gang("b", podset(gpu=8), queue="two")]
    made = planned(world(nodes, gangs, (), queue("one", gpu=8), queue("two", gpu=8)))
    assert [a.uid for a in made.admitted] == ["a", "b"]


def test_pods_can_be_a_covered_resource() -> None:
    nodes = [node("n0", gpu=8)]
    gangs = [gang("three", podset(count=3, gpu=1)), gang("two", podset(count=2, gpu=1))]
    made = planned(world(nodes, gangs, (), queue(pods=2)))
    assert [a.uid for a in made.admitted] == ["two"]
    assert refusal(made).reasons[0].details["quota"][0]["resource"] == PODS


def test_a_resource_without_a_resource_group_is_named() -> None:
    shape = PodShape(Resources({GPU: 1, PODS: 1, "example.com/nic": 1}))
    made = planned(world([node("n0", gpu=8)], [gang("g", PodSet("w", 1, shape))]))
    reason = refusal(made).reasons[0]
    assert reason.code is Code.NO_MATCHING_FLAVOR
    assert reason.details["uncovered"] == ["example.com/nic"]
    assert "example.com/nic" in reason.message


# Flavors.


def test_flavors_are_tried_in_order_of_preference() -> None:
    nodes = [*rack_of("a"), *rack_of("b")]
    gangs = [gang(f"g{i}", podset(gpu=8), queued_at=float(i)) for i in range(3)]
    main = queue(flavors=("b", "a"))
    made = planned(world(nodes, gangs, (), main, flavors=models("a", "b")))
    assert flavors_of(made, "g0") == ["b"]
    assert flavors_of(made, "g1") == ["a"]
    assert [r.uid for r in made.pending] == ["g2"]


def test_quota_and_topology_choose_the_flavor_together() -> None:
    """The preferred flavor has the quota but no rack that large; the other has both."""
    nodes = [node(f"a{i}", f"a{i}", gpu=8, labels={"model": "a"}) for i in range(4)]
    nodes += rack_of("b", 2)
    workload = gang("g", podset(count=2, gpu=8, required="rack"))
    main = queue(flavors=("a", "b"))
    made = planned(world(nodes, [workload], (), main, flavors=models("a", "b")))
    assert flavors_of(made, "g") == ["b"]


def test_each_podset_has_its_own_flavor_but_a_group_shares_one() -> None:
    nodes = [*rack_of("a"), *rack_of("b")]
    main = queue(flavors=("a", "b"))
    apart = gang("g", podset("x", 1, gpu=8), podset("y", 1, gpu=8))
    made = planned(world(nodes, [apart], (), main, flavors=models("a", "b")))
    assert flavors_of(made, "g") == ["a", "b"]
    together = gang("g", podset("x", 1, gpu=8, group="g"), podset("y", 1, gpu=8, group="g"))
    made = planned(world(nodes, [together], (), main, flavors=models("a", "b")))
    assert refusal(made).reasons[0].code is Code.SHAPE_NEVER_FITS


def test_groups_of_resources_choose_their_flavors_independently() -> None:
    gpus = ResourceGroup((GPU,), (FlavorQuotas("gpu", {GPU: 8}),))
    cpus = ResourceGroup(("cpu", PODS), (FlavorQuotas("cpu", {"cpu": 8, PODS: 9}),))
    main = replace(queue(), groups=(gpus, cpus))
    flavors = [ResourceFlavor("gpu", topology="gpus"), ResourceFlavor("cpu")]
    made = planned(
        world(
            [node("n0", gpu=8, cpu=8)], [gang("g", podset(gpu=1, cpu=1))], (), main, flavors=flavors
        )
    )
    (placed,) = made.admitted[0].placement.podsets
    assert placed.flavors == {GPU: "gpu", "cpu": "cpu", PODS: "cpu"}
    assert placed.nodes == (("n0", 1),)


TAINT = Taint("dedicated", Effect.NO_SCHEDULE, "ml")
TOLERATES = Toleration("dedicated", "Equal", "ml")


@pytest.mark.parametrize(
    ("flavor", "pod", "starts"),
    [
        (ResourceFlavor("default", topology="gpus"), podset(gpu=1), False),
        (ResourceFlavor("default", topology="gpus"), podset(gpu=1, tolerations=[TOLERATES]), True),
        (
            ResourceFlavor("default", tolerations=(TOLERATES,), topology="gpus"),
            podset(gpu=1),
            True,
        ),
        (
            ResourceFlavor("default", node_taints=(TAINT,), topology="gpus"),
            podset(gpu=1),
            False,
        ),
        (
            ResourceFlavor("default", node_taints=(TAINT,), topology="gpus"),
            podset(gpu=1, tolerations=[TOLERATES]),
            True,
        ),
        (
            ResourceFlavor(
                "default", node_taints=(TAINT,), tolerations=(TOLERATES,), topology="gpus"
            ),
            podset(gpu=1),
            True,
        ),
    ],
    ids=["node", "pod", "flavor", "flavor taint", "flavor taint, pod", "flavor taint and flavor"],
)
def test_taints_are_tolerated_by_pod_or_flavor(flavor, pod, starts: bool) -> None:
    nodes = [node("n0", gpu=8, taints=[TAINT])]
    made = planned(world(nodes, [gang("g", pod)], flavors=[flavor]))
    assert bool(made.admitted) == starts


@pytest.mark.parametrize(
    ("operator", "starts"),
    {"": True, "Equal": True, "Exists": True, "Gt": False, "Lt": False}.items(),
)
def test_only_some_operators_tolerate_a_taint_with_the_same_value(
    operator: str, starts: bool
) -> None:
    flavor = ResourceFlavor("default", topology="gpus")
    flavor = replace(flavor, tolerations=(replace(TOLERATES, operator=operator),))
    nodes = [node("n0", gpu=8, taints=[TAINT])]
    made = planned(world(nodes, [gang("g", podset(gpu=1))], flavors=[flavor]))
    assert bool(made.admitted) == starts


def affine(*terms: tuple[Requirement, ...]) -> PodSet:
    rules = NodeRules((), tuple(SelectorTerm(t) for t in terms))
    return PodSet("w", 1, PodShape(Resources({GPU: 1, PODS: 1}), rules))


@pytest.mark.parametrize(
    ("pod", "where"),
    [
        (podset(gpu=1, select={"model": "b"}), "b0"),
        (podset(gpu=1, select={"model": "c"}), None),
        (affine((Requirement("model", "In", ("b", "c")),)), "b0"),
        (affine((Requirement("model", "NotIn", ("a",)),)), "b0"),
        (affine((Requirement("model", "Exists"), Requirement("gen", "Gt", ("3",)))), "b0"),
        (affine((Requirement("gen", "Gt", ("9" * 5000,)),)), None),
        (affine((Requirement("gen", "Gt", ("0_1",)),)), None),
        (affine((Requirement("gen", "Lt", ("1",)),), (Requirement("model", "In", ("b",)),)), "b0"),
        (affine((Requirement("metadata.name", "In", ("b0",), field=True),)), "b0"),
        (affine((Requirement("model", "DoesNotExist"),)), None),
    ],
    ids=[
        "selector",
        "no such",
        "In",
        "NotIn",
        "Exists and Gt",
        "too many digits",
        "no integer",
        "either term",
        "name",
        "absent",
    ],
)
def test_selectors_and_affinity_decide_the_node(pod: PodSet, where: str | None) -> None:
    nodes = [
        node("a0", "a", gpu=4, labels={"model": "a", "gen": "3"}),
        node("b0", "b", gpu=8, labels={"model": "b", "gen": "4"}),
    ]
    for main, flavors in (
        (queue(), None),
        (queue(flavors=("a", "b")), models("a", "b")),
    ):
        made = planned(world(nodes, [gang("g", pod)], (), main, flavors=flavors))
        started = [n for a in made.admitted for n, _ in a.placement.podsets[0].nodes]
        assert started == ([where] if where else [])


def test_a_contradicted_flavor_is_explained() -> None:
    workload = gang("g", podset(gpu=1, select={"model": "z"}))
    main = queue(flavors=("a", "b"))
    made = planned(world(rack_of("a"), [workload], (), main, flavors=models("a", "b")))
    reason = refusal(made).reasons[0]
    assert reason.code is Code.NO_MATCHING_FLAVOR
    assert reason.details["flavors"] == {
        "a": "node selector model=z does not match",
        "b": "node selector model=z does not match",
    }


def test_unready_and_excluded_nodes_take_no_pods() -> None:
    nodes = [node("n0", gpu=8, ready=False), node("n1", gpu=8), node("n2", gpu=8)]
    entry = Pending(gang("g", podset(gpu=8)), excluded=frozenset({"n1"}))
    made = planned(world(nodes, [entry]))
    assert made.admitted[0].placement.podsets[0].nodes == (("n2", 1),)


# Quota only.


def test_a_flavor_without_topology_is_quota_only() -> None:
    flavors = [ResourceFlavor("default")]
    workload = gang("g", podset(count=3, gpu=8))
    made = planned(world([node("n0", gpu=1)], [workload], (), queue(gpu=24), flavors=flavors))
    (placed,) = made.admitted[0].placement.podsets
    assert placed.nodes == ()
    assert placed.flavors[GPU] == "default"


def test_a_required_level_needs_a_flavor_with_that_topology() -> None:
    flavors = [ResourceFlavor("flat"), ResourceFlavor("default", topology="gpus")]
    workload = gang("g", podset(gpu=8, required="rack"))
    main = queue(flavors=("flat", "default"))
    made = planned(world([node("n0", gpu=8)], [workload], (), main, flavors=flavors))
    assert flavors_of(made, "g") == ["default"]
    unknown = gang("g", podset(gpu=8, required="row"))
    made = planned(world([node("n0", gpu=8)], [unknown], (), main, flavors=flavors))
    assert "no level row" in refusal(made).reasons[0].message


def test_without_nodes_everything_is_quota_only() -> None:
    gangs = [gang(f"g{i}", podset(gpu=8, required="rack"), queued_at=float(i)) for i in range(3)]
    made = planned(world([], gangs, (), queue(gpu=16)))
    assert [a.uid for a in made.admitted] == ["g0", "g1"]
    assert all(p.nodes == () for a in made.admitted for p in a.placement.podsets)


def test_quota_only_gangs_that_run_are_charged() -> None:
    running = holding(gang("r", podset(gpu=8)), {})
    made = planned(world([], [gang("g", podset(gpu=8))], [running], queue(gpu=8)))
    assert refusal(made).reasons[0].code is Code.WAITING_FOR_QUOTA


def test_without_a_queue_no_quota_counts_and_any_node_is_eligible() -> None:
    nodes = [node("n0", "a", gpu=8), node("n1", "b", gpu=8)]
    snapshot = world(nodes, [without_quota(gang("g", podset(count=2, gpu=8)))], (), queue(gpu=0))
    assert planned(snapshot).admitted[0].placement.podsets[0].flavors == {}


@pytest.mark.parametrize("level", ["rack", "row"])
def test_without_a_queue_the_level_can_be_of_any_topology_or_of_none(level: str) -> None:
    nodes = [node(f"n{i}", f"r{i % 2}", gpu=8, labels={"row": f"w{i % 2}"}) for i in range(4)]
    request = TopologyRequest(TopologyMode.REQUIRED, level)
    pods = replace(podset(count=2, gpu=8), topology=request)
    snapshot = world(nodes, [without_quota(gang("g", pods))])
    config = replace(
        snapshot.config,
        topologies={"x": Topology("x", ("zone", HOSTNAME)), **snapshot.config.topologies},
    )
    made = planned(replace(snapshot, config=config))
    used = {int(n[1:]) % 2 for n, _ in made.admitted[0].placement.podsets[0].nodes}
    assert len(used) == 1


def test_fleet_and_configuration_are_distinguished_by_identity() -> None:
    """A second snapshot with another fleet or configuration is not answered from the first one's cache."""
    snapshot = world([node("n0", gpu=8)], [gang("g", podset(gpu=8))], (), queue(gpu=8))
    assert planned(snapshot).admitted
    poorer = replace(snapshot.config, cluster_queues={"main": queue(gpu=4)})
    assert not planned(replace(snapshot, config=poorer)).admitted
    smaller = Fleet((node("n0", gpu=4),))
    assert not planned(replace(snapshot, fleet=smaller)).admitted
