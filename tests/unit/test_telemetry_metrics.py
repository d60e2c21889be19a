"""Metrics for Prometheus: names, labels and numbers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from queuectl.domain.accounting import Free
from queuectl.domain.commands import Action
from queuectl.domain.estimates import Arrival
from queuectl.domain.events import (
    Admit,
    Adopt,
    Drained,
    Ended,
    Event,
    Evict,
    NoteAdded,
    PodsReady,
    RequiredWriteRefused,
    WriteAccepted,
)
from queuectl.domain.fleet import Fleet
from queuectl.domain.followed import FollowedReport, FollowedSource
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry, EntryChange, Purpose, State
from queuectl.domain.mig import MigPhase, MigResult
from queuectl.domain.node_health import Straggler
from queuectl.domain.plan import Cost, Plan, Preemption, Proof, SlipCause
from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.spending import report
from queuectl.domain.usage_reports import PARTS, GpuParts
from queuectl.domain.utilization import SourceFault, UseState
from queuectl.objects.configuration.queue_config import build
from queuectl.planner.cache import PlannerCache
from queuectl.planner.order.pending_gangs import pending_gangs
from queuectl.reports.fragmentation import DomainSpread
from queuectl.state.estimates import EstimateError
from queuectl.telemetry.fleet import UseGauges
from queuectl.telemetry.metrics import (
    CycleStage,
    DiscardReason,
    IdleResult,
    MetricsRecorder,
    WriteResult,
)
from tests.api.support import LIVES, PLACED, PREEMPT, QUOTA, RESERVE, asked, job, live_through
from tests.planner.build import gang
from tests.planner.test_budgets import budget, runs, spending
from tests.support.metricnames import DOCS, documented
from tests.unit.test_telemetry_quota import documents, holdings, node

HOLD, RELEASE = asked(Action.HOLD), asked(Action.RELEASE)

# The labels are fixed; a workload, pod or node is never one.
LABELS = {
    "receiver",
    "cluster_queue", "local_queue", "namespace", "cohort", "flavor", "resource", "priority_class", "reason", "status",
    "stage", "result", "kind", "name", "parent_cohort", "root_cohort", "version", "trusts", "level", "part", "source", "within",
    "cause", "phase", "budget", "boundary",
}  # fmt: skip

# Kueue's names, under our prefix, where the meaning is Kueue's.
_QUEUE, _CLASS, _LOCAL = (
    {"cluster_queue"},
    {"cluster_queue", "priority_class"},
    {"name", "namespace"},
)
_FLAVOR = {"cohort", "cluster_queue", "flavor", "resource"}
LIKE_KUEUE = {
    "admission_checks_wait_time_seconds": _CLASS,
    "admission_attempt_duration_seconds": {"result"},
    "admission_attempts_total": {"result"},
    "admission_wait_time_seconds": _CLASS,
    "admitted_active_workloads": _QUEUE,
    "admitted_until_ready_wait_time_seconds": _CLASS,
    "admitted_workloads_total": _CLASS,
    "cluster_queue_borrowing_limit": _FLAVOR,
    "cluster_queue_info": {"cluster_queue", "parent_cohort", "root_cohort"},
    "cluster_queue_lending_limit": _FLAVOR,
    "cluster_queue_nominal_quota": _FLAVOR,
    "cluster_queue_resource_pending": {"cluster_queue", "resource"},
    "cluster_queue_resource_reservation": _FLAVOR,
    "cluster_queue_resource_usage": _FLAVOR,
    "cluster_queue_status": {"cluster_queue", "status"},
    "cluster_queue_weighted_share": {"cluster_queue", "cohort"},
    "cohort_info": {"cohort", "parent_cohort", "root_cohort"},
    "build_info": {"version"},
    "cohort_subtree_admitted_active_workloads": {"cohort"},
    "cohort_subtree_admitted_workloads_total": {"cohort"},
    "cohort_subtree_quota": {"cohort", "flavor", "resource"},
    "cohort_subtree_resource_reservations": {"cohort", "flavor", "resource"},
    "cohort_weighted_share": {"cohort"},
    "evicted_workloads_once_total": _CLASS | {"reason"},
    "evicted_workloads_total": _CLASS | {"reason"},
    "execution_time_seconds": _CLASS,
    "finished_workloads": _QUEUE,
    "finished_workloads_total": _CLASS,
    "local_queue_admission_checks_wait_time_seconds": _LOCAL | {"priority_class"},
    "local_queue_admission_fair_sharing_usage": _LOCAL | _QUEUE,
    "local_queue_admission_wait_time_seconds": _LOCAL | {"priority_class"},
    "local_queue_admitted_active_workloads": _LOCAL,
    "local_queue_admitted_until_ready_wait_time_seconds": _LOCAL | {"priority_class"},
    "local_queue_admitted_workloads_total": _LOCAL | {"priority_class"},
    "local_queue_evicted_workloads_total": _LOCAL | {"reason", "priority_class"},
    "local_queue_execution_time_seconds": _LOCAL | {"priority_class"},
    "local_queue_finished_workloads": _LOCAL,
    "local_queue_finished_workloads_total": _LOCAL | {"priority_class"},
    "local_queue_pending_workloads": _LOCAL | {"status"},
    "local_queue_quota_reserved_wait_time_seconds": _LOCAL | {"priority_class"},
    "local_queue_quota_reserved_workloads_total": _LOCAL | {"priority_class"},
    "local_queue_ready_wait_time_seconds": _LOCAL | {"priority_class"},
    "local_queue_reserving_active_workloads": _LOCAL,
    "local_queue_resource_reservation": _LOCAL | {"flavor", "resource"},
    "local_queue_resource_usage": _LOCAL | {"flavor", "resource"},
    "local_queue_status": _LOCAL,
    "local_queue_unadmitted_workloads": _LOCAL | _QUEUE | {"reason"},
    "pending_scheduling_hashes": _QUEUE | {"status"},
    "pending_workloads": _QUEUE | {"status"},
    "pod_scheduling_gate_removal_seconds": _QUEUE | {"name"},
    "pods_ready_to_evicted_time_seconds": _QUEUE | {"reason"},
    "preempted_workloads_total": {"reason"},
    "quota_reserved_wait_time_seconds": _CLASS,
    "quota_reserved_workloads_total": _CLASS,
    "ready_wait_time_seconds": _CLASS,
    "reserving_active_workloads": _QUEUE,
    "unadmitted_workloads": _QUEUE | {"reason"},
    "workload_creation_latency_seconds": {"kind"},
    "workload_eviction_latency_seconds": _CLASS,
}


# Steps of Kueue's own search, and a kind of job that queuectl does not have: docs/reference/metrics.md lists them.
NOT_HERE = {
    "admission_cycle_preemption_skips",
    "preemption_target_recomputations_total",
    "replaced_workload_slices_total",
}


def busy() -> MetricsRecorder:
    """Metrics after something of everything has happened."""
    metrics = MetricsRecorder()
    standing = [live_through(job(name), *life)[-1].after for name, life in LIVES.items()]
    metrics.loaded(standing, holdings(*standing, nodes=[node("a")]))
    for stage in CycleStage:
        metrics.stage_took(stage, 0.1)
    metrics.planned(Plan())
    metrics.attempted(0.01, admitted=False)
    for reason in DiscardReason:
        metrics.discarded(reason)
    metrics.leading(3)
    looked_at(metrics, "pending")
    metrics.gates.removed("team-a", 0.3)
    idle = asyncio.new_event_loop()
    idle.close()
    metrics.sizes.watch(idle, {"pods": lambda: 2})
    for name, life in LIVES.items():
        metrics.committed(live_through(job(name), *life), lambda _: "high")
    stuck = RequiredWriteRefused(Purpose.STOP, "a webhook denies it")
    metrics.committed(live_through(job("stuck"), *LIVES["evicting"], stuck))
    cost = Cost(priority=0, lost_work=120, gpus=Fraction(8))
    metrics.preempted([Preemption("a", "b", cost)], lambda _: "team-a")
    local = LocalQueue("team", "training", "team-a")
    metrics.used_lately({("team", "training"): 8.0}, {("team", "training"): local})
    metrics.node_health.evaluated({})
    metrics.spans.exported(1)
    metrics.mig.active([MigPhase.EMPTYING])
    metrics.mig.ended(MigResult.SUCCEEDED)
    metrics.node_health.compared([Straggler("u1", 1, "team-a", "p1", "n1", "GPU 0", 990.0, 1980.0)])
    metrics.utilization.evaluated(
        {SourceFault.STALE: 1}, [UseGauges("team-a", UseState.IDLE, 8, 0.0)], 0.2
    )
    metrics.utilization.trust("scrape jobs dcgm-exporter")
    metrics.fleet.free({"h100": Free(capacity=64, free=16, fragmented=4.5, stranded=2)})
    metrics.fleet.unmanaged({"team-a": Fraction(3)})
    metrics.fleet.parts(GpuParts(effective=Fraction(1), idle=Fraction(2)))
    metrics.followed.show(FollowedReport(sources=(FollowedSource("cohorts.x", "v1", 2),)))
    metrics.budgets.show(report(spending(budget(), [], [runs("r", 2, None)], 9.0)))
    metrics.fleet.started({"rack": DomainSpread(used=3, least=2)})
    metrics.reserved(Snapshot(0.0, Fleet(()), QueueConfig()), ())
    metrics.estimates.observe([("team-a", 600.0)])
    metrics.estimates.started([EstimateError("team-a", 30.0, Arrival.BY_P90)])
    metrics.durations.finished([("Learned", 60.0, True)])
    metrics.wrote("Job", WriteResult.OK, 0.02)
    metrics.watched("pods", 3, 1000.0)
    metrics.relisted("pods")
    metrics.callers.note("ana", "10.0.0.1")
    metrics.callers.closed("head")
    metrics.notifications.meet(["hook"])
    return metrics


def looked_at(metrics: MetricsRecorder, *lives: str) -> None:
    """A plan considered gangs of one kind, in this order, and these lives led to their current states."""
    entries = {
        str(n): live_through(job(name), *LIVES[name])[-1].after for n, name in enumerate(lives)
    }
    workloads = (replace(gang(uid), namespace="team-a", queue="default") for uid in entries)
    pending = tuple(map(Pending, workloads))
    snapshot = Snapshot(0.0, Fleet(()), build(documents(), 1), pending=pending)
    metrics.pending_classes.planned(pending_gangs(snapshot, PlannerCache()), entries.get)


def families(metrics: MetricsRecorder) -> Iterator[Metric]:
    text = generate_latest(metrics.registry).decode()
    return (f for f in text_string_to_metric_families(text) if not f.name.startswith("process_"))


def value(metrics: MetricsRecorder, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"queuectl_{name}", labels)


class TestExposition:
    def test_every_name_has_our_prefix_a_text_and_a_unit_where_it_has_one(self) -> None:
        for family in families(busy()):
            assert family.name.startswith("queuectl_")
            assert family.documentation.endswith(".")
            if family.type == "histogram":
                assert family.name.endswith("_seconds")

    def test_only_the_agreed_labels_are_used(self) -> None:
        for family in families(busy()):
            for sample in family.samples:
                assert set(sample.labels) - {"le"} <= LABELS, sample.name

    def test_kueues_names_carry_at_least_kueues_labels(self) -> None:
        samples = [s for family in families(busy()) for s in family.samples]
        for name, labels in LIKE_KUEUE.items():
            mine = [s for s in samples if s.name in (f"queuectl_{name}", f"queuectl_{name}_count")]
            assert mine, name
            assert all(labels <= set(s.labels) for s in mine), name

    def test_those_of_kueue_that_are_not_here_are_named(self) -> None:
        stated = DOCS.read_text()
        assert all(f"`{name}`" in stated for name in NOT_HERE)
        assert not NOT_HERE & LIKE_KUEUE.keys()

    def test_each_stage_of_a_cycle_has_a_series(self) -> None:
        metrics = busy()
        name = "cycle_stage_duration_seconds_count"
        assert [value(metrics, name, stage=stage) for stage in CycleStage] == [1.0] * len(
            CycleStage
        )

    @pytest.mark.parametrize(
        ("name", "bounds"),
        [
            ("cycle_stage_duration_seconds", {"0.05", "0.1", "0.15"}),  # the planner's targets
            ("admitted_until_ready_wait_time_seconds", {"5.0", "1800.0"}),  # the start timeout
            ("admission_wait_time_seconds", {"60.0", "3600.0", "604800.0"}),
        ],
    )
    def test_buckets_hold_the_bounds_people_ask_about(self, name: str, bounds: set[str]) -> None:
        (family,) = (f for f in families(busy()) if f.name == f"queuectl_{name}")
        assert bounds <= {s.labels["le"] for s in family.samples if "le" in s.labels}

    def test_two_controllers_in_one_process_do_not_share_numbers(self) -> None:
        one, other = MetricsRecorder(), MetricsRecorder()
        one.discarded(DiscardReason.CUT)
        assert value(one, "discarded_plans_total", reason="cut") == 1.0
        assert value(other, "discarded_plans_total", reason="cut") == 0.0

    async def test_tasks_threads_and_objects_are_counted_when_they_are_read(self) -> None:
        metrics, pods = MetricsRecorder(), ["a"]
        done, ended = asyncio.Event(), threading.Event()
        metrics.sizes.watch(asyncio.get_running_loop(), {"pods": lambda: len(pods)})

        async def counted(name: str, **labels: str) -> float:
            # In a thread, as /metrics does.
            found = await asyncio.to_thread(value, metrics, name, **labels)
            assert found is not None
            return found

        tasks, threads = await counted("tasks"), await counted("threads")
        async with asyncio.TaskGroup() as group:
            group.create_task(done.wait())
            waiting = threading.Thread(target=ended.wait)
            waiting.start()
            pods.append("b")
            assert await counted("tasks") == tasks + 1
            assert await counted("threads") > threads
            assert await counted("kept_objects", resource="pods") == 2
            done.set()
            ended.set()
        waiting.join()
        assert await counted("tasks") == tasks

    def test_the_documentation_lists_exactly_what_there_is(self) -> None:
        stated = {(name, kind, labels) for name, (kind, labels) in documented().items()}
        metrics = busy()
        exported = set()
        for family in families(metrics):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = frozenset(family.samples[0].labels) - {"le"}
            exported.add((name, family.type, labels))
        assert stated == exported


class TestFleet:
    def test_gpus_of_a_flavor_are_those_of_the_last_sample(self) -> None:
        metrics = busy()
        metrics.fleet.free({"a100": Free(capacity=8, free=8, fragmented=0.0, stranded=0)})
        assert value(metrics, "fleet_free_gpus", flavor="a100") == 8
        assert value(metrics, "fleet_free_gpus", flavor="h100") is None

    def test_unmanaged_gpus_are_those_of_the_last_sample(self) -> None:
        metrics = busy()
        metrics.fleet.unmanaged({"team-b": Fraction(8)})
        assert value(metrics, "unmanaged_gpus", namespace="team-b") == 8
        assert value(metrics, "unmanaged_gpus", namespace="team-a") is None

    def test_each_part_of_the_gpus_is_a_series(self) -> None:
        metrics = busy()
        parts = {part: value(metrics, "cluster_gpus", part=part) for part in PARTS}
        assert parts == {**dict.fromkeys(PARTS, 0.0), "effective": 1.0, "idle": 2.0}
        metrics.fleet.free({})
        assert value(metrics, "cluster_gpus", part="effective") == 1.0
        metrics.following()
        assert value(metrics, "cluster_gpus", part="effective") is None

    def test_they_are_not_ours_to_show_once_another_leads(self) -> None:
        metrics = busy()
        metrics.following()
        assert value(metrics, "unmanaged_gpus", namespace="team-a") is None
        assert value(metrics, "fleet_fragmented_gpus", flavor="h100") is None

    def test_spread_adds_up_by_level(self) -> None:
        metrics = busy()
        metrics.fleet.started({"rack": DomainSpread(2, 1), "block": DomainSpread(1, 1)})
        assert value(metrics, "admitted_domains_total", level="rack") == 5
        assert value(metrics, "admitted_domains_least_total", level="rack") == 3
        assert value(metrics, "admitted_domains_total", level="block") == 1


class TestBirth:
    """Metrics of alerts exist with the value 0 before the first event: from no value to 1 is not an increase for Prometheus."""

    @pytest.mark.parametrize("reason", list(DiscardReason))
    def test_of_discarded_plans(self, reason: DiscardReason) -> None:
        assert value(MetricsRecorder(), "discarded_plans_total", reason=reason) == 0

    @pytest.mark.parametrize("result", [r for r in WriteResult if r is not WriteResult.OK])
    def test_of_writes_that_fail(self, result: WriteResult) -> None:
        metrics = MetricsRecorder()
        metrics.wrote("Pod", WriteResult.OK, 0.01)
        assert value(metrics, "cluster_writes_total", kind="Pod", result=result) == 0

    @pytest.mark.parametrize(
        "reason",
        [
            "Deactivated",
            "RequeuingLimitExceeded",
            "MaximumExecutionTimeExceeded",
            "AdmissionCheckRejected",
        ],
    )
    def test_of_workloads_that_are_deactivated(self, reason: str) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a")))
        labels = {"cluster_queue": "team-a", "reason": reason}
        assert value(metrics, "deactivated_workloads_total", **labels) == 0

    def test_of_preemptions(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a")))
        labels = {"cluster_queue": "team-a", "reason": "InClusterQueue"}
        assert value(metrics, "preempted_workloads_total", **labels) == 0
        assert value(metrics, "lost_gpu_seconds_total", **labels) == 0

    @pytest.mark.parametrize("cause", list(SlipCause))
    def test_of_planned_starts_that_move(self, cause: SlipCause) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a")))
        labels = {"cluster_queue": "team-a", "cause": cause.value}
        assert value(metrics, "planned_start_slips_total", **labels) == 0

    @pytest.mark.parametrize("result", list(Arrival))
    def test_of_starts_compared_with_an_estimate_before_the_first_estimate(
        self, result: Arrival
    ) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a")))
        labels = {"cluster_queue": "team-a", "result": result.value}
        assert value(metrics, "estimated_starts_total", **labels) == 0

    def test_of_preemptions_of_a_queue_that_a_gang_is_given_later_and_not_of_no_queue(self) -> None:
        metrics = MetricsRecorder()
        changes = live_through(job("a"), *LIVES["pending"])
        nowhere = replace(changes[0], after=replace(changes[0].after, cluster_queue=""))
        metrics.committed([nowhere])
        assert (
            value(metrics, "preempted_workloads_total", cluster_queue="", reason="ByHand") is None
        )
        metrics.committed([replace(changes[1], before=nowhere.after)])
        labels = {"cluster_queue": "team-a", "reason": "ByHand"}
        assert value(metrics, "preempted_workloads_total", **labels) == 0

    @pytest.mark.parametrize("result", list(IdleResult))
    def test_the_results_for_idle_gangs_count_known_and_new_workloads(
        self, result: IdleResult
    ) -> None:
        taken_over, new = MetricsRecorder(), MetricsRecorder()
        standing = live_through(job("a"))[-1].after
        taken_over.loaded([standing], holdings(standing, nodes=[node("a")]))
        new.committed(live_through(job("a")))
        labels = {"cluster_queue": "team-a", "result": result}
        for metrics in (taken_over, new):
            assert value(metrics, "idle_reclaim_total", **labels) == 0

    @pytest.mark.parametrize(
        "reason",
        [
            "Preempted",
            "PodsReadyTimeout",
            "PinUnschedulable",
            "PodsLargerThanAsked",
            "StartRefused",
        ],
    )
    def test_of_evictions_of_a_gang_that_starts_and_of_its_queueing_again(
        self, reason: str
    ) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), Admit(PLACED)), lambda _: "high")
        queue = {"cluster_queue": "team-a", "reason": reason}
        for name in ("evicted_workloads_total", "evicted_workloads_once_total"):
            assert value(metrics, name, priority_class="high", **queue) == 0
        assert value(metrics, "requeued_workloads_total", **queue) == 0

    def test_of_gangs_that_could_not_be_decided(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES["running"]))
        labels = {"cluster_queue": "team-a", "status": "active", "reason": "Undecided"}
        assert value(metrics, "pending_workloads", **labels) == 0


class TestIdleReclaim:
    @pytest.mark.parametrize(
        ("event", "result"),
        [
            (NoteAdded(Reason(Code.IDLE_GPUS)), "warned"),
            (NoteAdded(Reason(Code.WOULD_RECLAIM)), "would_reclaim"),
            (Evict(Reason(Code.IDLE_RECLAIMED, "", {"restSeconds": 9})), "always"),
            (Evict(Reason(Code.PREEMPTED, "", {"why": "IdleReclaim"})), "on_demand"),
            (Evict(Reason(Code.PREEMPTED, "", {"why": "InClusterQueue"})), None),
            (Evict(Reason(Code.NODE_FAILURES)), None),
        ],
    )
    def test_each_is_counted_once_and_nothing_else_is(
        self, event: Event, result: str | None
    ) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), Admit(PLACED), PodsReady(), event))
        counted = {
            each.value: value(metrics, "idle_reclaim_total", cluster_queue="team-a", result=each)
            for each in IdleResult
        }
        assert counted == {each.value: float(each.value == result) for each in IdleResult}


class TestDecisions:
    def test_a_life_is_counted_step_by_step(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES["requeued"]), lambda _: "high")
        by = {"cluster_queue": "team-a", "priority_class": "high"}
        assert value(metrics, "admitted_workloads_total", **by) == 1
        assert value(metrics, "admission_wait_time_seconds_sum", **by) == 10
        assert value(metrics, "admitted_until_ready_wait_time_seconds_sum", **by) == 10
        assert value(metrics, "ready_wait_time_seconds_sum", **by) == 20
        assert value(metrics, "evicted_workloads_total", reason="Preempted", **by) == 1
        assert value(metrics, "workload_eviction_latency_seconds_sum", **by) == 10

    def test_requeues_and_deactivations_are_counted_by_reason(self) -> None:
        metrics = MetricsRecorder()
        for name in ("requeued", "deactivated", "held"):
            metrics.committed(live_through(job(name), *LIVES[name]))
        queue = {"cluster_queue": "team-a"}
        assert value(metrics, "requeued_workloads_total", reason="Preempted", **queue) == 1
        assert value(metrics, "deactivated_workloads_total", reason="Deactivated", **queue) == 1
        assert value(metrics, "deactivated_workloads_total", reason="Held", **queue) is None

    @pytest.mark.parametrize(
        ("life", "reason"),
        [
            ((*LIVES["requeued"], HOLD, RELEASE, HOLD, RELEASE), Code.PREEMPTED),
            ((*LIVES["evicting"], HOLD, Drained(), RELEASE), Code.PREEMPTED),
            ((*LIVES["running"], HOLD, Drained(), RELEASE), Code.HELD),
            ((*LIVES["backoff"], HOLD, RELEASE), Code.PODS_READY_TIMEOUT),
            ((*LIVES["backoff"], asked(Action.REQUEUE)), Code.PODS_READY_TIMEOUT),
        ],
        ids=["held later", "held while its pods end", "held", "held in back-off", "requeued early"],
    )
    def test_a_gang_is_requeued_once_for_each_eviction(
        self, life: tuple[Event, ...], reason: Code
    ) -> None:
        metrics = MetricsRecorder()
        changes = live_through(job("a"), *life)
        metrics.committed(changes)
        assert changes[-1].after.state is State.PENDING
        labels = {"cluster_queue": "team-a", "reason": reason}
        assert value(metrics, "requeued_workloads_total", **labels) == 1

    def test_what_ran_and_what_was_evicted_is_timed(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(
            live_through(job("a"), *LIVES["requeued"], Admit(PLACED), Ended(JobOutcome.SUCCEEDED))
        )
        by = {"cluster_queue": "team-a", "priority_class": ""}
        # 20 to the eviction, 10 to the end.
        assert value(metrics, "execution_time_seconds_sum", **by) == 30
        ready = {"cluster_queue": "team-a", "reason": "Preempted"}
        assert value(metrics, "pods_ready_to_evicted_time_seconds_sum", **ready) == 10
        assert value(metrics, "workload_creation_latency_seconds_count", kind="Job") == 1

    def test_quota_is_reserved_once_though_a_lease_kept_it_before_the_start(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES["reserved"], Admit(PLACED)))
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "quota_reserved_workloads_total", **by) == 1
        assert value(metrics, "quota_reserved_wait_time_seconds_sum", **by) == 10
        assert value(metrics, "admission_wait_time_seconds_sum", **by) == 20

    def test_the_wait_for_quota_is_timed_once_though_reservations_are_released(self) -> None:
        metrics = MetricsRecorder()
        released = live_through(job("a"), RESERVE, QUOTA, RESERVE, QUOTA, Admit(PLACED))
        metrics.committed(released)
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "quota_reserved_workloads_total", **by) == 3
        assert value(metrics, "quota_reserved_wait_time_seconds_count", **by) == 1
        assert value(metrics, "quota_reserved_wait_time_seconds_sum", **by) == 10
        assert value(metrics, "admission_wait_time_seconds_sum", **by) == 50

    def test_a_new_leader_does_not_time_the_wait_for_a_reservation_that_it_read(self) -> None:
        _, reserved, *later = live_through(job("a"), RESERVE, QUOTA, RESERVE, QUOTA, Admit(PLACED))
        metrics = MetricsRecorder()
        metrics.loaded([reserved.after], holdings())
        for change in later:
            metrics.committed([change])
            metrics.loaded([change.after], holdings())  # it reads the ledger again
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "quota_reserved_workloads_total", **by) == 2
        assert value(metrics, "quota_reserved_wait_time_seconds_count", **by) is None

    @pytest.mark.parametrize(("life", "seconds"), [("reserved", 10), ("pending", 0)])
    def test_what_a_lease_waited_for_is_timed_and_nothing_where_there_was_none(
        self, life: str, seconds: float
    ) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES[life], Admit(PLACED)))
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "admission_checks_wait_time_seconds_sum", **by) == seconds
        assert value(metrics, "admission_checks_wait_time_seconds_count", **by) == 1

    def test_a_workload_evicted_twice_is_one_workload_that_was_evicted(self) -> None:
        metrics = MetricsRecorder()
        life = LIVES["requeued"]
        metrics.committed(live_through(job("a"), *life, *life))
        by = {"cluster_queue": "team-a", "reason": "Preempted", "priority_class": ""}
        assert value(metrics, "evicted_workloads_total", **by) == 2
        assert value(metrics, "evicted_workloads_once_total", **by) == 1

    def test_a_local_queue_has_the_same_numbers(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES["running"]))
        by = {"name": "default", "namespace": "team-a", "priority_class": ""}
        assert value(metrics, "local_queue_admitted_workloads_total", **by) == 1
        assert value(metrics, "local_queue_admission_wait_time_seconds_sum", **by) == 10
        assert (
            value(
                metrics, "local_queue_admitted_active_workloads", name="default", namespace="team-a"
            )
            == 1
        )

    def test_a_restart_is_a_start_but_no_second_first_wait(self) -> None:
        metrics = MetricsRecorder()
        life = (*LIVES["requeued"], LIVES["starting"][0])
        metrics.committed(live_through(job("a"), *life))
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "admitted_workloads_total", **by) == 2
        assert value(metrics, "admission_wait_time_seconds_count", **by) == 1

    @pytest.mark.parametrize("attempt", [0, 1])
    def test_a_gang_that_already_ran_when_it_was_found_has_no_wait_and_no_start_time(
        self, attempt: int
    ) -> None:
        metrics = MetricsRecorder()
        adopted = Adopt(PLACED, attempt, started_at=-432000.0)
        metrics.committed(live_through(job("a"), adopted, PREEMPT, Drained(), Admit(PLACED)))
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "admitted_workloads_total", **by) == 1
        for name in ("admitted_until_ready", "ready", "admission", "quota_reserved"):
            count = value(metrics, f"{name}_wait_time_seconds_count", **by)
            assert count in (None, 0), name

    def test_the_run_time_of_a_gang_that_already_ran_when_it_was_found_is_timed(self) -> None:
        metrics = MetricsRecorder()
        found = Adopt(PLACED, attempt=0, started_at=1.0)
        metrics.committed(live_through(job("a"), found, Ended(JobOutcome.SUCCEEDED)))
        by = {"cluster_queue": "team-a", "priority_class": ""}
        assert value(metrics, "execution_time_seconds_sum", **by) == 20

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("pending", "WaitingForQuota"), ("reserved", "WaitingForPreemptedWorkloads")],
    )
    def test_a_refusal_is_counted_once_per_new_reason(self, name: str, reason: str) -> None:
        metrics = MetricsRecorder()
        changes = live_through(job("a"), *LIVES[name])
        metrics.committed(changes)
        repeated = EntryChange(changes[-1].after, changes[-1].after, 99.0)
        metrics.committed([repeated])
        labels = {"cluster_queue": "team-a", "reason": reason}
        assert value(metrics, "refused_workloads_total", **labels) == 1

    def test_preemption_counts_for_the_queue_that_gains(self) -> None:
        metrics = MetricsRecorder()
        cost = Cost(priority=0, lost_work=120, gpus=Fraction(8))
        queues = {"victim": "team-a", "winner": "team-b"}
        metrics.preempted([Preemption("victim", "winner", cost)], queues.__getitem__)
        labels = {"cluster_queue": "team-b", "reason": "InClusterQueue"}
        assert value(metrics, "preempted_workloads_total", **labels) == 1
        assert value(metrics, "lost_gpu_seconds_total", **labels) == 120

    def test_plans_are_counted_by_proof(self) -> None:
        metrics = MetricsRecorder()
        metrics.planned(Plan())
        metrics.planned(Plan(proof=Proof.UNDECIDED))
        assert value(metrics, "plans_total", result="optimal") == 1
        assert value(metrics, "plans_total", result="undecided") == 1

    @pytest.mark.parametrize(("admitted", "result"), [(True, "success"), (False, "inadmissible")])
    def test_planning_cycles_are_counted_and_timed_by_result(
        self, admitted: bool, result: str
    ) -> None:
        metrics = MetricsRecorder()
        metrics.attempted(0.02, admitted=admitted)
        assert value(metrics, "admission_attempts_total", result=result) == 1
        assert value(metrics, "admission_attempt_duration_seconds_sum", result=result) == 0.02

    def test_what_broke_in_the_solver_and_what_a_limit_ended_is_counted(self) -> None:
        metrics = MetricsRecorder()
        alarms = ("MODEL_INVALID", "MODEL_INVALID")
        metrics.planned(Plan(alarms=alarms, stats={"solver_unknown": 3}))
        assert value(metrics, "solver_alarms_total") == 2
        assert value(metrics, "solver_unknown_total") == 3


class TestCluster:
    def test_each_stage_has_a_count_before_its_first_time(self) -> None:
        """The alert on unconfirmed writes compares the rate of the last stage with 0."""
        metrics = MetricsRecorder()
        for stage in CycleStage:
            assert value(metrics, "cycle_stage_duration_seconds_count", stage=stage) == 0

    def test_writes_are_counted_by_kind_and_result(self) -> None:
        metrics = MetricsRecorder()
        metrics.wrote("Pod", WriteResult.OK, 0.01)
        metrics.wrote("Pod", WriteResult.CONFLICT, 0.03)
        assert value(metrics, "cluster_writes_total", kind="Pod", result="conflict") == 1
        assert value(metrics, "cluster_write_duration_seconds_sum", kind="Pod") == 0.04

    def test_a_bookmark_shows_that_the_watch_lives(self) -> None:
        metrics = MetricsRecorder()
        metrics.watched("pods", 3, 1000.0)
        metrics.watched("pods", 0, 1060.0)
        assert value(metrics, "watch_events_total", kind="pods") == 3
        assert value(metrics, "watch_last_event_timestamp_seconds", kind="pods") == 1060

    def test_a_kind_that_is_no_longer_watched_has_no_age(self) -> None:
        metrics = MetricsRecorder()
        metrics.watched("pods", 3, 1000.0)
        for _ in range(2):
            metrics.unwatched("pods")
        assert value(metrics, "watch_last_event_timestamp_seconds", kind="pods") is None
        assert value(metrics, "watch_events_total", kind="pods") == 3

    def test_leadership_is_shown(self) -> None:
        metrics = MetricsRecorder()
        metrics.leading(7)
        assert (value(metrics, "leader"), value(metrics, "leader_epoch")) == (1, 7)
        metrics.following()
        assert (value(metrics, "leader"), value(metrics, "leader_epoch")) == (0, 7)
        assert value(metrics, "leaderships_total") == 1

    def test_a_process_that_no_longer_leads_shows_only_the_gauges_of_each_process(self) -> None:
        metrics = busy()
        gauges = {family.name for family in families(metrics) if family.type == "gauge"}
        metrics.following()
        left = {f.name for f in families(metrics) if f.type == "gauge" and f.samples}
        names = {name.removeprefix("queuectl_") for name in left}
        assert {name for name in names if not name.startswith("shadow_")} == OF_EACH_PROCESS
        assert gauges > left


OF_EACH_PROCESS = {
    "api_caller_addresses", "api_callers", "build_info", "careful_start_timestamp_seconds",
    "database_heartbeat_timestamp_seconds", "kept_objects", "leader", "leader_epoch",
    "notification_delay_seconds", "set_aside", "standby_ready", "suspects", "tasks", "threads",
    "watch_last_event_timestamp_seconds",
}  # fmt: skip
"""In shadow mode, the leader records and no process decides, so the gauges of shadow mode stay."""

GAUGES = (
    "unadmitted_workloads", "local_queue_unadmitted_workloads", "cohort_subtree_admitted_active_workloads",
    "pending_workloads", "local_queue_pending_workloads", "workloads", "admitted_active_workloads",
    "local_queue_admitted_active_workloads", "reserving_active_workloads", "outbox_intents", "refused_writes",
    "waiting_for_unavailable_capacity",
)  # fmt: skip


def heads(metrics: MetricsRecorder) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All non-zero head counts."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        if family.name.removeprefix("queuectl_") in GAUGES
        for sample in family.samples
        if sample.value
    }


LIFE = st.sampled_from(sorted(LIVES.values(), key=len))


class TestHeads:
    """The gauges follow every change, and agree at any time with a count from scratch."""

    @pytest.mark.parametrize(
        ("name", "status", "reason"),
        [
            ("pending", "inadmissible", "WaitingForQuota"),
            ("reserved", "active", "WaitingForPreemptedWorkloads"),
            ("requeued", "active", "Queued"),
            ("backoff", "inadmissible", "Backoff"),
        ],
    )
    def test_what_waits_is_pending(self, name: str, status: str, reason: str) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES[name]))
        labels = {"cluster_queue": "team-a", "status": status, "reason": reason}
        assert value(metrics, "pending_workloads", **labels) == 1
        assert value(metrics, "admitted_active_workloads", cluster_queue="team-a") == (
            0 if len(LIVES[name]) > 1 else None
        )

    @pytest.mark.parametrize(
        ("name", "intent"), [("starting", "Start"), ("running", "Start"), ("evicting", "Stop")]
    )
    def test_a_pending_write_is_in_the_outbox(self, name: str, intent: str) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES[name]))
        assert value(metrics, "outbox_intents", kind=intent) == 1

    def test_a_gang_counts_while_it_waits_for_capacity_that_is_out_of_use(self) -> None:
        metrics = MetricsRecorder()
        (waits,) = live_through(job("a"))
        out = Reason(
            Code.TOPOLOGY_PLACEMENT_FAILED, "", {"waitsFor": {"nodes": {"n1": "cordoned"}}}
        )
        entry = replace(waits.after, reason=out)
        metrics.committed([replace(waits, after=entry)])
        assert value(metrics, "waiting_for_unavailable_capacity", cluster_queue="team-a") == 1
        later = replace(entry, reason=Reason(Code.TOPOLOGY_PLACEMENT_FAILED))
        metrics.committed([EntryChange(entry, later, 0.0)])
        assert value(metrics, "waiting_for_unavailable_capacity", cluster_queue="team-a") == 0

    def test_a_refused_write_counts_until_it_is_accepted(self) -> None:
        metrics = MetricsRecorder()
        stuck = (*LIVES["evicting"], RequiredWriteRefused(Purpose.STOP, "a webhook denies it"))
        metrics.committed(live_through(job("a"), *stuck))
        labels = {"cluster_queue": "team-a", "kind": "stop"}
        assert value(metrics, "refused_writes", **labels) == 1
        metrics.committed(live_through(job("a"), *stuck, WriteAccepted())[-1:])
        assert value(metrics, "refused_writes", **labels) == 0

    @pytest.mark.parametrize(
        ("name", "state", "reason"),
        [
            ("pending", "Pending", "WaitingForQuota"),
            ("reserved", "Reserved", "WaitingForPreemptedWorkloads"),
            ("held", "Held", "Held"),
            ("running", None, ""),
        ],
    )
    def test_what_has_no_place_is_unadmitted(
        self, name: str, state: str | None, reason: str
    ) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES[name]))
        for scope in ("", "local_queue_"):
            (family,) = (
                f
                for f in metrics.registry.collect()
                if f.name == f"queuectl_{scope}unadmitted_workloads"
            )
            found = {(s.labels["status"], s.labels["reason"]) for s in family.samples if s.value}
            assert found == ({(state, reason)} if state else set())

    def test_what_runs_counts_in_every_cohort_above_it(self) -> None:
        metrics = MetricsRecorder()
        standing = live_through(job("a"), *LIVES["running"])[-1].after
        metrics.loaded([standing], holdings(standing))
        active = "cohort_subtree_admitted_active_workloads"
        assert [value(metrics, active, cohort=name) for name in ("all", "org")] == [1, 1]

    def test_gangs_that_ask_the_same_are_of_one_kind_as_long_as_one_of_them_waits(self) -> None:
        metrics = MetricsRecorder()
        looked_at(metrics, "pending", "reserved", "running")
        kinds = "pending_scheduling_hashes"
        assert value(metrics, kinds, cluster_queue="team-a", status="inadmissible") is None
        looked_at(metrics, "running", "pending")
        assert value(metrics, kinds, cluster_queue="team-a", status="inadmissible") == 1
        metrics.following()
        assert value(metrics, kinds, cluster_queue="team-a", status="inadmissible") is None

    @given(lives=st.lists(LIFE, max_size=6), steps=st.lists(st.integers(0, 5), max_size=6))
    def test_counting_changes_equals_counting_entries(
        self, lives: list[tuple[Event, ...]], steps: list[int]
    ) -> None:
        followed, counted = MetricsRecorder(), MetricsRecorder()
        followed.loaded([], holdings())
        standing: list[Entry] = []
        for number, life in enumerate(lives):
            changes = live_through(job(f"w{number}"), *life)
            changes = changes[: 1 + (steps[number] if number < len(steps) else 0)]
            for change in changes:
                followed.committed([change])
            standing.append(changes[-1].after)
        counted.loaded([e for e in standing if e.state is not State.FINISHED], holdings())
        assert heads(followed) == heads(counted)

    def test_a_new_leader_starts_its_counters_again(self) -> None:
        metrics = MetricsRecorder()
        metrics.committed(live_through(job("a"), *LIVES["running"]))
        metrics.loaded([], holdings())
        assert heads(metrics) == {}
