"""The mirror, what counts where, and what a look at the mirror says happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.ledger import Entry, Intent, State
from queuectl.domain.machine import StartPolicy
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import (
    ClusterQueue,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    StopPolicy,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import (
    Deleted,
    Delta,
    JobRecord,
    Listed,
    NamespaceRecord,
    NodeRecord,
    Outcome,
    PodPhase,
    PodRecord,
    PriorityClassRecord,
    Upserted,
)
from queuectl.domain.snapshot import CapacityLease, Snapshot, SolverLimits
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.state.freeze import Freezer
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.observe import Observer, Patience, Seen
from queuectl.state.usage import Usage

SHAPE = PodShape(Resources({"nvidia.com/gpu": 8, "pods": 1}))
JOB = JobRecord("Job", "a", "train", "u1", 7, 1.0, "q", podsets=(PodSet("main", 2, SHAPE),))
PLACEMENT = Placement((PodSetPlacement("main", (("n1", 1), ("n2", 1))),))
CONFIG = QueueConfig(
    revision=3,
    cluster_queues={"cq": ClusterQueue("cq", namespace_selector=LabelSelector())},
    local_queues={("a", "q"): LocalQueue("a", "q", "cq")},
    priority_classes={"high": 100},
)
ENTRY = Entry(
    "u1", "Job", "a", "train", State.PENDING, queue="q", cluster_queue="cq", gpus=16, pods=2
)
LIVE = replace(
    ENTRY,
    state=State.STARTING,
    attempt=1,
    started_at=10.0,
    placement=PLACEMENT,
    intent=Intent.START,
)
RESUMED = replace(JOB, version=8, suspended=False, attempt=1)
GONE = replace(RESUMED, version=9, suspended=True, drained=True)


def pod(name: str, **changes: Any) -> PodRecord:
    base = PodRecord("a", name, name, 5, SHAPE.requests, "u1", attempt=1, podset="main", gated=True)
    return replace(base, **changes)


def on(name: str, node: str, **changes: Any) -> PodRecord:
    return pod(name, gated=False, node=node, phase=PodPhase.RUNNING, **changes)


class World:
    """A mirror and a ledger put together as the loop does."""

    def __init__(self, *entries: Entry, records: Iterable[Any] = ()) -> None:
        self.mirror = Mirror({"jobs": "Job", "pytorchjobs": "PyTorchJob"})
        self.ledger = Ledger(entries)
        self.usage = Usage(self.mirror, self.ledger)
        nodes = [NodeRecord(Node(n, {HOSTNAME: n}, SHAPE.requests), 1) for n in ("n1", "n2", "n3")]
        self.see(*nodes, NamespaceRecord("a", 1), *records)

    def see(self, *records: Any) -> None:
        self.mirror.apply([Upserted(record) for record in records])

    def look(self, now: float = 20.0, config: QueueConfig = CONFIG) -> Seen:
        observer = Observer(
            self.mirror, self.ledger, self.usage, Patience(100.0, 30.0), StartPolicy(60.0, 600.0)
        )
        self.mirror.touched |= {*self.mirror.jobs, *(e.uid for e in self.ledger)}
        seen = observer.look(config, now)
        self.ledger.apply(seen.changes)
        self.usage.refresh_owned([c.after.uid for c in seen.changes])
        return seen

    def freeze(self, now: float = 20.0, config: QueueConfig = CONFIG) -> Snapshot:
        self.usage.refresh(list(self.mirror.pods))
        return Freezer(self.mirror, self.ledger, self.usage).freeze(config, now, SolverLimits())


class TestMirror:
    def test_an_older_version_never_wins(self) -> None:
        world = World(records=[replace(JOB, version=9), replace(JOB, version=8, attempt=5)])
        assert world.mirror.jobs["u1"].attempt == 0

    def test_a_relist_removes_what_it_does_not_name(self) -> None:
        world = World(records=[JOB, on("p1", "n1"), replace(JOB, uid="u2", kind="PyTorchJob")])
        gone: list[Delta] = [Listed("jobs", frozenset(), 50), Listed("pods", frozenset(), 50)]
        world.mirror.apply(gone)
        assert set(world.mirror.jobs) == {"u2"}
        assert list(world.mirror.pods_of("u1")) == []

    def test_a_heartbeat_of_a_node_does_not_make_a_new_fleet(self) -> None:
        world = World()
        before = world.mirror.fleet
        world.see(NodeRecord(before.nodes[0], 99))
        assert world.mirror.fleet is before
        world.see(NodeRecord(replace(before.nodes[0], ready=False), 100))
        assert world.mirror.fleet is not before

    @pytest.mark.parametrize(
        ("resource", "key", "record"),
        [
            ("nodes", "x", NodeRecord(Node("x"), 1)),
            ("namespaces", "x", NamespaceRecord("x", 1)),
            ("priorityclasses", "x", PriorityClassRecord("x", 1, 5)),
        ],
    )
    def test_deletions_are_seen(self, resource: str, key: str, record: Any) -> None:
        world = World(records=[record])
        world.mirror.apply([Deleted(resource, key, 2)])
        left = {**world.mirror.nodes, **world.mirror.namespaces, **world.mirror.priority_classes}
        assert key not in left


class TestUsage:
    @pytest.mark.parametrize(
        ("entry", "seen", "strangers"),
        [
            pytest.param(LIVE, on("p", "n1"), {}, id="a pod in its slot is counted by the slot"),
            pytest.param(LIVE, on("p", "n3"), {"n3"}, id="beside its slots it is a stranger"),
            pytest.param(LIVE, on("p", "n1", attempt=7), {"n1"}, id="so is one of another attempt"),
            pytest.param(ENTRY, on("p", "n1"), {"n1"}, id="and one of a waiting gang"),
            pytest.param(None, on("p", "n1", owner=""), {"n1"}, id="and a bare pod"),
            pytest.param(None, pod("p", owner=""), set(), id="a gated pod uses nothing"),
            pytest.param(
                None, pod("p", owner="", gated=False, pin="n2"), {"n2"}, id="a pinned one does before it is bound"
            ),
            pytest.param(
                None, on("p", "n1", owner="", terminating=True), {"n1"}, id="a terminating one still does"
            ),
            pytest.param(
                None, pod("p", gated=False, node="n1", phase=PodPhase.SUCCEEDED), set(), id="a finished one does not"
            ),
        ],
    )  # fmt: skip
    def test_a_pod_counts_once(
        self, entry: Entry | None, seen: PodRecord, strangers: set[str]
    ) -> None:
        world = World(*([entry] if entry else []), records=[RESUMED, seen])
        assert set(world.freeze().strangers) == set(strangers)

    def test_what_left_is_given_back(self) -> None:
        world = World(records=[on("p", "n1", owner="")])
        world.freeze()
        world.mirror.apply([Deleted("pods", "p", 9)])
        world.usage.refresh(["p"])
        assert world.usage.strangers == {}


# (what, entry, job, pods, time, state it leads to, reason)
LOOKS: list[tuple[str, Entry, JobRecord | None, list[PodRecord], float, State, Code]] = [
    ("ready pods", LIVE, RESUMED, [on("p1", "n1", ready=True), on("p2", "n2", ready=True)], 20, State.RUNNING, Code.PODS_READY),
    ("a pod that already succeeded counts as ready", LIVE, RESUMED,
     [on("p1", "n1", ready=True), pod("p2", gated=False, node="n2", phase=PodPhase.SUCCEEDED)], 20, State.RUNNING, Code.PODS_READY),
    ("half a gang is not ready", LIVE, RESUMED, [on("p1", "n1", ready=True)], 20, State.STARTING, Code.QUEUED),
    ("readiness of an older attempt does not count", LIVE, RESUMED,
     [on("p1", "n1", ready=True, attempt=9), on("p2", "n2", ready=True)], 20, State.STARTING, Code.QUEUED),
    ("a start that takes too long", LIVE, RESUMED, [on("p1", "n1")], 110, State.EVICTING, Code.PODS_READY_TIMEOUT),
    ("a pin kube-scheduler refuses", LIVE, RESUMED, [pod("p1", gated=False, pin="n1", unschedulable_since=1.0)], 40,
     State.EVICTING, Code.PIN_UNSCHEDULABLE),
    ("it is given some time", LIVE, RESUMED, [pod("p1", gated=False, pin="n1", unschedulable_since=15.0)], 40,
     State.STARTING, Code.QUEUED),
    ("pods larger than their template", LIVE, RESUMED, [pod("p1", requests=SHAPE.requests * 2)], 20,
     State.EVICTING, Code.PODS_LARGER_THAN_ASKED),
    ("a gang resized while it ran", LIVE, replace(RESUMED, podsets=(PodSet("main", 3, SHAPE),)), [], 20,
     State.EVICTING, Code.CHANGED_OUTSIDE),
    ("a waiting job somebody resumed", ENTRY, replace(JOB, suspended=False), [], 20, State.EVICTING, Code.RESUMED_OUTSIDE),
    ("a running job somebody suspended", replace(LIVE, intent=None), replace(RESUMED, suspended=True), [], 20,
     State.EVICTING, Code.SUSPENDED_OUTSIDE),
    ("an evicted gang with a pod left", replace(LIVE, state=State.EVICTING, intent=Intent.STOP), GONE,
     [on("p1", "n1", terminating=True)], 20, State.EVICTING, Code.QUEUED),
    ("an evicted gang without", replace(LIVE, state=State.EVICTING, intent=Intent.STOP), GONE,
     [pod("p1", gated=False, node="n1", phase=PodPhase.FAILED)], 20, State.PENDING, Code.QUEUED),
    ("a suspension its controller has not confirmed", replace(LIVE, state=State.EVICTING, intent=Intent.STOP),
     replace(GONE, drained=False), [], 20, State.EVICTING, Code.QUEUED),
    ("a withdrawn start whose write has not landed", replace(LIVE, state=State.EVICTING, intent=Intent.STOP),
     replace(GONE, attempt=0), [], 20, State.EVICTING, Code.QUEUED),
    ("back-off not over", replace(ENTRY, state=State.BACKOFF, requeue_at=50.0), JOB, [], 40, State.BACKOFF, Code.QUEUED),
    ("back-off over", replace(ENTRY, state=State.BACKOFF, requeue_at=50.0), JOB, [], 50, State.PENDING, Code.QUEUED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "job", "pods", "now", "state", "code"),
    [pytest.param(*rest, id=text) for text, *rest in LOOKS],
)
def test_what_the_watch_shows_leads_to(
    entry: Entry, job: JobRecord, pods: list[PodRecord], now: float, state: State, code: Code
) -> None:
    world = World(entry, records=[job, *pods])
    world.look(now)
    after = world.ledger.get("u1")
    assert after is not None
    assert after.state is state
    assert after.reason.code is code


@pytest.mark.parametrize(
    ("job", "code"),
    [
        pytest.param(None, Code.DELETED, id="deleted"),
        pytest.param(replace(RESUMED, outcome=Outcome.FAILED), Code.FAILED, id="failed"),
        pytest.param(replace(RESUMED, outcome=Outcome.SUCCEEDED), Code.SUCCEEDED, id="succeeded"),
    ],
)
def test_an_end_leaves_the_ledger(job: JobRecord | None, code: Code) -> None:
    world = World(LIVE, records=[job] if job else [])
    (change,) = world.look().changes
    assert (change.after.state, change.after.reason.code) == (State.FINISHED, code)
    assert world.ledger.get("u1") is None


def test_the_echo_of_a_start_clears_the_intent() -> None:
    world = World(LIVE, records=[RESUMED])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.intent is None


def test_a_submitted_job_takes_priority_and_queue_from_the_configuration() -> None:
    world = World(records=[replace(JOB, priority_class="high")])
    (change,) = world.look().changes
    assert (change.after.priority, change.after.cluster_queue) == (100, "cq")
    world.look(config=replace(CONFIG, priority_classes={"high": 7}))
    after = world.ledger.get("u1")
    assert after is not None
    assert after.priority == 7


def test_of_two_jobs_of_the_same_second_the_first_created_is_first_in_line() -> None:
    world = World(records=[replace(JOB, uid="a", version=9), replace(JOB, uid="b", version=8)])
    world.look(now=1.5)
    first, second = (world.ledger.get(uid) for uid in ("b", "a"))
    assert first is not None
    assert second is not None
    assert first.queued_at < second.queued_at


def test_without_a_workload_priority_class_the_pods_class_counts() -> None:
    job = replace(JOB, pod_priority_class="urgent")
    world = World(records=[PriorityClassRecord("urgent", 1, 55), job])
    (change,) = world.look().changes
    assert change.after.priority == 55


@pytest.mark.parametrize(
    ("job", "config", "code", "text"),
    [
        (replace(JOB, error="bad", unsupported=True), CONFIG, Code.UNSUPPORTED, "bad"),
        (replace(JOB, error="bad"), CONFIG, Code.MISCONFIGURED, "bad"),
        (replace(JOB, queue="nope"), CONFIG, Code.MISCONFIGURED, "LocalQueue nope does not exist"),
        (JOB, replace(CONFIG, cluster_queues={}), Code.MISCONFIGURED, "ClusterQueue cq"),
        (replace(JOB, priority_class="x"), CONFIG, Code.MISCONFIGURED, "WorkloadPriorityClass x"),
        (
            JOB,
            replace(CONFIG, cluster_queues={"cq": ClusterQueue("cq")}),
            Code.MISCONFIGURED,
            "does not take namespace",
        ),
        (
            JOB,
            replace(
                CONFIG,
                cluster_queues={
                    "cq": ClusterQueue("cq", stop_policy=StopPolicy.HOLD, namespace_selector=LabelSelector())
                },
            ),
            Code.QUEUE_STOPPED,
            "stopped",
        ),
        (
            JOB,
            replace(CONFIG, local_queues={("a", "q"): LocalQueue("a", "q", "cq", StopPolicy.HOLD)}),
            Code.LOCAL_QUEUE_STOPPED,
            "stopped",
        ),
    ],
)  # fmt: skip
def test_what_must_not_be_planned_says_why(
    job: JobRecord, config: QueueConfig, code: Code, text: str
) -> None:
    world = World(records=[job])
    world.look(config=config)
    (pending,) = world.freeze(config=config).pending
    assert pending.blocked is not None
    assert pending.blocked.code is code
    assert text in pending.blocked.message


def test_a_snapshot_tells_when_a_gang_made_room_for_others() -> None:
    entry = replace(LIVE, preempted_at=(10.0, 5_000.0))
    world = World(entry, records=[RESUMED])
    assert world.freeze(now=100_000.0).admitted[0].evictions == (10.0, 5_000.0)


RUNS = [on("p1", "n1"), on("p2", "n2")]


@pytest.mark.parametrize(
    ("entry", "job", "pods", "state"),
    [
        pytest.param(None, RESUMED, RUNS, State.RUNNING, id="whole at first sight"),
        pytest.param(
            None, replace(RESUMED, attempt=0), [replace(p, attempt=0, podset="") for p in RUNS],
            State.RUNNING, id="started before queuectl came",
        ),
        pytest.param(None, RESUMED, RUNS[:1], State.PENDING, id="half of it is not adopted"),
        pytest.param(None, RESUMED, [*RUNS[:1], pod("p2")], State.PENDING, id="nor a gated one"),
        pytest.param(
            replace(ENTRY, attempt=1), replace(RESUMED, attempt=3),
            [replace(p, attempt=3) for p in RUNS], State.RUNNING, id="the ledger is from the past",
        ),
        pytest.param(
            replace(ENTRY, attempt=1), RESUMED, RUNS, State.EVICTING, id="resumed by somebody else"
        ),
    ],
)  # fmt: skip
def test_what_runs_without_the_ledger(
    entry: Entry | None, job: JobRecord, pods: list[PodRecord], state: State
) -> None:
    world = World(*([entry] if entry else []), records=[job, *pods])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.state is state
    if state is State.RUNNING:
        assert after.attempt == job.attempt
        assert after.placement is not None
        assert after.placement.podsets[0].nodes == (("n1", 1), ("n2", 1))
        world.look()
        assert world.ledger.get("u1") == after, "and it stays so"
    else:
        assert world.freeze().pending == (), "it is not planned while it runs"


class TestFreeze:
    def test_an_evicted_gang_holds_all_slots_until_its_job_is_seen_suspended(self) -> None:
        leaving = replace(LIVE, state=State.EVICTING, intent=Intent.STOP)
        world = World(leaving, records=[RESUMED, on("p1", "n1")])
        (held,) = world.freeze().admitted
        assert held.leaving
        assert held.placement == PLACEMENT
        world.see(GONE)
        (held,) = world.freeze().admitted
        assert held.placement.podsets[0].nodes == (("n1", 1),)

    def test_a_slot_is_lost_only_when_its_node_and_its_pod_are(self) -> None:
        running = replace(LIVE, state=State.RUNNING)
        world = World(running, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
        world.mirror.apply([Deleted("nodes", "n2", 9)])
        assert world.freeze().admitted[0].lost == ()
        world.mirror.apply([Deleted("pods", "p2", 9)])
        assert world.freeze().admitted[0].lost == (("main", "n2", 1),)

    def test_a_pod_that_goes_after_its_node_is_a_reason_to_plan(self) -> None:
        running = replace(LIVE, state=State.RUNNING, intent=None)
        world = World(running, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
        world.mirror.apply([Deleted("nodes", "n2", 9)])
        world.look()
        world.mirror.apply([Deleted("pods", "p2", 9)])
        assert world.look().plan_again

    def test_only_a_gang_that_queues_again_keeps_its_place(self) -> None:
        for code, returns in ((Code.PREEMPTED, True), (Code.PODS_READY_TIMEOUT, False)):
            leaving = replace(LIVE, state=State.EVICTING, intent=Intent.STOP, reason=Reason(code))
            (gang,) = World(leaving, records=[RESUMED]).freeze().admitted
            assert gang.returns is returns

    def test_a_lease_that_ran_out_is_not_shown(self) -> None:
        lease = CapacityLease(PLACEMENT, ("v",), 0.0, expires_at=50.0)
        reserved = replace(ENTRY, state=State.RESERVED, lease=lease, reason=Reason(Code.UNDECIDED))
        world = World(reserved, records=[JOB])
        assert world.freeze(now=49.0).pending[0].lease == lease
        assert world.freeze(now=50.0).pending[0].lease is None

    def test_a_gang_on_the_move_shows_the_place_held_for_it(self) -> None:
        lease = CapacityLease(PLACEMENT, (), 0.0, expires_at=50.0)
        why = Reason(Code.DEFRAGMENTED)
        moving = replace(
            ENTRY,
            state=State.EVICTING,
            placement=PLACEMENT,
            lease=lease,
            intent=Intent.STOP,
            reason=why,
        )
        world = World(moving, records=[JOB])
        (gang,) = world.freeze(now=49.0).admitted
        assert (gang.leaving, gang.returns, gang.lease) == (True, True, lease)
        assert world.freeze(now=50.0).admitted[0].lease is None

    @pytest.mark.parametrize(
        ("job", "restartable"),
        [
            (JOB, True),
            (replace(JOB, error="asks for what placement cannot honour"), False),
            (replace(JOB, priority_class="gone"), False),
        ],
    )
    def test_a_running_gang_whose_job_is_refused_by_now_could_not_start_again(
        self, job: JobRecord, restartable: bool
    ) -> None:
        runs = replace(ENTRY, state=State.RUNNING, placement=PLACEMENT)
        (gang,) = World(runs, records=[job]).freeze().admitted
        assert gang.restartable == restartable

    def test_equal_pictures_share_what_did_not_change(self) -> None:
        world = World(records=[JOB])
        world.look()
        freezer = Freezer(world.mirror, world.ledger, world.usage)
        first = freezer.freeze(CONFIG, 1.0, SolverLimits())
        second = freezer.freeze(CONFIG, 2.0, SolverLimits())
        assert first.fleet is second.fleet
        assert first.pending[0].workload is second.pending[0].workload
