"""Elastic Jobs: what the reader refuses, the records of their indexes in the mirror, their patches, and plans of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.control.leader.decisions import Decider
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.arrays import growth_of, index_uid
from queuectl.domain.events import Evict
from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import JobOutcome, JobRecord, PodPhase, PodRecord, podsets_joining
from queuectl.domain.ledger import Document, Entry, EntryChange, State
from queuectl.domain.plan import Admission, Eviction, Plan
from queuectl.domain.queues import LocalQueue, QueueConfig, ResourceFlavor
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NamespaceRecord, NodeRecord, Record, Upserted
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Duration, Growth, Placement
from queuectl.lifecycle.transitions import alarm_of
from queuectl.lifecycle.workload_events import ObservationRules, observe
from queuectl.objects.kinds import KINDS
from queuectl.state.arrays import after_lower_ranks, in_rank_order, stalled_ranks
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.planner.build import config, gang, node, placed, podset, queue
from tests.support.file_plans import planned, pod_of_index
from tests.support.jobs import read_job

OURS, KUEUES = "queuectl.dev/elastic-job", "kueue.x-k8s.io/elastic-job"
LEAST = "queuectl.dev/job-min-parallelism"
BASE = "queuectl.dev/base-count"
IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
SUCCESS = {"rules": [{"succeededIndexes": "0-1"}]}


def elastic(
    most: int = 4,
    least: int | None = 2,
    mark: str = OURS,
    annotations: Mapping[str, str] = {},
    per_pod: Mapping[str, str] = {},
    attempt: str = "0",
    **spec: Any,
) -> Document:
    marks = {mark: "true", **({LEAST: str(least)} if least is not None else {}), **annotations}
    document = m.job("train", "default", "main", PodSetManifest(most, gpus=1), annotations=marks)
    template = document["spec"]["template"]
    meta = {"annotations": dict(per_pod), "labels": {"queuectl.dev/attempt": attempt}}
    template = {**template, "metadata": meta}
    more = {
        "suspend": True,
        "podFailurePolicy": {"rules": [IGNORED]},
        "successPolicy": SUCCESS,
        "template": template,
    }
    return {
        **document,
        "metadata": {**document["metadata"], "uid": "u", "resourceVersion": "1"},
        "spec": {**document["spec"], **more, **spec},
    }


def size(record: JobRecord) -> tuple[int, int, int]:
    """Pods that start as one gang, the base of the indexes above them, and all pods."""
    assert record.error is None
    assert record.array is not None
    return record.pods, record.array.base, record.array.at_once


@pytest.mark.parametrize("mark", [OURS, KUEUES])
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, (2, 2, 4)),
        ({"least": None}, (4, 4, 4)),
        ({"least": 4}, (4, 4, 4)),
        ({"least": None, "per_pod": {"queuectl.dev/min-count": "2"}}, (2, 2, 4)),
        ({"least": None, "annotations": {BASE: "3"}, "suspend": False}, (3, 3, 4)),
        ({"least": 5, "suspend": False}, (4, 4, 4)),  # its user has made it smaller
        ({"least": 5, "attempt": "1"}, (4, 4, 4)),
        ({"least": 3, "annotations": {BASE: "1"}, "suspend": False, "successPolicy": {"rules": [{"succeededCount": 3}]}}, (1, 1, 4)),
        ({"least": None, "annotations": {BASE: "3"}}, (4, 4, 4)),  # of an attempt that has ended
        ({"annotations": {BASE: "1"}, "suspend": False, "successPolicy": {"rules": [{"succeededCount": 1}]}}, (1, 1, 4)),
    ],
)  # fmt: skip
def test_an_elastic_job_is_a_gang_of_its_minimum_number_of_pods(
    document: dict[str, Any], expected: tuple[int, int, int], mark: str
) -> None:
    assert size(read_job(elastic(mark=mark, **document))) == expected


def test_without_the_annotation_the_minimum_number_is_for_its_start_only() -> None:
    record = read_job(elastic(annotations={OURS: "false"}))
    assert (record.error, record.array, record.pods) == (None, None, 4)
    assert record.podsets[0].min_count == 2
    per_pod = elastic(least=None, annotations={OURS: "false"}, per_pod={"queuectl.dev/min-count": "3"})  # fmt: skip
    assert read_job(per_pod).podsets[0].min_count == 3


RACK = "queuectl.dev/podset-slice-required-topology"
SLICES = {RACK: "rack", "queuectl.dev/podset-slice-size": "2"}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (elastic(annotations={OURS: "yes"}), "'yes' is neither \"true\" nor \"false\""),
        (elastic(completionMode="NonIndexed"), "spec.completionMode must be Indexed"),
        (elastic(parallelism=3), "spec.completions is 4 and spec.parallelism is 3"),
        (elastic(1001), "spec.parallelism: 1001 is more than 1000 pods"),
        (elastic(podFailurePolicy=None), "no rule with action Ignore"),
        (elastic(successPolicy=None), "spec.successPolicy has no rule that the first 2 indexes can fulfill"),
        (elastic(successPolicy={"rules": [{"succeededIndexes": "0-2"}]}), "can fulfill"),
        (elastic(successPolicy={"rules": [{"succeededCount": 3}]}), "can fulfill"),
        (elastic(annotations={"queuectl.dev/array": "true"}), "an elastic Job cannot be an array"),
        (elastic(least=5), "'5' is not a number from 1 to 4"),
        (elastic(per_pod={"queuectl.dev/min-count": "3"}), "job-min-parallelism is '2' but min-count of its pods is '3'"),
        (elastic(least=None, per_pod={"queuectl.dev/min-count": "x"}), "spec.template.metadata.annotations"),
        (elastic(per_pod=SLICES), "remove the topology of slices"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_an_elastic_job_cannot_keep_is_refused(document: Document, sentence: str) -> None:
    assert sentence in (read_job(document).error or "")


@pytest.mark.parametrize(
    "rule",
    [
        {"succeededIndexes": "0"},
        {"succeededCount": 2},
        {"succeededIndexes": "0-3", "succeededCount": 2},
    ],
)
def test_its_success_can_be_that_of_some_of_its_first_pods(rule: dict[str, Any]) -> None:
    others = {"succeededIndexes": "0-3"}
    assert read_job(elastic(successPolicy={"rules": [others, rule]})).error is None


def test_a_start_writes_the_number_of_pods_in_the_gang_and_a_stop_removes_it() -> None:
    record = read_job(elastic())
    start = KINDS["Job"].start_patch(record, 1, "s")
    assert start["metadata"]["annotations"][BASE] == "2"
    assert "parallelism" not in start["spec"]
    running = read_job(elastic(annotations={BASE: "2"}, suspend=False))
    stop = KINDS["Job"].stop_patch(running, 1, "s")
    assert stop["metadata"]["annotations"][BASE] is None


def test_ended_indexes_of_the_gang_are_not_expected() -> None:
    status = {"completedIndexes": "1,3", "failedIndexes": ""}
    assert read_job({**elastic(suspend=False), "status": status}).expected == (("main", 1),)
    assert read_job({**elastic(), "status": status}).pods == 1
    fewer = elastic(1, least=None, annotations={BASE: "2"}, suspend=False)
    assert read_job(fewer).expected == (("main", 1),), "its user took pods from it"


# ---- the mirror


def pod(name: str, rank: int, version: int = 1, **changes: Any) -> PodRecord:
    given: dict[str, Any] = {"owner": "u", "owner_kind": "Job", "podset": "main", "gated": True, "attempt": 1, "workload": "u"}  # fmt: skip
    return PodRecord("default", name, name, version, rank=rank, **{**given, **changes})


def see(seen: Mirror, *records: Record) -> set[str]:
    return seen.apply([Upserted(record) for record in records])


def mirror(*records: Record) -> Mirror:
    seen = Mirror({"jobs": "Job"})
    see(seen, *records)
    return seen


SUSPENDED = read_job(elastic())
ENTRY = Entry(
    uid="u",
    kind="Job",
    namespace="default",
    name="train",
    state=State.PENDING,
    queue="main",
    cluster_queue="pool",
    priority=0,
    gpus=Fraction(1),
    pods=1,
    attempt=0,
    queued_at=1.0,
    since=1.0,
    reason=Reason(Code.QUEUED),
    version=1,
)
RESUMED = replace(SUSPENDED, suspended=False, attempt=1, version=2)
THIRD, FOURTH = (index_uid("u", number) for number in (2, 3))


def test_the_job_and_each_index_above_its_gang_are_jobs() -> None:
    seen = mirror(SUSPENDED)
    assert {uid: job.name for uid, job in seen.jobs.items()} == {
        "u": "train",
        THIRD: "train_2",
        FOURTH: "train_3",
    }
    third = seen.jobs[THIRD]
    assert (third.pods, third.attempt, third.of_pods) == (1, 0, True)
    assert growth_of(third) == Growth("u", 2)
    assert growth_of(seen.jobs["u"]) is None


@pytest.mark.parametrize("pods_first", [False, True])
def test_a_pod_belongs_to_the_gang_or_to_its_index_in_either_order_of_arrival(
    pods_first: bool,
) -> None:
    records: list[Record] = [RESUMED, *(pod(f"p{rank}", rank) for rank in range(4))]
    seen = mirror(*(reversed(records) if pods_first else records))
    assert {one.name for one in seen.pods_of(seen.jobs["u"])} == {"p0", "p1"}
    (third,) = seen.pods_of(seen.jobs[THIRD])
    assert (third.name, third.attempt) == ("p2", 0), (
        "the attempt of its template is that of the gang"
    )
    assert not seen.jobs[THIRD].awaits
    see(seen, pod("p2", 2, 2, gated=False, attempt=5, workload=THIRD))
    assert (seen.jobs[THIRD].suspended, seen.jobs[THIRD].attempt) == (False, 5)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (SUSPENDED, "the gang of the first 2 pods does not run"),
        (replace(RESUMED, preempt_requested="soon"), "the gang of the first 2 pods does not run"),
        (RESUMED, "its controller has not created the pod of index 3"),
        (read_job(elastic(3, suspend=False)), "spec.parallelism is 3: the Job has no index 3"),
        (read_job(elastic(least=4)), "index 3 is one of the first 4 pods, which start as one gang"),
    ],
)
def test_an_index_above_the_gang_waits_with_a_reason(job: JobRecord, sentence: str) -> None:
    seen = mirror(SUSPENDED)
    see(seen, replace(job, version=9))
    assert sentence in seen.jobs[FOURTH].awaits


def entry(uid: str, state: State = State.PENDING) -> Entry:
    name = f"train_{uid}"
    return replace(ENTRY, uid=uid, name=name, state=state)


@pytest.mark.parametrize("ledger_first", [False, True])
def test_a_new_process_keeps_the_indexes_of_the_ledger(ledger_first: bool) -> None:
    smaller = replace(read_job(elastic(3, suspend=False)), version=3)
    seen = Mirror({"jobs": "Job"})
    if not ledger_first:
        see(seen, smaller)
        assert FOURTH not in seen.jobs
    seen.recognize([entry(FOURTH)], read=True, all_of_them=True)
    if ledger_first:
        see(seen, smaller)
    assert "the Job has no index 3" in seen.jobs[FOURTH].awaits


def test_an_index_ends_with_its_pod_or_with_the_job() -> None:
    seen = mirror(RESUMED, pod("p2", 2, gated=False, workload=THIRD))
    see(seen, pod("p2", 2, 2, gated=False, workload=THIRD, phase=PodPhase.SUCCEEDED))
    assert seen.jobs[THIRD].outcome is JobOutcome.SUCCEEDED
    assert seen.jobs[FOURTH].outcome is None
    see(seen, replace(RESUMED, version=3, outcome=JobOutcome.SUCCEEDED))
    assert seen.jobs[FOURTH].outcome is JobOutcome.SUCCEEDED


def test_a_pod_that_was_added_ends_with_its_gang_and_not_at_another_limit() -> None:
    """The gang is activated after its limit; the earlier attempts of its added pods still count."""
    released: dict[str, Any] = {"gated": False, "workload": THIRD, "node": "n1"}
    limited = replace(RESUMED, max_execution=60.0)
    seen = mirror(limited, pod("p2", 2, **released, phase=PodPhase.RUNNING, ready=True))
    job, where = seen.jobs[THIRD], placed(gang("u", *seen.jobs[THIRD].podsets), {"n1": 1})
    runs = replace(entry(THIRD, State.RUNNING), attempt=1, placement=where, started_at=1.0)
    runs = replace(runs, past_seconds=100.0)
    assert alarm_of(runs, job, Rules().pods_ready, 9.0) is None
    terms = ObservationRules(Rules(), 300.0, {})
    events = list(observe(runs, job, seen.pods_of(job), 9.0, terms))
    assert [event for event in events if isinstance(event, Evict)] == []


# ---- snapshots


@pytest.mark.parametrize(
    ("state", "waits"),
    [(State.HELD, True), (State.BACKOFF, True), (State.EVICTING, True), (State.RUNNING, False)],
)
def test_a_rank_is_not_planned_before_one_below_it_that_is_not_planned(
    state: State, waits: bool
) -> None:
    ledger = Ledger([entry(THIRD, state), entry("other.001", State.HELD)])
    for rank, held in ((1, False), (3, waits)):
        workload = replace(gang(index_uid("u", rank), podset()), growth=Growth("u", rank))
        given = Pending(workload)
        found = after_lower_ranks(given, stalled_ranks(ledger))
        assert (found is not given) == held
        assert (found.blocked is not None) == held


@pytest.mark.parametrize(
    ("state", "waits"),
    [(State.HELD, True), (State.EVICTING, True), (State.STARTING, False), (State.RUNNING, False)],
)
def test_a_pod_is_not_added_to_a_gang_that_stops(state: State, waits: bool) -> None:
    ledger = Ledger([entry("u", state), entry(THIRD, State.HELD)])
    found = after_lower_ranks(
        Pending(replace(gang(THIRD, podset()), growth=Growth("u", 2))), stalled_ranks(ledger)
    )
    expected = Reason(Code.WAITING_FOR_PODS, f"its gang default/train_u is {state}")
    assert (found.blocked == expected) is waits


@pytest.mark.parametrize(
    ("base", "plan", "starts"),
    [
        (State.RUNNING, Plan(), True),
        (State.EVICTING, Plan(), False),
        (State.RUNNING, Plan(evicted=(Eviction("u", Code.NODE_FAILURES, "lost"),)), False),
        (State.RUNNING, Plan(evicted=(Eviction("v", Code.NODE_FAILURES, "lost"),)), True),
    ],
    ids=["its gang runs", "its gang stops", "the plan stops its gang", "it stops another gang"],
)
def test_a_plan_adds_no_pod_to_a_gang_that_stops(base: State, plan: Plan, starts: bool) -> None:
    ledger = Ledger([entry("u", base), replace(entry(THIRD), cluster_queue="")])
    seen = mirror(RESUMED, pod("p2", 2))
    workload = replace(gang(THIRD, *seen.jobs[THIRD].podsets), queue="main")
    snapshot = Snapshot(9.0, Fleet(()), QueueConfig(), pending=(Pending(workload),))
    admitted = (Admission(THIRD, Placement(())),)
    changes = Decider(seen, ledger).changes(snapshot, replace(plan, admitted=admitted), 9.0)
    assert (THIRD in [change.after.uid for change in changes]) is starts


@pytest.mark.parametrize(
    ("queued", "effective"),
    [((5.0, 6.0, 7.0), (5.0, 6.0, 7.0)), ((9.0, 5.0, 6.0), (9.0, 9.0, 9.0)), ((5.0, 9.0, 6.0), (5.0, 9.0, 9.0))],
)  # fmt: skip
def test_a_rank_is_not_queued_before_a_lower_one_whose_pod_is_newer(
    queued: tuple[float, ...], effective: tuple[float, ...]
) -> None:
    """A lower rank can be newer: its user made the gang smaller than it has started."""
    ranks = [
        Pending(replace(gang(f"train.{n}", podset()), growth=Growth("train", n), queued_at=at))
        for n, at in enumerate(queued, 1)
    ]
    other = Pending(replace(gang("other", podset()), queued_at=1.0))
    ordered = in_rank_order([ranks[2], other, *ranks[:2]])
    assert [one.workload.uid for one in ordered] == ["train.3", "other", "train.1", "train.2"]
    times = {one.workload.uid: one.workload.queued_at for one in ordered}
    assert times == {"other": 1.0} | {f"train.{n}": at for n, at in enumerate(effective, 1)}


def test_a_pod_is_added_where_it_can_be_one_of_the_gang() -> None:
    """On nodes of the gang's flavor, and in its domain if the topology is required."""
    fleet = Fleet((node("n0", "b/r", gpu=8), node("n1", "b/s", gpu=8)))
    known = config(queue(), flavors=[ResourceFlavor("default", (("model", "h100"),), topology="gpus")])  # fmt: skip
    cases: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
        ({"required": "rack"}, {"block": "b", "rack": "r"}),
        ({"preferred": "rack"}, {}),
        ({}, {}),
    )
    for topology, domain in cases:  # fmt: skip
        workload = gang("u", podset(gpu=8, select={"zone": "z"}, **topology))
        (found,) = podsets_joining(workload.podsets, placed(workload, {"n0": 1}), known, fleet)
        assert dict(found.shape.rules.selector) == {"model": "h100", "zone": "z", **domain}
        own = workload.podsets[0].shape.rules
        grown = replace(workload, podsets=(found,), growth=Growth("u", 1, own))
        assert grown.requested == workload.requested, "its job does not state the rules of the gang"


@pytest.mark.parametrize("to", [{"n1": 1}, {}], ids=["it is repaired elsewhere", "it stops"])
def test_a_pod_that_waits_follows_its_gang_to_another_domain(to: Mapping[str, int]) -> None:
    rack = {"queuectl.dev/podset-required-topology": "rack"}
    job = read_job(elastic(3, 1, per_pod=rack, suspend=False, successPolicy={"rules": [{"succeededCount": 1}]}))  # fmt: skip
    seen = mirror(job, pod("p1", 1), pod("p2", 2), NamespaceRecord("default", 1))
    see(seen, *(NodeRecord(node(f"n{n}", f"b/r{n}", gpu=1), 1) for n in range(2)))
    base = replace(entry("u", State.RUNNING), attempt=1, started_at=1.0)
    second = index_uid("u", 1)
    ledger = Ledger([base, entry(second)])
    builder = SnapshotBuilder(seen, ledger, OtherPodUsage(seen, ledger))
    flavors = [ResourceFlavor("default", (), topology="gpus")]
    known = replace(config(queue("pool"), flavors=flavors), local_queues={("default", "main"): LocalQueue("default", "main", "pool")})  # fmt: skip

    def racks() -> list[str | None]:
        found = builder.freeze(known, 9.0, SolverLimits())
        selectors = (dict(one.workload.podsets[0].shape.rules.selector) for one in found.pending)
        return [selector.get("rack") for selector in selectors]

    def moves(nodes: Mapping[str, int]) -> None:
        where = placed(gang("u", *job.podsets), dict(nodes)) if nodes else None
        ledger.apply([EntryChange(base, replace(base, placement=where), 9.0)])

    moves({"n0": 1})
    assert racks() == ["r0"]
    moves(to)
    assert racks() == (["r1"] if to else [None])


def test_plans_know_that_a_pod_that_was_added_ends_with_its_gang() -> None:
    job = read_job(elastic(3, 1, suspend=False, successPolicy={"rules": [{"succeededCount": 1}]}))
    seen = mirror(replace(job, max_execution=60.0), pod("p1", 1), NamespaceRecord("default", 1))
    see(seen, *(NodeRecord(node(f"n{n}", gpu=1), 1) for n in range(2)))
    second, where = index_uid("u", 1), placed(gang("u", *job.podsets), {"n0": 1})
    ledger = Ledger(
        replace(entry(uid, State.RUNNING), attempt=1, started_at=at, placement=where)
        for uid, at in (("u", 1.0), (second, 31.0))
    )
    builder = SnapshotBuilder(seen, ledger, OtherPodUsage(seen, ledger))
    known = replace(config(queue("pool")), local_queues={("default", "main"): LocalQueue("default", "main", "pool")})  # fmt: skip
    for now in (40.0, 50.0):
        found = builder.freeze(known, now, SolverLimits()).admitted
        assert {g.workload.uid: (g.ends_at, g.end_enforced) for g in found} == {
            "u": (61.0, True),
            second: (61.0, True),
        }


def test_a_pod_that_waits_runs_for_the_rest_of_its_gang_in_whole_minutes() -> None:
    job = read_job(elastic(3, 1, suspend=False, successPolicy={"rules": [{"succeededCount": 1}]}))
    seen = mirror(replace(job, max_execution=600.0), pod("p1", 1), NamespaceRecord("default", 1))
    see(seen, *(NodeRecord(node(f"n{n}", gpu=1), 1) for n in range(2)))
    where = placed(gang("u", *job.podsets), {"n0": 1})
    base = replace(entry("u", State.RUNNING), attempt=1, started_at=1.0, placement=where)
    ledger = Ledger([base, entry(index_uid("u", 1))])
    builder = SnapshotBuilder(seen, ledger, OtherPodUsage(seen, ledger))
    known = replace(config(queue("pool")), local_queues={("default", "main"): LocalQueue("default", "main", "pool")})  # fmt: skip

    def rest(now: float) -> Pending:
        (found,) = builder.freeze(known, now, SolverLimits()).pending
        return found

    assert rest(9.0).workload.duration == Duration(600.0, enforced=True)
    found = rest(62.0)
    assert found.workload.duration == Duration(540.0, enforced=True)
    assert rest(110.0) is found
    assert rest(599.0).workload.duration == Duration(60.0, enforced=True)


def test_a_pod_that_is_evicted_keeps_no_place_in_the_queue() -> None:
    """Its gang keeps its place when it is evicted itself."""
    job = read_job(elastic(3, 1, suspend=False, successPolicy={"rules": [{"succeededCount": 1}]}))
    seen = mirror(job, pod("p1", 1), pod("p2", 2), NamespaceRecord("default", 1))
    see(seen, *(NodeRecord(node(f"n{n}", gpu=1), 1) for n in range(2)))
    second = index_uid("u", 1)
    evicting: dict[str, Any] = {"state": State.EVICTING, "attempt": 1, "reason": Reason(Code.PREEMPTED)}  # fmt: skip
    placement = placed(gang("u", *job.podsets), {"n0": 1})
    ledger = Ledger(
        replace(entry(uid), placement=placement, started_at=1.0, **evicting)
        for uid in ("u", second)
    )
    builder = SnapshotBuilder(seen, ledger, OtherPodUsage(seen, ledger))
    known = replace(config(queue("pool")), local_queues={("default", "main"): LocalQueue("default", "main", "pool")})  # fmt: skip
    found = builder.freeze(known, 9.0, SolverLimits()).admitted
    assert {g.workload.uid: (g.leaving, g.returns) for g in found} == {
        "u": (True, True),
        second: (True, False),
    }


# ---- files


def test_a_plan_of_files_starts_the_gang_and_then_adds_pods() -> None:
    assert planned(3, elastic()) == (["train"], [], [])
    gate = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
    pods = [pod_of_index("train", n, {"nodeName": f"n{n}"} if n < 2 else gate) for n in range(4)]
    runs = elastic(suspend=False, annotations={BASE: "2"})
    assert planned(3, runs, *pods) == (["train_2"], ["train_3"], ["train"])
