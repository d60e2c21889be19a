"""Plans whose cycle has reached the limit of its searches: what the gangs that are not searched for keep, and which of them start."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from queuectl.domain.plan import Plan
from queuectl.domain.queues import Fungibility, QueueingStrategy, WhenCan
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, queue, world
from tests.planner.splits import A, B
from tests.planner.test_provisioning import awaits, checked, made_for

SPENDER = gang("spender", podset(gpu=8, select={"rack": "s"}), priority=9, queue="spends")
"""It evicts a gang of its ClusterQueue, and uses up the limit with that."""
SPENT = holding(gang("spent", podset(gpu=8), queue="spends"), {"s0": 1})
LIMIT = SolverLimits(search_steps=1)


def put_off(snapshot: Snapshot, uid: str, most: int = 600) -> Plan:
    """The first plan, one each second, that reaches the limit before a gang."""
    for second in range(most):
        limited = replace(snapshot, now=snapshot.now + second, limits=LIMIT)
        made = plan(limited)
        assert verify(limited, made) == ()
        if any(r.uid == uid and r.reasons[0].code is Code.PENDING_EVALUATION for r in made.pending):
            return made
    raise AssertionError(f"{uid} is always searched for")


def test_a_strict_head_that_is_not_searched_for_keeps_its_quota_from_borrowers() -> None:
    strict = queue("mine", strategy=QueueingStrategy.STRICT_FIFO, gpu=16)
    theirs = queue("theirs", gpu=0)
    low = holding(gang("low", podset(gpu=8), queue="mine"), {"n0": 1})
    head = gang("head", podset("main", 2, gpu=8), priority=5, queue="mine")
    borrower = gang("borrower", podset(gpu=8), queue="theirs")
    snapshot = world(
        [node("s0", "s", gpu=8), node("n0", "r", gpu=8), node("free", "r", gpu=8)],
        [SPENDER, head, borrower],
        [SPENT, low],
        queue("spends"),
        *(replace(one, cohort="all") for one in (strict, theirs)),
    )
    made = put_off(snapshot, "head")
    assert made.admitted == ()
    assert {p.preemptor for p in made.preempted} == {"spender"}


def test_a_gang_that_is_not_searched_for_starts_where_it_fits() -> None:
    """It prefers to evict a gang on its first flavor, if there is time to find one."""
    victim = holding(gang("victim", podset(gpu=8), queue="two"), {"a0": 1})
    waits = gang("waits", podset(gpu=8), priority=5, queue="two")
    rule = Fungibility(when_can_preempt=WhenCan.MAY_STOP_SEARCH)
    two = replace(queue("two", flavors=("a", "b")), fungibility=rule)
    nodes = [
        node("s0", "s", gpu=8, labels={"model": "a"}),
        node("a0", "r", gpu=8, labels={"model": "a"}),
        node("b0", "r", gpu=8, labels={"model": "b"}),
    ]
    spends = queue("spends", flavors=("a",))
    snapshot = world(nodes, [SPENDER, waits], [SPENT, victim], spends, two, flavors=[A, B])
    assert [p.preemptor for p in plan(snapshot).preempted] == ["spender", "waits"]
    started = 0
    for second in range(20):
        made = plan(replace(snapshot, now=snapshot.now + second, limits=LIMIT))
        evicts = any(p.preemptor == "waits" for p in made.preempted)
        starts = [a.placement.podsets[0].nodes for a in made.admitted if a.uid == "waits"]
        assert evicts or starts == [(("b0", 1),)]
        started += bool(starts)
    assert started


def test_a_gang_whose_nodes_are_made_keeps_its_quota_if_it_is_not_searched_for() -> None:
    high = gang("high", podset(count=2, gpu=8, select={"rack": "r"}), priority=5)
    low = holding(gang("low", podset(gpu=8)), {"n0": 1})
    nodes = [node("s0", "s", gpu=8), node("n0", "r", gpu=8), node("n1", "r", gpu=8)]
    main = queue(gpu=40)
    gangs: list[Workload | Pending] = [SPENDER, made_for(high, main)]
    snapshot = checked(world(nodes, gangs, [SPENT, low], queue("spends"), main))
    queues = {**snapshot.config.cluster_queues, "spends": queue("spends")}  # without the check
    snapshot = replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))
    kept = 0
    for second in range(20):
        limited = replace(snapshot, now=snapshot.now + second, limits=LIMIT)
        made = plan(limited)
        assert verify(limited, made) == ()
        evicts = any(one.preemptor == "high" for one in made.preempted)
        assert evicts or awaits(made) == ["high"]
        kept += not evicts
    assert kept


def test_a_gang_behind_one_that_uses_up_the_limit_in_each_cycle_is_searched_for() -> None:
    """Both are of one ClusterQueue, and the first one is considered first in each cycle."""
    behind = gang("behind", podset(gpu=8, select={"rack": "r"}), priority=5, queue="spends")
    low = holding(gang("low", podset(gpu=8), queue="spends"), {"n0": 1})
    nodes = [node("s0", "s", gpu=8), node("n0", "r", gpu=8)]
    snapshot = world(nodes, [SPENDER, behind], [SPENT, low], queue("spends"))
    put_off(snapshot, "behind")
    for second in count():
        made = plan(replace(snapshot, now=snapshot.now + second, limits=LIMIT))
        if any(p.preemptor == "behind" for p in made.preempted):
            break
        assert second < 600


def test_each_gang_that_has_lost_a_node_is_placed_again_however_much_the_others_cost() -> None:
    """Each of them needs a gang of its own rack to leave."""
    racks = range(4)
    broken = [
        holding(
            gang(f"broken{i}", podset(count=2, gpu=8, required="rack"), priority=5),
            {f"keeps{i}": 1, f"lost{i}": 1},
            lost=(("w", f"lost{i}", 1),),
        )
        for i in racks
    ]
    low = [holding(gang(f"low{i}", podset(gpu=8)), {f"n{i}": 1}) for i in racks]
    nodes = [node(f"{name}{i}", f"r{i}", gpu=8) for i in racks for name in ("keeps", "n")]
    nodes += [node(f"lost{i}", f"r{i}", gpu=8, ready=False) for i in racks]
    snapshot = replace(world(nodes, [], [*broken, *low]), limits=LIMIT)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert {p.preemptor for p in made.preempted} == {f"broken{i}" for i in racks}
