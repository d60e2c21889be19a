"""Queue order: which gang is considered first, which gangs a StrictFIFO queue holds back, and the cost of a long queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.checks import EXTERNAL, AdmissionCheck, CheckRule
from queuectl.domain.plan import Admission, Plan, Proof
from queuectl.domain.queues import LocalQueue, QueueingStrategy, ResourceFlavor, StopPolicy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot, SolverLimits
from queuectl.planner import plan
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, world

STRICT = QueueingStrategy.STRICT_FIFO


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def started(made: Plan) -> list[str]:
    return [a.uid for a in made.admitted]


def codes(made: Plan) -> dict[str, Code]:
    return {r.uid: r.reasons[0].code for r in made.pending}


def whole(uid: str, nodes: int, **kwargs):
    return gang(uid, podset(count=nodes, gpu=8), **kwargs)


def test_priority_then_time_then_uid_decide() -> None:
    gangs = [
        whole("late", 1, queued_at=2.0),
        whole("b", 1, queued_at=1.0),
        whole("a", 1, queued_at=1.0),
        whole("high", 1, queued_at=9.0, priority=5),
    ]
    made = planned(world([node("n0", gpu=8), node("n1", gpu=8)], gangs))
    assert started(made) == ["high", "a"]
    assert [r.uid for r in made.pending] == ["b", "late"]


def test_best_effort_passes_a_gang_that_cannot_start() -> None:
    gangs = [whole("large", 2, queued_at=1.0), whole("small", 1, queued_at=2.0)]
    busy = holding(whole("r", 1), {"n1": 1})
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    assert started(planned(world(nodes, gangs, [busy]))) == ["small"]


def test_strict_fifo_waits_and_names_the_head() -> None:
    gangs = [whole("large", 2, queued_at=1.0), whole("small", 1, queued_at=2.0)]
    busy = holding(whole("r", 1), {"n1": 1})
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    made = planned(world(nodes, gangs, [busy], queue(strategy=STRICT)))
    assert started(made) == []
    assert codes(made) == {
        "large": Code.TOPOLOGY_PLACEMENT_FAILED,
        "small": Code.WAITING_IN_ORDER,
    }
    assert "team/large" in made.pending[1].reasons[0].message


@pytest.mark.parametrize(
    ("strategy", "starts"), [(STRICT, []), (QueueingStrategy.BEST_EFFORT_FIFO, ["later"])]
)
def test_a_preempted_gang_that_is_leaving_keeps_its_place_in_a_strict_queue(
    strategy: QueueingStrategy, starts: list[str]
) -> None:
    evicted = holding(whole("victim", 1, queued_at=1.0), {"n1": 1}, leaving=True)
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    later = whole("later", 1, queued_at=2.0)
    seen = world(nodes, [later], [replace(evicted, returns=True)], queue(strategy=strategy))
    assert started(planned(seen)) == starts


GONE = Reason(Code.WAITING_FOR_PODS, "its controller has not created the pod of index 0")


@pytest.mark.parametrize(
    ("strategy", "by", "flavor", "at", "starts"),
    [
        pytest.param(STRICT, NOW + 1, "a", 2.0, [], id="its place is kept"),
        pytest.param(STRICT, NOW, "a", 2.0, ["other"], id="the time is over"),
        pytest.param(STRICT, None, "a", 2.0, ["other"], id="it has never started"),
        pytest.param(STRICT, NOW + 1, "b", 2.0, ["other"], id="another flavor"),
        pytest.param(STRICT, NOW + 1, "a", 0.0, ["other"], id="an earlier gang"),
        pytest.param(
            QueueingStrategy.BEST_EFFORT_FIFO, NOW + 1, "a", 2.0, ["other"], id="not strict"
        ),
    ],
)
def test_a_gang_whose_pods_are_to_be_created_again_keeps_its_place_in_a_strict_queue(
    strategy: QueueingStrategy, by: float | None, flavor: str, at: float, starts: list[str]
) -> None:
    flavors = [ResourceFlavor(name, (("pool", name),), topology="gpus") for name in "ab"]
    nodes = [node(f"n{name}", gpu=8, labels={"pool": name}) for name in "ab"]
    first = gang("gone", podset(gpu=8, count=1, select={"pool": "a"}), queued_at=1.0)
    other = gang("other", podset(gpu=8, count=1, select={"pool": flavor}), queued_at=at)
    main = queue(strategy=strategy, flavors=("a", "b"))
    gangs = [Pending(first, blocked=GONE, returns_by=by), Pending(other)]
    snapshot = world(nodes, gangs, (), main, flavors=flavors)
    made = planned(snapshot)
    assert started(made) == starts
    assert codes(made)["gone"] is Code.WAITING_FOR_PODS
    kept = by is not None and by > NOW
    assert next_plan_due(snapshot, made) == (by if kept else None)


def test_a_gang_that_keeps_its_place_holds_back_no_earlier_one_while_a_later_one_has_no_pods() -> (
    None
):
    gangs = [
        Pending(whole("first", 1, queued_at=1.0)),
        Pending(whole("gone", 1, queued_at=2.0), blocked=GONE, returns_by=NOW + 1),
        Pending(whole("later", 1, queued_at=3.0), blocked=GONE),
    ]
    snapshot = world([node("n0", gpu=8)], gangs, (), queue(strategy=STRICT))
    assert started(planned(snapshot)) == ["first"]


def test_the_verifier_names_a_gang_that_passes_one_whose_pods_are_to_be_created_again() -> None:
    nodes = [node("n0", gpu=8)]
    gangs = [
        Pending(whole("gone", 1, queued_at=1.0), blocked=GONE),
        Pending(whole("other", 1, queued_at=2.0)),
    ]
    passed = planned(world(nodes, gangs, (), queue(strategy=STRICT)))
    gangs[0] = replace(gangs[0], returns_by=NOW + 1)
    found = verify(world(nodes, gangs, (), queue(strategy=STRICT)), passed)
    assert [(v.rule, v.subject) for v in found] == [(PlanRule.ORDER, "other")]


def test_strict_fifo_holds_back_only_its_own_queue() -> None:
    gangs = [
        whole("large", 2, queued_at=1.0),
        replace(whole("other", 1, queued_at=2.0), queue="free"),
    ]
    busy = holding(whole("r", 1), {"n1": 1})
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    snapshot = world(nodes, gangs, [busy], queue(strategy=STRICT), queue("free"))
    assert started(planned(snapshot)) == ["other"]


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (podset(count=3, gpu=8), Code.SHAPE_NEVER_FITS),
        (podset(count=1, gpu=9), Code.SHAPE_NEVER_FITS),
        (podset(count=1, gpu=8, select={"no": "where"}), Code.SHAPE_NEVER_FITS),
    ],
    ids=["too many", "too large", "nowhere"],
)
def test_a_head_that_never_fits_holds_no_gang_back(head, code: Code) -> None:
    """It could not have used the capacity that the others take."""
    gangs = [gang("never", head, queued_at=1.0), whole("small", 1, queued_at=2.0)]
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    made = planned(world(nodes, gangs, (), queue(strategy=STRICT)))
    assert started(made) == ["small"]
    assert codes(made) == {"never": code}


def test_a_blocked_gang_holds_no_place_in_a_strict_queue() -> None:
    held = Pending(whole("held", 1, queued_at=1.0), blocked=Reason(Code.HELD, "held"))
    made = planned(
        world([node("n0", gpu=8)], [held, whole("g", 1, queued_at=2.0)], (), queue(strategy=STRICT))
    )
    assert started(made) == ["g"]
    assert codes(made) == {"held": Code.HELD}


def test_strict_fifo_leaves_flavors_that_the_head_cannot_use() -> None:
    """The head may use model a alone; gangs that need model b continue."""
    flavors = [ResourceFlavor(m, (("model", m),), topology="gpus") for m in "ab"]
    nodes = [node(f"{m}0", gpu=8, labels={"model": m}) for m in "ab"]
    gangs = [
        gang("head", podset(count=2, gpu=4, select={"model": "a"}), queued_at=1.0),
        gang("a", podset(gpu=1, select={"model": "a"}), queued_at=2.0),
        gang("b", podset(gpu=1, select={"model": "b"}), queued_at=3.0),
        gang("any", podset(gpu=2), queued_at=4.0),
    ]
    busy = holding(gang("r", podset(gpu=2)), {"a0": 1}, flavor="a")
    strict = queue(strategy=STRICT, flavors=("a", "b"))
    made = planned(world(nodes, gangs, [busy], strict, flavors=flavors))
    assert started(made) == ["b", "any"]
    assert codes(made)["a"] is Code.WAITING_IN_ORDER
    assert made.admitted[1].placement.podsets[0].flavors["nvidia.com/gpu"] == "b"


def test_one_search_refuses_any_number_of_equal_gangs() -> None:
    gangs = [
        gang(f"g{i}", podset("x", 2, gpu=5), podset("y", 1, gpu=3), queued_at=float(i))
        for i in range(50)
    ]
    made = planned(world([node("n0", gpu=8), node("n1", gpu=8), node("n2", gpu=2)], gangs))
    assert started(made) == ["g0"]
    assert made.stats["solves"] <= 2
    assert len({repr(r.reasons) for r in made.pending}) == 1


def test_no_gang_beyond_the_window_is_considered_but_refuted_gangs_do_not_count() -> None:
    gangs = [gang(f"no{i}", podset(gpu=9 + i), queued_at=float(i)) for i in range(5)]
    gangs += [whole(f"g{i}", 1, queued_at=float(10 + i)) for i in range(4)]
    snapshot = world([node(f"n{i}", gpu=8) for i in range(4)], gangs)
    made = planned(replace(snapshot, limits=SolverLimits(window=3)))
    assert started(made) == ["g0", "g1", "g2"]
    assert codes(made)["g3"] is Code.PENDING_EVALUATION
    assert made.pending[-1].proof is Proof.UNDECIDED
    assert made.proof is Proof.FEASIBLE


def _stopped(snapshot: Snapshot) -> Snapshot:
    queues = {"main": queue()}
    queues["main"] = replace(queues["main"], stop_policy=StopPolicy.HOLD)
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


def _local_stopped(snapshot: Snapshot) -> Snapshot:
    local = {("team", "main"): LocalQueue("team", "main", "main", StopPolicy.HOLD)}
    return replace(snapshot, config=replace(snapshot.config, local_queues=local))


def _no_local(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, config=replace(snapshot.config, local_queues={}))


def _no_cluster(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, config=replace(snapshot.config, cluster_queues={}))


def _no_namespace(snapshot: Snapshot) -> Snapshot:
    queues = {"main": replace(queue(), namespace_selector=None)}
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


def _checked(snapshot: Snapshot) -> Snapshot:
    queues = {"main": replace(queue(), admission_checks=(CheckRule("prov"),))}
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_stopped, Code.QUEUE_STOPPED),
        (_checked, Code.UNSATISFIED_CHECKS),
        (_local_stopped, Code.LOCAL_QUEUE_STOPPED),
        (_no_local, Code.MISCONFIGURED),
        (_no_cluster, Code.MISCONFIGURED),
        (_no_namespace, Code.MISCONFIGURED),
    ],
)
def test_stopped_and_missing_queues_admit_no_gang(change, code: Code) -> None:
    made = planned(change(world([node("n0", gpu=8)], [whole("g", 1)])))
    assert started(made) == []
    assert codes(made) == {"g": code}


CHECK = CheckRule("budget", frozenset({"spot"}))
CONTROLLED = {"budget": AdmissionCheck("budget", EXTERNAL)}


@pytest.mark.parametrize(
    ("rule", "ready", "starts"),
    [
        pytest.param(CheckRule("budget"), frozenset(), False, id="it is not ready"),
        pytest.param(CheckRule("budget"), frozenset({"budget"}), True, id="it is ready"),
        pytest.param(CHECK, frozenset(), True, id="it is for other flavors"),
    ],
)
def test_a_gang_with_a_check_that_is_not_ready_gets_a_reservation_and_no_start(
    rule: CheckRule, ready: frozenset[str], *, starts: bool
) -> None:
    snapshot = checked(rule, ready)
    decided = plan(snapshot)
    assert verify(snapshot, decided) == ()
    assert bool(decided.admitted) is starts
    if not starts:
        (refusal,) = decided.pending
        assert (refusal.reasons[0].code, refusal.checks) == (Code.WAITING_FOR_CHECKS, ("budget",))
        assert refusal.lease is not None
        start = Admission("a", refusal.lease.placement)
        (violation,) = verify(snapshot, replace(decided, admitted=(start,), pending=()))
        assert violation.message == "check budget of main is not ready"


def checked(rule: CheckRule, ready: frozenset[str]) -> Snapshot:
    """One gang that fits, in a queue with an admission check."""
    queues = {"main": replace(queue(), admission_checks=(rule,))}
    found = world([node("n0", gpu=8)], [whole("a", 1)])
    config = replace(found.config, cluster_queues=queues, checks=CONTROLLED)
    pending = tuple(replace(p, ready_checks=ready) for p in found.pending)
    return replace(found, config=config, pending=pending)


def test_a_gang_of_a_stopped_local_queue_has_no_place_in_a_strict_queue() -> None:
    snapshot = world(
        [node("n0", gpu=8)],
        [whole("first", 1), whole("later", 1, queued_at=1.0)],
        (),
        queue(strategy=STRICT),
    )
    local = snapshot.config.local_queues["team", "main"]
    held = replace(local, name="held", stop_policy=StopPolicy.HOLD)
    queues = {**snapshot.config.local_queues, ("team", "held"): held}
    first = replace(snapshot.pending[0].workload, queue="held")
    snapshot = replace(snapshot, config=replace(snapshot.config, local_queues=queues))
    snapshot = replace(snapshot, pending=(Pending(first), snapshot.pending[1]))
    made = planned(snapshot)
    assert started(made) == ["later"]
    assert codes(made) == {"first": Code.LOCAL_QUEUE_STOPPED}
