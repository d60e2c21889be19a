"""The estimates of a leader: their input from the ledger, and the error of the first estimate of each gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.accounting import Accounting
from queuectl.domain.estimates import (
    Arrival,
    ExpectedRunTime,
    ExpectedStart,
    ExpectedStarts,
    RunTimeSource,
)
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NamespaceRecord, Upserted
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.durations.expectations import ENOUGH, MOST_RUN_TIMES
from queuectl.estimates.expected_starts import expected_starts
from queuectl.estimates.scene import scene_of
from queuectl.planner.cache import PlannerCache
from queuectl.state.durations import LearnedDurations
from queuectl.state.estimates import EstimateError, Estimates
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage

NOW = 1000.0


def config(gpus: int = 16, strict: bool = True) -> QueueConfig:
    groups = (ResourceGroup((GPU,), (FlavorQuotas("h100", {GPU: gpus}),)),)
    strategy = QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
    return QueueConfig(
        cluster_queues={
            "cq": ClusterQueue("cq", groups, strategy, namespace_selector=LabelSelector())
        },
        local_queues={("team", "q"): LocalQueue("team", "q", "cq")},
        flavors={"h100": ResourceFlavor("h100")},
        rules=Rules(accounting=Accounting(user_label="user")),
    )


class Leader:
    """A ClusterQueue of 16 GPUs, what waits and runs in it, and its estimates."""

    def __init__(self) -> None:
        self.mirror = Mirror({"jobs": "Job"})
        self.mirror.apply([Upserted(NamespaceRecord("team", 1, ()))])
        self.ledger = Ledger()
        self.config = config()
        usage = OtherPodUsage(self.mirror, self.ledger)
        self.builder = SnapshotBuilder(self.mirror, self.ledger, usage)
        self.durations = LearnedDurations(self.mirror)
        self.estimates = Estimates(self.mirror, self.durations)

    def add(
        self,
        uid: str,
        state: State = State.PENDING,
        gpus: int = 8,
        user: str = "ann",
        limit: float | None = None,
        **fields: Any,
    ) -> Entry:
        """Gangs that hold GPUs began at 900."""
        pods = (PodSet("w", 1, PodShape(Resources({GPU: gpus}))),)
        labels = (("user", user),)
        job = JobRecord("Job", "team", uid, uid, 1, 0.0, "q", pods, labels=labels)
        job = replace(job, max_execution=limit, suspended=state.waiting)
        self.mirror.apply([Upserted(job)])
        known: dict[str, Any] = {
            "queue": "q",
            "cluster_queue": "cq",
            "gpus": gpus,
            "user": user,
            "queued_at": 0.0,
        }
        if not state.waiting:
            placed = PodSetPlacement("w", (("n1", 1),), {GPU: "h100"})
            known |= {"placement": Placement((placed,)), "started_at": 900.0, "attempt": 1}
        entry = Entry(uid, "Job", "team", uid, state, **(known | fields))
        self.put(entry)
        return entry

    def put(self, entry: Entry) -> None:
        self.ledger.apply([EntryChange(self.ledger.get(entry.uid), entry, NOW)])

    def estimate(self, now: float = NOW) -> ExpectedStarts:
        snapshot = self.builder.freeze(self.config, now, SolverLimits())
        given = self.estimates.current(self.ledger, snapshot)
        scene = scene_of(given.snapshot, PlannerCache(), 100)
        return expected_starts(scene, given.runs(scene.uids))

    def look(self, now: float = NOW) -> dict[str, float]:
        """The medians of the new estimates."""
        found = self.estimate(now)
        self.new = self.estimates.replace(found, self.ledger)
        return {uid: start.median for uid, start in found.by_uid.items()}

    def starts(self, uid: str, at: float, state: State = State.STARTING) -> list[EstimateError]:
        before = self.ledger.get(uid)
        assert before is not None
        after = replace(before, state=state, attempt=before.attempt + 1, started_at=at)
        self.put(after)
        return self.estimates.note([EntryChange(before, after, at)])


def runs(*seconds: float, user: str = "ann", queue: str = "q") -> list[FinishedRun]:
    work = GangProfile("cq", "team", queue, user, "other", 1, 8)
    return [FinishedRun(work, one) for one in seconds]


def test_an_estimate_is_due_for_a_new_gang_that_the_planner_has_refused() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16)
    entry = leader.add("w")
    assert not leader.estimates.lack(leader.ledger), "it can start at once"
    leader.put(replace(entry, reason=Reason(Code.WAITING_FOR_QUOTA, "16 used of 16")))
    assert leader.estimates.lack(leader.ledger)
    leader.look()
    assert not leader.estimates.lack(leader.ledger), "it has an estimate"
    leader.starts("w", NOW)
    assert not leader.estimates.lack(leader.ledger)


def test_an_execution_time_gives_the_latest_end_of_a_gang() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=600.0, past_seconds=50.0)
    leader.add("w", limit=60.0)
    assert leader.look() == {"w": 900.0 + 600.0 - 50.0}


@pytest.mark.parametrize(
    "past",
    [
        runs(*[300] * 5),
        runs(*[300] * 5, user="bob"),  # no run of the user: the queue's are used
        runs(*[700] * 5, user="bob") + runs(*[300] * 5),
        runs(*[300] * 5, queue="other"),  # else those of the ClusterQueue
        runs(*[9000.0] * MOST_RUN_TIMES, *[300.0] * MOST_RUN_TIMES),  # only the last runs count
    ],
)
def test_else_gangs_of_its_user_or_of_its_queue_did(past: list[FinishedRun]) -> None:
    leader = Leader()
    leader.durations.learn(past)
    leader.add("r", State.RUNNING, 16)
    leader.add("w")
    start = leader.estimate().by_uid["w"]
    assert 1000.0 < start.median <= 1200.0
    assert start.p90 is not None
    assert start.median <= start.p90


def test_too_few_finished_gangs_give_no_estimate() -> None:
    leader = Leader()
    leader.durations.learn(runs(200, 300))
    leader.add("r", State.RUNNING, 16)
    leader.add("w")
    assert leader.look() == {}


def test_what_ends_from_now_on_is_learned_from() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16)
    leader.add("w")
    for number in range(ENOUGH):
        uid = f"done-{number}"
        before = leader.add(uid, State.RUNNING, 0)
        over = replace(before, state=State.FINISHED, past_seconds=300.0, finished_at=NOW)
        assert leader.look() == {}
        leader.put(over)
        leader.durations.note([EntryChange(before, over, NOW)], leader.config)
    assert leader.look().keys() == {"w"}


def test_a_run_time_has_its_source_its_quantile_and_the_error_of_those_before() -> None:
    leader = Leader()
    leader.durations.learn(runs(*[100.0 * n for n in range(1, 11)]))
    leader.add("limited", limit=600.0)
    leader.add("learned")
    done = leader.add("done", State.PENDING, 0)
    starts = replace(done, state=State.STARTING, attempt=1, started_at=NOW)
    over = replace(starts, state=State.FINISHED, past_seconds=300.0, finished_at=NOW)
    leader.durations.note(
        [EntryChange(done, starts, NOW), EntryChange(starts, over, NOW)], leader.config
    )
    leader.put(over)
    snapshot = leader.builder.freeze(leader.config, NOW, SolverLimits())
    found = leader.estimates.current(leader.ledger, snapshot).run_times(["limited", "learned", "?"])
    assert found == {
        "limited": ExpectedRunTime(RunTimeSource.LIMIT, 600.0, None, 500.0, 11),
        "learned": ExpectedRunTime(RunTimeSource.LEARNED, 900.0, 0.8, 500.0, 11, 300.0),
    }


def test_the_queue_order_is_by_priority_and_time_and_only_pending_gangs_count() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("late", limit=50.0, queued_at=5.0)
    leader.add("early", limit=50.0, gpus=16)
    leader.add("high", limit=50.0, priority=9, queued_at=9.0)
    leader.add("never", gpus=99, reason=Reason(Code.SHAPE_NEVER_FITS))
    leader.add("gated", priority=99, reason=Reason(Code.UNSATISFIED_CHECKS))
    leader.add("held", State.HELD)
    assert leader.look() == {"high": 1100.0, "early": 1150.0, "late": 1200.0}


def test_a_gang_that_is_being_evicted_counts_as_ended_and_queues_again() -> None:
    leader = Leader()
    leader.add("r", State.EVICTING, 16)
    leader.add("w", limit=60.0, priority=1)
    assert leader.look() == {"w": NOW, "r": NOW + 60.0}
    assert leader.new == [("cq", NOW)], "only a pending gang has a first estimate"


def test_the_first_estimate_is_what_it_is_measured_by() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    assert leader.look() == {"w": 1100.0}
    assert leader.new == [("cq", 1100.0)]
    leader.add("s", State.RUNNING, 16, limit=400.0, queued_at=1.0)
    leader.look(1050.0)
    assert leader.new == [], "it was reported once"
    assert leader.starts("w", 1130.0) == [EstimateError("cq", 30.0, Arrival.LATER)]
    assert leader.starts("w", 1140.0) == [], "of one start"


@pytest.mark.parametrize(
    ("p90", "at", "error", "arrival"),
    [
        (1200.0, 1090.0, 10.0, Arrival.BY_MEDIAN),
        (1200.0, 1150.0, 50.0, Arrival.BY_P90),
        (None, 9999.0, 8899.0, Arrival.BY_P90),
        (1200.0, 1300.0, 200.0, Arrival.LATER),
    ],
)
def test_a_start_is_compared_with_median_and_90th_percentile(
    p90: float | None, at: float, error: float, arrival: Arrival
) -> None:
    leader = Leader()
    leader.add("w")
    expected = ExpectedStarts(NOW, {"w": ExpectedStart(1100.0, p90, NOW)})
    leader.estimates.replace(expected, leader.ledger)
    assert leader.starts("w", at) == [EstimateError("cq", error, arrival)]


def test_a_gang_that_left_the_queue_another_way_gets_a_new_estimate_when_it_is_pending_again() -> (
    None
):
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    leader.look()
    assert leader.starts("w", 1010.0, State.HELD) == []
    leader.add("w")
    assert leader.estimates.now.by_uid == {}, "the earlier estimate is not shown"
    assert leader.look(1020.0) == {"w": 1100.0}
    assert leader.new == [("cq", 1100.0)]


def test_a_gang_that_started_during_the_estimation_gets_no_estimate() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    found = leader.estimate()
    leader.starts("w", 1001.0)
    assert leader.estimates.replace(found, leader.ledger) == []
    leader.add("w")
    assert leader.estimates.now.by_uid == {}, "an estimate of before is not shown"
    leader.look(1002.0)
    assert leader.new == [("cq", 1100.0)]


def test_a_new_read_of_the_ledger_voids_estimates_of_gangs_that_left() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    leader.look()
    leader.estimates.forget(Ledger())
    assert leader.starts("w", 1200.0) == []
