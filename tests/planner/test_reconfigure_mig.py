"""Other MIG configurations of nodes as a fix: the fewest nodes, only where no gang loses its GPUs, and the gang starts then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.budgets import Budget, BudgetBalance, BudgetScope
from queuectl.domain.diagnosis import Relocate, Remedy, SuggestedFix, apply_all
from queuectl.domain.fleet import Fleet, Node, Toleration
from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.mig import (
    CONFIG,
    MigConfig,
    MigDevices,
    MigMode,
    MigPhase,
    MigPool,
    MigReconfiguration,
)
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.plan import Move
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    Defragment,
    FlavorQuotas,
    LabelSelector,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodShape,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from queuectl.mig import fixes
from queuectl.mig.configurations import ReconfigureMig, choices, geometry_of
from queuectl.mig.fixes import MigScope
from queuectl.mig.search import carried_out, plan_mig, plan_moves
from queuectl.planner import explain, plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, PLENTY, gang, holding, node, placed, podset, world
from tests.planner.relaxed import starts
from tests.support.examples import examples

diagnose = partial(explain.diagnose, reconfiguration=fixes)

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
PRODUCT = "NVIDIA-H100-80GB-HBM3"
WHOLE = MigConfig("all-disabled", (MigDevices(),))
CUT = MigConfig("all-1g.10gb", (MigDevices(None, (("1g.10gb", 7),)),))
BALANCED = MigConfig("all-balanced", (MigDevices(None, (("1g.10gb", 2), ("3g.40gb", 1))),))
HALF = MigConfig("half", (MigDevices((0,)), MigDevices((1,), (("1g.10gb", 7),))))
CONFIGS = (WHOLE, CUT, BALANCED)
RESOURCES = (GPU, SMALL, LARGE, PODS)


def gpus(name: str, where: str = "b/r", config: MigConfig = WHOLE, count: int = 2) -> Node:
    labels = {"nvidia.com/gpu.product": PRODUCT, "nvidia.com/mig.strategy": "mixed", "pool": "h100"}
    whole = node(name, where, labels={**labels, "nvidia.com/mig.config": WHOLE.name}, gpu=count)
    return next(
        (n for c, n in choices(whole, [MigPool((), (WHOLE, config))]) if c is config), whole
    )


def flavor(*configs: MigConfig) -> ResourceFlavor:
    return ResourceFlavor("default", (("pool", "h100"),), topology="gpus", mig_configs=configs)


def main(mode: Defragment = Defragment.OFF, **quota: int) -> ClusterQueue:
    names = {"gpu": GPU, "small": SMALL, "large": LARGE}
    nominal = dict.fromkeys(RESOURCES, PLENTY) | {names[k]: v for k, v in quota.items()}
    return ClusterQueue(
        "main",
        (ResourceGroup(RESOURCES, (FlavorQuotas("default", nominal),)),),
        within_cluster_queue=WithinClusterQueue.NEVER,
        namespace_selector=LabelSelector(),
        defragment=mode,
        defragment_budget=PLENTY,
    )


def asks(count: int, resource: str = SMALL, amount: int = 1, required: str | None = None) -> PodSet:
    topology = TopologyRequest(TopologyMode.REQUIRED, required) if required else None
    return PodSet("w", count, PodShape(Resources({resource: amount, PODS: 1})), topology)


def cluster(
    nodes: Sequence[Node],
    pending: Sequence[Workload | Pending],
    running: Sequence[Admitted] = (),
    queue: ClusterQueue | None = None,
    configs: Sequence[MigConfig] = CONFIGS,
    other_pods: dict[str, Resources] | None = None,
) -> Snapshot:
    return world(
        nodes, pending, running, queue or main(), flavors=[flavor(*configs)], other_pods=other_pods
    )


def found(snapshot: Snapshot) -> tuple[str, SuggestedFix] | None:
    """The answer, once it is checked: the gang starts, and each gang that starts without the fix does so with it."""
    decided = plan(snapshot)
    answer = plan_mig(snapshot, decided)
    if answer is not None:
        uid, fix = answer
        settled = carried_out(snapshot, decided)
        changed = apply_all(fix.changes, settled)
        after = plan(changed)
        assert uid in {admission.uid for admission in after.admitted}
        assert verify(changed, after) == ()
    return answer


def configured(snapshot: Snapshot) -> dict[str, str]:
    answer = found(snapshot)
    assert answer is not None
    (change,) = [c for c in answer[1].changes if isinstance(c, ReconfigureMig)]
    return dict(change.configs)


FOUR = [gpus(f"{rack}-{i}", rack) for rack in ("r1", "r2") for i in range(2)]


def test_one_free_node_is_cut_for_a_gang_that_asks_for_instances() -> None:
    snapshot = cluster(FOUR, [gang("w0", asks(14))])
    assert configured(snapshot) == {"r1-0": "all-1g.10gb"}
    (fix,) = (
        f for f in diagnose(snapshot, "w0").suggested_fixes if f.remedy is Remedy.RECONFIGURE_MIG
    )
    assert fix.message == "reconfigure MIG on 1 node: r1-0 to all-1g.10gb"
    assert fix.details == {"nodes": [{"node": "r1-0", "from": "all-disabled", "to": "all-1g.10gb"}]}
    assert fix.least


def test_two_nodes_of_one_rack_are_cut_for_a_gang_that_must_share_it() -> None:
    running = [holding(gang("a", asks(1, GPU, 2)), {"r1-0": 1})]
    snapshot = cluster(FOUR, [gang("w0", asks(28, required="rack"))], running)
    assert configured(snapshot) == {"r2-0": "all-1g.10gb", "r2-1": "all-1g.10gb"}


def test_instances_become_whole_gpus_for_a_gang_that_asks_for_these() -> None:
    nodes = [gpus("n1", config=CUT), gpus("n2", config=CUT)]
    assert configured(cluster(nodes, [gang("w0", asks(1, GPU, 2))])) == {"n1": "all-disabled"}


def test_of_two_configurations_that_are_enough_the_one_with_more_whole_gpus_is_chosen() -> None:
    snapshot = cluster(FOUR, [gang("w0", asks(7))], configs=(WHOLE, CUT, HALF))
    assert configured(snapshot) == {"r1-0": "half"}


def test_a_gang_of_several_profiles_gets_several_configurations() -> None:
    both = gang("w0", asks(18), replace(asks(4, LARGE), name="large"))
    configs = configured(cluster(FOUR, [both]))
    assert sorted(configs.values()) == ["all-1g.10gb", "all-balanced", "all-balanced"]


def test_the_nodes_of_gangs_that_start_now_are_left_alone() -> None:
    first, last = gang("w0", asks(14), queued_at=1.0), gang("w1", asks(1, GPU, 2), queued_at=2.0)
    assert configured(cluster(FOUR[:2], [first, last])) != {"r1-0": CUT.name, "r1-1": CUT.name}
    assert found(cluster(FOUR[:1], [first, last])) is None


def test_reserved_nodes_are_left_alone() -> None:
    waiting = gang("w0", asks(1, GPU, 2), queued_at=1.0)
    lease = CapacityLease(placed(waiting, {"r1-0": 1}), ("v",), NOW - 1, NOW + 600)
    victim = holding(gang("v", asks(1, GPU)), {"r1-0": 1}, leaving=True)
    waits = Pending(waiting, lease, excluded=frozenset({"r1-1"}))
    pending = [waits, Pending(gang("w1", asks(7), queued_at=2.0))]
    assert found(cluster(FOUR[:1], pending, [victim])) is None
    assert configured(cluster(FOUR[:2], pending, [victim])) == {"r1-1": "all-1g.10gb"}


def test_the_suggested_fix_names_the_quota_that_is_missing_besides() -> None:
    diagnosis = diagnose(cluster(FOUR, [gang("w0", asks(14))], queue=main(small=13)), "w0")
    (fix,) = [f for f in diagnosis.suggested_fixes if f.remedy is Remedy.RECONFIGURE_MIG]
    assert fix.message == (
        "reconfigure MIG on 1 node: r1-0 to all-1g.10gb, "
        f"and add 1 {SMALL} of flavor default to the nominal quota of ClusterQueue main"
    )


def test_quota_that_follows_the_nodes_changes_with_their_configuration() -> None:
    snapshot = cluster(FOUR, [gang("w0", asks(14))], queue=replace(main(), headroom=0.0))
    config = quota_from_nodes(snapshot.config, snapshot.fleet)
    assert config.cluster_queues["main"].groups[0].flavors[0].nominal[SMALL] == 0
    assert configured(replace(snapshot, config=config)) == {"r1-0": "all-1g.10gb"}


def test_gangs_without_gpus_get_no_reconfiguration() -> None:
    snapshot = cluster(FOUR[:1], [gang("w0", asks(200, PODS))])
    codes = {fix.remedy for fix in diagnose(snapshot, "w0").suggested_fixes}
    assert Remedy.RECONFIGURE_MIG not in codes


@pytest.mark.parametrize(
    "snapshot",
    [
        cluster(FOUR, [gang("w0", asks(14))], configs=()),
        cluster(FOUR[:1], [gang("w0", asks(15))]),
        cluster(FOUR, [gang("w0", asks(14))], queue=main(small=13)),
        cluster(FOUR[:1], [gang("w0", asks(1))], [holding(gang("a", asks(1, GPU)), {"r1-0": 1})]),
        cluster(FOUR[:1], [gang("w0", asks(1))], other_pods={"r1-0": Resources({GPU: 1})}),
        cluster([replace(FOUR[0], unschedulable=True)], [gang("w0", asks(1))]),
        cluster([replace(FOUR[0], ready=False)], [gang("w0", asks(1))]),
        cluster(
            FOUR[:2],
            [gang("w0", asks(1, GPU, 8), priority=1), gang("w1", asks(1))],
            [holding(gang("a", asks(2, GPU, 2)), {"r1-0": 1, "r1-1": 1})],
            replace(main(), strategy=QueueingStrategy.STRICT_FIFO),
        ),
    ],
    ids=[
        "no configuration is allowed",
        "more instances than all nodes have",
        "too little quota",
        "a running gang has GPUs",
        "an unmanaged pod has a GPU",
        "cordoned",
        "not ready",
        "behind the head of a StrictFIFO queue",
    ],
)
def test_no_reconfiguration_helps(snapshot: Snapshot) -> None:
    assert found(snapshot) is None


def of_user(snapshot: Snapshot) -> Snapshot:
    queue = replace(main(), max_per_user=((SMALL, 13),))
    pending = tuple(replace(p, workload=replace(p.workload, user="ann")) for p in snapshot.pending)
    config = replace(snapshot.config, cluster_queues={"main": queue})
    return replace(snapshot, config=config, pending=pending)


def of_namespace(snapshot: Snapshot) -> Snapshot:
    line = QuotaLimit(f"requests.{SMALL}", SMALL, 13, 0)
    return replace(snapshot, allowances={"team": (Allowance("quota", (line,)),)})


def of_budget(snapshot: Snapshot) -> Snapshot:
    rule = Budget("budget", BudgetScope.CLUSTER_QUEUE, "main", 0)
    month = rule.month(NOW)
    config = replace(snapshot.config, budgets={rule.name: rule})
    return replace(snapshot, config=config, budgets=(BudgetBalance(rule, month, 0, counted=NOW),))


@pytest.mark.parametrize("limited", [of_user, of_namespace, of_budget])
def test_no_node_is_reconfigured_for_a_gang_that_a_limit_keeps_out(
    limited: Callable[[Snapshot], Snapshot],
) -> None:
    snapshot = cluster(FOUR, [gang("w0", asks(14))])
    assert found(snapshot) is not None
    assert found(limited(snapshot)) is None


def test_pods_without_gpus_stay_on_the_node() -> None:
    pods = {"r1-0": Resources({PODS: 100})}
    assert configured(cluster(FOUR[:1], [gang("w0", asks(10))], other_pods=pods))
    assert found(cluster(FOUR[:1], [gang("w0", asks(11))], other_pods=pods)) is None


RUNNING = [
    holding(gang("a", asks(1, GPU), preemptible=True), {"r1-0": 1}),
    holding(gang("b", asks(1, GPU)), {"r1-1": 1}),
]


def test_gangs_migrate_off_a_node_where_their_queue_permits_it() -> None:
    snapshot = cluster(FOUR[:2], [gang("w0", asks(14))], RUNNING, main(Defragment.PLAN))
    answer = found(snapshot)
    assert answer is not None
    move, change = answer[1].changes
    assert isinstance(move, Relocate)
    assert isinstance(change, ReconfigureMig)
    (node_name,) = change.configs
    (place,) = move.places.values()
    assert {n for p in place.podsets for n, _ in p.nodes} == {"r1-0", "r1-1"} - {node_name}
    assert "after the migration of 1 gang" in answer[1].message


def test_gangs_stay_where_their_queue_does_not_permit_migrations() -> None:
    snapshot = cluster(FOUR[:2], [gang("w0", asks(14))], RUNNING, main(Defragment.OFF))
    assert found(snapshot) is None


def scoped(snapshot: Snapshot, **limits: Any) -> dict[str, str] | None:
    """The nodes that queuectl would change itself."""
    scope = MigScope(**{"gangs": frozenset({"w0"}), "nodes": ALL_NODES, "most": 4, **limits})
    answer = plan_mig(snapshot, plan(snapshot), scope=scope)
    if answer is None:
        return None
    (change,) = [c for c in answer[1].changes if isinstance(c, ReconfigureMig)]
    return dict(change.configs)


ALL_NODES = frozenset(node.name for node in FOUR)


def executing(snapshot: Snapshot) -> Snapshot:
    """Its flavors permit queuectl to change nodes."""
    flavors = snapshot.config.flavors.items()
    able = {n: replace(f, mig_reconfiguration=MigMode.EXECUTE) for n, f in flavors}
    return replace(snapshot, config=replace(snapshot.config, flavors=able))


def test_queuectl_changes_nodes_only_where_the_flavor_permits_it_and_within_its_limits() -> None:
    suggested = cluster(FOUR, [gang("w0", asks(20))])
    assert scoped(suggested) is None
    snapshot = executing(suggested)
    two = {"r1-0": "all-1g.10gb", "r1-1": "all-1g.10gb"}
    assert scoped(snapshot) == two
    assert scoped(snapshot, most=2) == two
    assert scoped(snapshot, most=1) is None
    assert scoped(snapshot, gangs=frozenset({"w1"})) is None
    others = frozenset({"r2-0", "r2-1"})
    assert scoped(snapshot, nodes=others) == dict.fromkeys(others, "all-1g.10gb")
    assert scoped(snapshot, nodes=frozenset({"r2-0"})) is None


@pytest.mark.parametrize(
    ("mode", "budget", "changes"),
    [(Defragment.EXECUTE, PLENTY, True), (Defragment.EXECUTE, 0, False), (Defragment.PLAN, PLENTY, False)],
)  # fmt: skip
def test_queuectl_migrates_gangs_itself_only_with_execute_and_within_the_budget(
    mode: Defragment, budget: int, *, changes: bool
) -> None:
    queue = replace(main(mode), defragment_budget=budget)
    snapshot = executing(cluster(FOUR[:2], [gang("w0", asks(14))], RUNNING, queue))
    assert (scoped(snapshot) is not None) is changes
    nodes = tuple(
        replace(n, unschedulable=True) if n.name == "r1-1" else n for n in snapshot.fleet.nodes
    )
    cordoned = replace(snapshot, fleet=Fleet(nodes))
    moves = plan_moves(cordoned, plan(cordoned), "w0", ("r1-1",))
    if not changes:
        assert moves is None or not moves
        return
    assert moves is not None
    assert [m.beneficiary for m in moves] == ["w0"]
    assert {n for m in moves for p in m.placement.podsets for n, _ in p.nodes} == {"r1-0"}


def changing(node: Node, uid: str, phase: MigPhase = MigPhase.EMPTYING) -> Node:
    """A node that is cordoned for a change to instances."""
    target = next(n for c, n in choices(node, [MigPool((), CONFIGS)]) if c is CUT)
    change = MigReconfiguration(geometry_of(node), geometry_of(target), uid, 2, NOW, phase, NOW)
    labels = {**node.labels, CONFIG: change.geometry.config}
    return replace(node, labels=labels, unschedulable=True, mig=change)


def moved(move: Move, name: str) -> Move:
    """The move of a gang of one pod to a node."""
    (podset,) = move.placement.podsets
    return replace(move, placement=Placement((replace(podset, nodes=((name, 1),)),)))


def test_moves_off_nodes_that_change_are_verified() -> None:
    nodes = [changing(FOUR[0], "w0"), changing(FOUR[1], "w0"), *FOUR[2:]]
    snapshot = cluster(nodes, [gang("w0", asks(28))], RUNNING[:1], main(Defragment.EXECUTE))
    decided = plan(snapshot)
    moves = plan_moves(snapshot, decided, "w0", ("r1-0", "r1-1"))
    assert moves is not None
    (move,) = moves
    wrong = {
        "": move,
        PlanRule.ELIGIBLE: moved(move, "r1-1"),
        PlanRule.MOVE: replace(move, beneficiary="w1"),
    }
    for rule, one in wrong.items():
        rules = {v.rule for v in verify(snapshot, replace(decided, moved=(one,)))}
        assert rules == ({rule} if rule else set())
    forbidden = cluster(nodes, [gang("w0", asks(28))], RUNNING[:1], main(Defragment.PLAN))
    rules = {v.rule for v in verify(forbidden, replace(decided, moved=moves))}
    assert rules == {PlanRule.MOVE}


def test_no_gang_starts_on_a_node_that_changes_whatever_taints_it_tolerates() -> None:
    podset_ = podset(count=1, gpu=1, tolerations=[Toleration(operator="Exists")])
    for phase in (MigPhase.EMPTYING, MigPhase.APPLYING, MigPhase.ROLLING_BACK):
        snapshot = cluster([changing(FOUR[0], "w0", phase)], [gang("g", podset_)])
        assert plan(snapshot).admitted == ()
    started = plan(cluster([FOUR[0]], [gang("g", podset_)]))
    rules = {v.rule for v in verify(snapshot, started)}
    assert rules == {PlanRule.ELIGIBLE}


def test_a_change_that_is_under_way_is_named_and_not_suggested_again() -> None:
    applying = changing(FOUR[0], "w0", MigPhase.APPLYING)
    snapshot = cluster([applying, *FOUR[1:]], [gang("w0", asks(14)), gang("w1", asks(14))])
    first, other = (diagnose(snapshot, uid) for uid in ("w0", "w1"))
    assert first.under_way == ("the MIG manager applies all-1g.10gb on node r1-0 for this gang",)
    assert Remedy.RECONFIGURE_MIG not in {fix.remedy for fix in first.suggested_fixes}
    assert other.under_way == ()
    assert Remedy.HEAL_NODES not in {fix.remedy for fix in other.suggested_fixes}


@pytest.mark.parametrize("why", ["it is rolled back", "a user has set another label"])
def test_a_change_that_no_longer_helps_its_gang_leaves_the_other_nodes_to_it(why: str) -> None:
    if why == "it is rolled back":
        lost = changing(FOUR[0], "w0", MigPhase.ROLLING_BACK)
    else:
        lost = changing(FOUR[0], "w0")
        lost = replace(lost, labels=dict(lost.labels) | {CONFIG: "other"})
    snapshot = cluster([lost, *FOUR[1:]], [gang("w0", asks(14))])
    named = configured(snapshot)
    assert named
    assert lost.name not in named


def test_no_gang_migrates_while_a_free_node_is_enough() -> None:
    nodes = [*FOUR[:2], gpus("z", "r9")]
    snapshot = cluster(nodes, [gang("w0", asks(14))], RUNNING, main(Defragment.PLAN))
    assert configured(snapshot) == {"z": "all-1g.10gb"}


def test_with_the_strategy_single_a_node_has_the_flavor_of_its_new_product() -> None:
    labels = {
        "nvidia.com/gpu.product": PRODUCT,
        "nvidia.com/mig.strategy": "single",
        "pool": "h100",
    }
    nodes = [node(f"n{i}", labels=labels, gpu=2) for i in range(2)]
    whole = ResourceFlavor("whole", (("nvidia.com/gpu.product", PRODUCT),), topology="gpus", mig_configs=(CUT,))  # fmt: skip
    cut = ResourceFlavor(
        "cut", (("nvidia.com/gpu.product", f"{PRODUCT}-MIG-1g.10gb"),), topology="gpus"
    )
    quotas = FlavorQuotas("cut", {GPU: 28, PODS: 100})
    queue = replace(main(), groups=(ResourceGroup((GPU, PODS), (quotas,)),))
    asking = [gang("w0", podset("w", 20, gpu=1))]
    snapshot = world(nodes, asking, [], queue, flavors=[whole, cut])
    assert configured(snapshot) == {"n0": "all-1g.10gb", "n1": "all-1g.10gb"}


# ---- against all reconfigurations of small fleets

_SHAPES = st.sampled_from([(SMALL, 1), (SMALL, 3), (LARGE, 1), (GPU, 1), (GPU, 2)])


@st.composite
def fleets(draw: st.DrawFn, items: int = 1) -> Snapshot:
    """Up to four nodes in two racks, some of them in use, and two pending gangs; no queue permits migrations."""
    nodes, running = [], []
    for i in range(draw(st.integers(1, 4))):
        config = draw(st.sampled_from(CONFIGS))
        made = gpus(f"n{i}", draw(st.sampled_from(("r1", "r2"))), config, draw(st.integers(1, 2)))
        nodes.append(made)
        if draw(st.integers(0, 3)) == 0:
            resource = next(r for r in (GPU, SMALL, LARGE) if r in made.allocatable)
            running.append(holding(gang(f"r{i}", asks(1, resource)), {made.name: 1}))
    pending = []
    for number in range(2):
        level = draw(st.sampled_from([None, None, "rack", "kubernetes.io/hostname"]))
        podsets = [
            replace(asks(draw(st.integers(1, 9)), *draw(_SHAPES), level), name=f"p{at}")
            for at in range(draw(st.integers(1, items)))
        ]
        pending.append(gang(f"w{number}", *podsets, queued_at=float(number)))
    return cluster(nodes, pending, running)


def fewest(snapshot: Snapshot, uid: str) -> int | None:
    """By trial: the fewest nodes with free GPUs that let the gang start under some of their configurations."""
    settled = carried_out(snapshot, plan(snapshot))
    used = {n for g in settled.admitted for p in g.placement.podsets for n, _ in p.nodes}
    pools = settled.config.mig_pools
    options = {
        n.name: [c.name for c, _ in choices(n, pools)]
        for n in settled.fleet.nodes
        if n.name not in used
    }
    for size in range(1, len(options) + 1):
        for names in combinations(options, size):
            for configs in product(*(options[name] for name in names)):
                change = ReconfigureMig(dict(zip(names, configs, strict=True)))
                if starts(change.apply(settled), uid):
                    return size
    return None


@settings(deadline=None, max_examples=examples(60))
@given(fleets())
def test_no_trial_of_all_reconfigurations_finds_fewer_nodes(snapshot: Snapshot) -> None:
    answer = found(snapshot)
    started = {admission.uid for admission in plan(snapshot).admitted}
    for pending in snapshot.pending:
        uid = pending.workload.uid
        if answer is not None and answer[0] == uid:
            (change,) = answer[1].changes
            assert isinstance(change, ReconfigureMig)
            assert len(change.configs) == fewest(snapshot, uid)
            return
        if uid not in started:
            assert fewest(snapshot, uid) is None


@settings(deadline=None, max_examples=examples(60))
@given(fleets(items=2))
def test_a_gang_of_several_profiles_starts_on_the_nodes_that_are_found(snapshot: Snapshot) -> None:
    answer = found(snapshot)
    if answer is not None and answer[1].least:
        (change,) = answer[1].changes
        assert isinstance(change, ReconfigureMig)
        assert len(change.configs) == fewest(snapshot, answer[0])
