"""Estimated start times of pending gangs: their values, the cases without one, and their error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.accounting import Accounting
from queuectl.domain.estimates import HeldGpus, Waits, estimated_starts
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    QueueingStrategy,
    ResourceGroup,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import JobRecord, Upserted
from queuectl.domain.rules import Rules
from queuectl.domain.runs import Run, Work
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.durations.estimator import ENOUGH
from queuectl.durations.samples import KEPT
from queuectl.state.durations import Durations
from queuectl.state.estimates import Estimates
from queuectl.state.holdings import Holdings
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

NOW = 1000.0


def line(*gangs: tuple[float, float | None]) -> list[Waits]:
    """GPUs and seconds of each; called a, b, c..."""
    return [Waits("abcdefgh"[i], *gang) for i, gang in enumerate(gangs)]


@pytest.mark.parametrize(
    ("waits", "running", "free", "starts"),
    [
        ([(8, 60)], [(8, 1100)], 0, {"a": 1100}),
        ([(8, 60)], [(8, 900)], 0, {"a": 1000}),  # overdue: any moment now
        ([(8, 60)], [(4, 1100), (4, 1200)], 0, {"a": 1200}),
        ([(8, 60)], [(4, 1100)], 4, {"a": 1100}),
        ([(8, 60)], [(4, 1100)], 99, {"a": 1100}),  # it would run if 8 were free for it
        ([(8, 60)], [(4, 1100)], 3, {}),
        ([(8, 60)], [(8, None)], 0, {}),
        ([(8, 60)], [], 7, {}),
        ([(8, 60), (8, 60)], [(8, 1100)], 0, {"a": 1100, "b": 1160}),
        ([(8, None), (8, 60)], [(8, 1100)], 0, {"a": 1100}),
        ([(8, 60), (4, 60)], [(8, 1100), (4, 1050)], 0, {"a": 1100, "b": 1100}),  # none is passed
        (
            [(0, 60), (8, 60)],
            [(8, 1100)],
            0,
            {"b": 1100},
        ),  # gangs that request no GPU have no estimate
        ([], [(8, 1100)], 8, {}),
    ],
)
def test_a_gang_starts_when_enough_has_ended_for_it_and_all_before_it(
    waits: list[tuple[float, float | None]],
    running: list[tuple[float, float | None]],
    free: float,
    starts: dict[str, float],
) -> None:
    holds = [HeldGpus(*gang) for gang in running]
    assert estimated_starts(line(*waits), holds, free, NOW, strict=True) == starts


@pytest.mark.parametrize(("strict", "starts"), [(True, {}), (False, {"b": 1100})])
def test_behind_one_of_which_nothing_is_known_it_depends_on_the_queue(
    strict: bool, starts: dict[str, float]
) -> None:
    waits = line((16, 60), (8, 60))
    assert estimated_starts(waits, [HeldGpus(8, 1100)], 0, NOW, strict=strict) == starts


def test_where_gangs_pass_each_other_what_is_free_is_too_little_for_the_smallest() -> None:
    waits, running = line((64, 60), (4, 60)), [HeldGpus(61, 1100), HeldGpus(1, 1200)]
    assert estimated_starts(waits, running, 32, NOW, strict=False) == {"a": 1100, "b": 1160}
    assert estimated_starts(waits, running, 32, NOW, strict=True) == {"a": 1100, "b": 1100}


gpus = st.integers(1, 16)
ends = st.none() | st.integers(900, 3000)
lengths = st.none() | st.integers(1, 500)
lines = st.lists(st.tuples(gpus, lengths), max_size=8).map(lambda gangs: line(*gangs))
holdings = st.lists(st.builds(HeldGpus, gpus, ends), max_size=8)


@given(lines, holdings, st.integers(0, 32), st.booleans())
def test_further_back_is_never_earlier(
    waits: list[Waits], running: list[HeldGpus], free: int, strict: bool
) -> None:
    starts = estimated_starts(waits, running, free, NOW, strict=strict)
    estimated = [starts[gang.uid] for gang in waits if gang.uid in starts]
    assert estimated == sorted(estimated)
    assert all(start >= NOW for start in estimated)
    if strict:
        assert [gang.uid for gang in waits[: len(estimated)]] == list(starts), (
            "no gang after it has an estimate"
        )


@given(lines, holdings, st.integers(0, 32), st.data())
def test_a_later_end_never_makes_a_start_earlier(
    waits: list[Waits], running: list[HeldGpus], free: int, data: st.DataObject
) -> None:
    before = estimated_starts(waits, running, free, NOW, strict=True)
    late = [
        replace(gang, ends=gang.ends and gang.ends + data.draw(st.integers(0, 500)))
        for gang in running
    ]
    after = estimated_starts(waits, late, free, NOW, strict=True)
    assert after.keys() == before.keys()
    assert all(after[uid] >= before[uid] for uid in before)


@given(lines, holdings, st.integers(0, 32), st.data())
def test_no_more_gpus_are_given_out_than_there_are(
    waits: list[Waits], running: list[HeldGpus], free: int, data: st.DataObject
) -> None:
    """At the start of each, what holds GPUs by then and had them all along is no more than what is held and free now."""
    starts = estimated_starts(waits, running, free, NOW, strict=data.draw(st.booleans()))
    there = free + sum(gang.gpus for gang in running)
    for start in starts.values():
        held = sum(g.gpus for g in running if g.ends is None or g.ends > start)
        held += sum(
            g.gpus
            for g in waits
            if g.uid in starts
            and starts[g.uid] <= start
            and (g.seconds is None or starts[g.uid] + g.seconds > start)
        )
        assert held <= there


# From what the loop knows.


def config(gpus: int = 16, strict: bool = True) -> QueueConfig:
    groups = (ResourceGroup((GPU,), (FlavorQuotas("h100", {GPU: gpus}),)),)
    strategy = QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
    return QueueConfig(
        cluster_queues={"cq": ClusterQueue("cq", groups, strategy)},
        local_queues={("team", "q"): LocalQueue("team", "q", "cq")},
        rules=Rules(accounting=Accounting(user_label="user")),
    )


class Leader:
    """A ClusterQueue of 16 GPUs, what waits and runs in it, and its estimates."""

    def __init__(self) -> None:
        self.mirror = Mirror({"jobs": "Job"})
        self.ledger = Ledger()
        self.config = config()
        self.holdings = Holdings(self.mirror)
        self.durations = Durations(self.mirror)
        self.estimates = Estimates(self.mirror, self.durations.estimator)

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
        self.mirror.apply([Upserted(replace(job, max_execution=limit))])
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

    def look(self, now: float = NOW) -> dict[str, float]:
        """The new estimates."""
        self.holdings.configure(self.config, self.ledger)
        current = self.estimates.current(self.ledger, self.holdings, now)
        starts = self.estimates.make(current)
        self.new = self.estimates.replace(starts, self.ledger)
        return starts

    def starts(self, uid: str, at: float, state: State = State.STARTING) -> list[tuple[str, float]]:
        before = self.ledger.get(uid)
        assert before is not None
        after = replace(before, state=state, attempt=before.attempt + 1, started_at=at)
        self.put(after)
        return self.estimates.note([EntryChange(before, after, at)])


def runs(*seconds: float, user: str = "ann", queue: str = "q") -> list[Run]:
    work = Work("cq", "team", queue, user, "other", 1, 8)
    return [Run(work, one) for one in seconds]


def test_an_execution_time_gives_the_latest_end_of_a_gang() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=600.0, past_seconds=50.0)
    leader.add("w")
    assert leader.look() == {"w": 900.0 + 600.0 - 50.0}


@pytest.mark.parametrize(
    ("past", "start"),
    [
        (runs(10, 200, 300, 400, 500), {"w": 1300.0}),  # the median of those longer than 100
        (runs(200, 300), {}),  # too few
        (runs(10, 20, 30, 40, 50), {"w": 1100.0}),  # it has run longer than any: 50 is doubled
        (runs(*[300] * 5, user="bob"), {"w": 1200.0}),  # no run of the user: the queue's are used
        (runs(*[300] * 5, user="bob") + runs(*[700] * 5), {"w": 1600.0}),
        (runs(*[300] * 5, queue="other"), {"w": 1200.0}),  # else those of the ClusterQueue
    ],
)
def test_else_gangs_of_its_user_or_of_its_queue_did(
    past: list[Run], start: dict[str, float]
) -> None:
    leader = Leader()
    leader.durations.learn(past)
    leader.add("r", State.RUNNING, 16)
    leader.add("w")
    assert leader.look() == start


def test_only_the_last_runs_count() -> None:
    leader = Leader()
    leader.durations.learn(runs(*[9000.0] * KEPT, *[300.0] * KEPT))
    leader.add("r", State.RUNNING, 16)
    leader.add("w")
    assert leader.look() == {"w": 1200.0}


def test_what_ends_from_now_on_is_learned_from() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16)
    leader.add("w")
    for number in range(ENOUGH):
        uid = f"done-{number}"
        before = leader.add(uid, State.RUNNING, 1)
        over = replace(before, state=State.FINISHED, past_seconds=300.0, finished_at=NOW)
        assert leader.look() == {}
        leader.put(over)
        leader.durations.note([EntryChange(before, over, NOW)], leader.config)
    assert leader.look() == {"w": 1200.0}


def test_the_queue_order_is_by_priority_and_time_and_only_pending_gangs_count() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("late", limit=50.0, queued_at=5.0)
    leader.add("early", limit=50.0, gpus=16)
    leader.add("high", limit=50.0, priority=9, queued_at=9.0)
    leader.add("never", reason=Reason(Code.SHAPE_NEVER_FITS))
    leader.add("held", State.HELD)
    assert leader.look() == {"high": 1100.0, "early": 1150.0, "late": 1200.0}


def test_a_gang_that_is_being_evicted_counts_as_ended() -> None:
    leader = Leader()
    leader.add("r", State.EVICTING, 16)
    leader.add("w")
    assert leader.look() == {"w": NOW}


def test_unused_quota_is_available_to_the_queue() -> None:
    """The gang of 12 cannot start on the 8 that are free, but then needs only one of the two that hold 4 each."""
    leader = Leader()
    leader.add("one", State.RUNNING, 4, limit=200.0)
    leader.add("two", State.RUNNING, 4, limit=900.0)
    leader.add("w", gpus=12)
    assert leader.look() == {"w": 1100.0}


def test_the_first_estimate_is_what_it_is_measured_by() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    assert leader.look() == {"w": 1100.0}
    assert leader.new == [("cq", 1100.0)]
    leader.add("s", State.RUNNING, 16, limit=400.0, queued_at=1.0)
    leader.look(1050.0)
    assert leader.new == [], "it was reported once"
    assert leader.starts("w", 1130.0) == [("cq", 30.0)]
    assert leader.starts("w", 1140.0) == [], "of one start"


def test_a_gang_that_left_the_queue_another_way_gets_a_new_estimate_when_it_is_pending_again() -> (
    None
):
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    leader.look()
    assert leader.starts("w", 1010.0, State.HELD) == []
    leader.add("w")
    assert leader.look(1020.0) == {"w": 1100.0}
    assert leader.new == [("cq", 1100.0)]


def test_a_gang_that_started_during_the_estimation_gets_no_estimate() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    leader.holdings.configure(leader.config, leader.ledger)
    current = leader.estimates.current(leader.ledger, leader.holdings, NOW)
    leader.starts("w", 1001.0)
    assert leader.estimates.replace(leader.estimates.make(current), leader.ledger) == []
    leader.add("w")
    leader.look(1002.0)
    assert leader.new == [("cq", 1100.0)]


def test_a_new_read_of_the_ledger_voids_estimates_of_gangs_that_left() -> None:
    leader = Leader()
    leader.add("r", State.RUNNING, 16, limit=200.0)
    leader.add("w")
    leader.look()
    leader.estimates.forget(Ledger())
    assert leader.starts("w", 1200.0) == []
