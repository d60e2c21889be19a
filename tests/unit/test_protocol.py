"""The writes that an entry needs, given the state that the watch shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME, Node, Toleration
from queuectl.domain.jobs import JobOutcome, JobRecord, Parallelism, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, Intent, State
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import (
    FlavorShare,
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    Slice,
    TopologyMode,
    TopologyRequest,
)
from queuectl.lifecycle.outstanding_writes import (
    POD,
    Write,
    assign,
    outstanding_writes,
    planned_of,
    slot_numbers,
)
from queuectl.objects.kubernetes.node_affinity import pin_in
from queuectl.objects.kubernetes.wire import OwnAffinity

SHAPE = PodShape(Resources({"nvidia.com/gpu": 8, "pods": 1}))
JOB = JobRecord("Job", "a", "train", "u1", 7, 1.0, "q", podsets=(PodSet("main", 4, SHAPE),))
NODES = {
    name: Node(name, {HOSTNAME: f"{name}.local"}, Resources({"nvidia.com/gpu": 16, "pods": 100}))
    for name in ("n1", "n2", "n3")
}
PLACED = PodSetPlacement("main", (("n1", 2), ("n2", 2)))
ENTRY = Entry(
    "u1", "Job", "a", "train", State.STARTING, attempt=2, started_at=1.0, intent=Intent.START,
    placement=Placement((PLACED,)),
)  # fmt: skip
RESUMED = replace(JOB, suspended=False, attempt=2)


def pod(rank: int, **changes: Any) -> PodRecord:
    base = PodRecord(
        "a",
        f"train-{rank}",
        f"p{rank}",
        5,
        owner="u1",
        attempt=2,
        podset="main",
        rank=rank,
        gated=True,
    )
    return replace(base, **changes)


GANG = [pod(rank) for rank in range(4)]


def writes(entry: Entry, job: JobRecord, pods: list[PodRecord]) -> list[Write]:
    return outstanding_writes(entry, job, pods, NODES, {})


def pin_of(write: Write) -> str | None:
    affinity = write.patch["spec"].get("affinity")
    return pin_in(msgspec.convert(affinity, OwnAffinity).node_affinity) if affinity else None


def pins(found: list[Write]) -> dict[str, str | None]:
    return {w.name: pin_of(w) for w in found}


def test_a_start_with_fewer_pods_is_in_the_patch_of_the_job() -> None:
    podset = PodSet("main", 4, SHAPE, min_count=2)
    job = replace(JOB, podsets=(podset,), parallelism=Parallelism(4))
    placed = PodSetPlacement("main", (("n1", 2), ("n2", 1)), {}, 3)
    (write,) = writes(replace(ENTRY, placement=Placement((placed,))), job, [])
    assert write.patch["spec"]["parallelism"] == 3
    whole = replace(placed, nodes=(("n1", 2), ("n2", 2)), pods=4)
    (write,) = writes(replace(ENTRY, placement=Placement((whole,))), job, [])
    assert "parallelism" not in write.patch["spec"]


@pytest.mark.parametrize(
    ("tolerations", "goes"),
    [((), False), ((Toleration("", "Exists"),), True)],
    ids=["as usual", "it tolerates everything"],
)
def test_a_replacement_does_not_go_to_a_cordoned_node(
    tolerations: tuple[Toleration, ...], goes: bool
) -> None:
    nodes = {**NODES, "n2": replace(NODES["n2"], unschedulable=True)}
    running = [replace(p, gated=False, node="n1" if p.rank in (0, 1) else "n2") for p in GANG]
    fresh = replace(GANG[3], uid="p3b", name="train-3b", tolerations=tolerations)
    entry = replace(ENTRY, state=State.RUNNING, intent=None)
    found = outstanding_writes(entry, RESUMED, [*running[:3], fresh], nodes, {})
    assert pins(found) == ({"train-3b": "n2"} if goes else {})


PLANNED = replace(ENTRY, planned=planned_of(JOB))
LARGER = PodShape(SHAPE.requests * 2)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(replace(JOB, podsets=(PodSet("main", 4, LARGER),)), id="larger pods"),
        pytest.param(replace(JOB, podsets=(PodSet("main", 5, SHAPE),)), id="more pods"),
        pytest.param(replace(JOB, priority_class="high"), id="another priority class"),
        pytest.param(replace(JOB, queue="r"), id="another queue"),
        pytest.param(
            replace(JOB, podsets=(replace(JOB.podsets[0], has_deadline=True),)), id="a deadline"
        ),
    ],
)
def test_a_job_that_asks_for_something_else_than_was_planned_is_not_started(
    job: JobRecord,
) -> None:
    assert len(writes(PLANNED, JOB, [])) == 1
    assert writes(PLANNED, job, []) == []


def test_no_pod_of_a_gang_is_ungated_while_one_requests_more_than_was_planned() -> None:
    planned = replace(PLANNED, intent=None)
    exact = [replace(p, requests=SHAPE.requests) for p in GANG]
    assert len(writes(planned, RESUMED, exact)) == 4
    assert writes(planned, RESUMED, [replace(exact[0], requests=LARGER.requests), *exact[1:]]) == []


MOVING = Entry("u1", "Job", "a", "train", State.HELD, queue="q", queue_set="r", intent=Intent.MOVE)


@pytest.mark.parametrize(
    ("job", "writes_it"),
    [
        pytest.param(JOB, True, id="its object does not say so yet"),
        pytest.param(replace(JOB, queue="third"), True, id="nor when another client changed it"),
        pytest.param(replace(JOB, queue="r"), False, id="it does"),
        pytest.param(RESUMED, False, id="others resumed it: it is taken down first"),
        pytest.param(replace(JOB, outcome=JobOutcome.SUCCEEDED), False, id="it has ended"),
    ],
)
def test_a_moved_job_is_named_into_its_queue_over_the_version_that_was_seen(
    job: JobRecord, writes_it: bool
) -> None:
    found = writes(MOVING, job, [])
    assert bool(found) == writes_it
    for write in found:
        assert write.patch["metadata"]["labels"] == {"queuectl.dev/queue-name": "r"}
        assert write.patch["metadata"]["resourceVersion"] == str(job.version)
        assert "spec" not in write.patch


LEAVING = replace(ENTRY, state=State.EVICTING, intent=Intent.STOP)


def test_under_notice_a_job_is_notified_once_and_not_suspended() -> None:
    notified = replace(LEAVING, stop_at=1_769_860_800.0)
    (write,) = writes(notified, RESUMED, [])
    assert write.patch["metadata"]["annotations"]["queuectl.dev/preempt-requested"] == (
        "2026-01-31T12:00:00Z"
    )
    assert "spec" not in write.patch
    notified_job = replace(RESUMED, preempt_requested="2026-01-31T12:00:00Z")
    assert writes(notified, notified_job, []) == []
    assert (
        len(writes(notified, replace(notified_job, preempt_requested="2026-01-01T00:00:00Z"), []))
        == 1
    )
    (write,) = writes(LEAVING, notified_job, [])
    assert write.patch["spec"]["suspend"] is True


def test_a_podset_that_is_done_has_no_place_for_a_late_pod() -> None:
    done = PodSetPlacement("main", (), {"nvidia.com/gpu": "h100"}, 0)
    entry = replace(ENTRY, state=State.RUNNING, placement=Placement((done,)), intent=None)
    assert writes(entry, RESUMED, GANG) == []


def test_pods_are_ungated_when_as_many_exist_as_were_started() -> None:
    placed = PodSetPlacement("main", (("n1", 2), ("n2", 1)), {}, 3)
    entry = replace(ENTRY, placement=Placement((placed,)), intent=None)
    running = replace(RESUMED, expected=(("main", 3),), parallelism=Parallelism(4, shrunk=True))
    assert writes(entry, running, GANG[:2]) == []
    assert pins(writes(entry, running, GANG[:3])) == {
        "train-0": "n1",
        "train-1": "n1",
        "train-2": "n2",
    }


def test_a_committed_start_owes_one_patch_of_the_job_on_the_version_it_was_read_at() -> None:
    (write,) = writes(ENTRY, JOB, [])
    assert write.patch["spec"]["suspend"] is False
    assert write.patch["metadata"]["resourceVersion"] == "7"


def test_a_resumed_job_is_owed_nothing_until_all_its_pods_exist() -> None:
    assert writes(ENTRY, RESUMED, GANG[:3]) == []


def test_a_whole_gang_is_pinned_rank_by_rank_in_the_order_of_the_placement() -> None:
    assert pins(writes(ENTRY, RESUMED, GANG)) == {
        "train-0": "n1", "train-1": "n1", "train-2": "n2", "train-3": "n2",
    }  # fmt: skip


def test_pods_of_another_attempt_are_never_ungated() -> None:
    old = [replace(p, attempt=1) for p in GANG]
    assert writes(ENTRY, RESUMED, old) == []


def test_a_job_of_another_attempt_is_left_alone() -> None:
    assert writes(ENTRY, replace(RESUMED, attempt=3), GANG) == []


def test_after_a_crash_half_way_only_the_missing_pins_are_owed() -> None:
    half = [
        replace(GANG[0], gated=False, pin="n1"),
        replace(GANG[2], gated=False, node="n2"),
        GANG[1],
        GANG[3],
    ]
    assert pins(writes(ENTRY, RESUMED, half)) == {"train-1": "n1", "train-3": "n2"}


def test_a_replacement_waits_for_its_predecessor_and_takes_its_slot() -> None:
    running = [replace(p, gated=False, node="n1" if p.rank in (0, 1) else "n2") for p in GANG]
    leaving = replace(running[2], terminating=True)
    fresh = replace(GANG[2], uid="p2b", name="train-2b")
    entry = replace(ENTRY, state=State.RUNNING, intent=None)
    assert writes(entry, RESUMED, [running[0], running[1], leaving, running[3], fresh]) == []
    failed = replace(leaving, terminating=False, phase=PodPhase.FAILED)
    found = writes(entry, RESUMED, [running[0], running[1], failed, running[3], fresh])
    assert pins(found) == {"train-2b": "n2"}


A = ResourceFlavor("a", (("pool", "a"),))
B = ResourceFlavor("b", (("pool", "b"),), tolerations=(Toleration("spot", "Exists"),))
SPLIT = PodSetPlacement(
    "main",
    (("n1", 2), ("n2", 1), ("n3", 1)),
    {"nvidia.com/gpu": "a"},
    shares=(FlavorShare(3, {"nvidia.com/gpu": "a"}), FlavorShare(1, {"nvidia.com/gpu": "b"})),
)


def pools(placed: PodSetPlacement, pods: list[PodRecord]) -> dict[str, tuple[str | None, str, int]]:
    """Pod to the node it is pinned to, the pool it is to run in and the number of its tolerations."""
    entry = replace(ENTRY, placement=Placement((placed,)))
    nodes = {
        name: replace(node, labels={**node.labels, "pool": "b" if name == "n3" else "a"})
        for name, node in NODES.items()
    }
    found = outstanding_writes(entry, RESUMED, pods, nodes, {"a": A, "b": B})
    asked = {w.name: (pin_of(w), w.patch["spec"]) for w in found}
    return {
        name: (pin, spec["nodeSelector"]["pool"], len(spec.get("tolerations", [])))
        for name, (pin, spec) in asked.items()
    }


def test_each_pod_gets_the_selector_and_tolerations_of_its_share() -> None:
    assert pools(SPLIT, GANG) == {
        "train-0": ("n1", "a", 0),
        "train-1": ("n1", "a", 0),
        "train-2": ("n2", "a", 0),
        "train-3": ("n3", "b", 1),
    }


def test_pods_without_ranks_fill_the_shares_one_after_the_other() -> None:
    unranked = [replace(p, rank=None) for p in GANG]
    assert pools(SPLIT, unranked) == pools(SPLIT, GANG)
    half = [replace(unranked[0], gated=False, node="n3"), *unranked[1:]]
    assert [pool for _, pool, _ in pools(SPLIT, half).values()] == ["a"] * 3


@pytest.mark.parametrize("ranked", [True, False])
def test_shares_without_nodes_are_assigned_by_rank_or_name(ranked: bool) -> None:
    pods = [p if ranked else replace(p, rank=None) for p in GANG]
    expected = {f"train-{i}": (None, "b" if i == 3 else "a", int(i == 3)) for i in range(4)}
    quota_only = replace(SPLIT, nodes=())
    assert pools(quota_only, pods) == expected
    half = [replace(pods[0], gated=False, node="n2"), *pods[1:]]
    assert pools(quota_only, half) == {n: w for n, w in expected.items() if n != "train-0"}


def test_a_slot_on_a_deleted_node_is_assigned_to_no_pod() -> None:
    left = {"n1": NODES["n1"]}
    found = outstanding_writes(ENTRY, RESUMED, GANG, left, {})
    assert set(pins(found).values()) == {"n1"}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("job", "asks"),
    [
        pytest.param(RESUMED, {"suspend": True}, id="a running job is suspended"),
        pytest.param(replace(RESUMED, suspended=True), None, id="a suspended one is owed nothing"),
    ],
)
def test_an_evicted_gang(job: JobRecord, asks: dict[str, Any] | None) -> None:
    found = writes(replace(ENTRY, state=State.EVICTING, intent=Intent.STOP), job, [])
    assert [w.patch["spec"] for w in found] == ([asks] if asks else [])


def test_a_start_that_never_landed_is_withdrawn_by_a_newer_write_to_the_object() -> None:
    entry = replace(ENTRY, state=State.EVICTING, intent=Intent.STOP)
    (write,) = writes(entry, JOB, [])
    spec = write.patch["spec"]
    assert spec["suspend"] is True
    assert spec["template"]["metadata"]["labels"]["queuectl.dev/attempt"] == "2"


@pytest.mark.parametrize("state", [State.PENDING, State.HELD, State.BACKOFF, State.FINISHED])
def test_a_workload_without_slots_owes_nothing(state: State) -> None:
    assert writes(replace(ENTRY, state=state, placement=None, intent=None), RESUMED, GANG) == []


POD_STATES = st.sampled_from(["absent", "gated", "on its node", "succeeded", "terminating"])


@given(st.lists(POD_STATES, min_size=4, max_size=4), st.permutations(range(4)))
def test_no_node_ever_gets_more_pods_than_its_slots(states: list[str], order: list[int]) -> None:
    slots = ["n1", "n1", "n2", "n2"]
    made = []
    for rank, state in enumerate(states):
        node = slots[order[rank]]
        match state:
            case "gated":
                made.append(pod(rank))
            case "on its node":
                made.append(pod(rank, gated=False, node=node, phase=PodPhase.RUNNING))
            case "succeeded":
                made.append(pod(rank, gated=False, node=node, phase=PodPhase.SUCCEEDED))
                made.append(pod(rank, uid=f"again{rank}", name=f"again-{rank}"))
            case "terminating":
                made.append(pod(rank, gated=False, node=node, terminating=True))
                made.append(pod(rank, uid=f"again{rank}", name=f"again-{rank}"))
    waiting = [p for p in made if p.gated]
    given_slots = assign(PLACED, made, waiting, NODES)
    use = Counter(slots[number] for _, number in given_slots)
    use.update(p.node for p in made if p.node and not p.terminal)
    assert all(use[name] <= 2 for name in ("n1", "n2"))
    running = {p.rank for p in made if p.node and not p.terminal}
    allowed = [p for p in waiting if p.rank not in running]
    assert len(given_slots) == min(len(allowed), 4 - len(running))
    assert len({p.uid for p, _ in given_slots}) == len(given_slots)


def test_a_pod_with_the_hostname_of_a_node_holds_its_slot_there_before_it_is_bound() -> None:
    """Kueue pins pods by hostname."""
    first, *waiting = (replace(pod(n), rank=None) for n in range(5))
    first = replace(first, gated=False, host="n1.local")
    numbers = [number for _, number in assign(PLACED, [first, *waiting], waiting, NODES)]
    slots = ["n1", "n1", "n2", "n2"]
    assert sorted(slots[number] for number in numbers) == ["n1", "n2", "n2"]


def test_a_replacement_is_gated_while_its_predecessor_terminates_on_another_node() -> None:
    """Its slot was moved from a node that does not answer."""
    lost = pod(0, gated=False, node="dead", terminating=True)
    again = pod(0, uid="again", name="again")
    assert assign(PLACED, [lost, again], [again], NODES) == []
    ended = replace(lost, phase=PodPhase.FAILED)
    assert assign(PLACED, [ended, again], [again], NODES) == [(again, 0)]


PAIRS = TopologyRequest(TopologyMode.REQUIRED, "block", (Slice("rack", 2),))


@pytest.mark.parametrize(
    ("ended", "topology", "slots", "given_to"),
    [
        ({0, 2}, None, 2, {1: 0, 3: 1}),
        ({1, 2}, None, 2, {0: 0, 3: 1}),
        ({0, 1}, PAIRS, 2, {2: 0, 3: 1}),
        ({0, 2}, PAIRS, 4, {1: 1, 3: 3}),  # both slices are whole
        ({0, 2}, PAIRS, 2, {1: 0, 3: 1}),  # their slots without pods are free again
        ({0}, None, 4, {1: 1, 2: 2, 3: 3}),  # it has ended since the start
        ({0}, None, 2, {1: 1}),  # the number of slots is unlike that of each start
    ],
)
def test_a_gang_that_starts_again_has_the_slots_of_the_ranks_that_have_not_ended(
    ended: set[int], topology: TopologyRequest | None, slots: int, given_to: dict[int, int]
) -> None:
    asked = PodSet("main", 4, SHAPE, topology)
    placed = PodSetPlacement("main", tuple((f"n{number}", 1) for number in range(slots)))
    numbers = slot_numbers(placed, asked, ended)
    assert {rank: numbers(rank) for rank in given_to} == given_to


def test_the_resource_of_a_pod_write_is_a_pod() -> None:
    assert {w.resource for w in writes(ENTRY, RESUMED, GANG)} == {POD}


def test_the_status_on_a_job_does_not_name_gangs_of_other_namespaces() -> None:
    message = "makes room for secret/big-run, as a/other does"
    reason = Reason(Code.PREEMPTED, message, {"preemptor": "u9"})
    evicted = replace(ENTRY, state=State.EVICTING, intent=Intent.STOP, reason=reason)
    (write,) = writes(evicted, RESUMED, GANG)
    status = write.patch["metadata"]["annotations"]["queuectl.dev/status"]
    assert status == "Evicting: Preempted: makes room for another team, as a/other does"
