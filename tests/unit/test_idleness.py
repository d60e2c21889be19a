"""Idle gangs: the samples that lead to a warning, the idleness in a snapshot, and eviction without a preemptor."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.containment import Boundary
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.queues import (
    ClusterQueue,
    IdleReclaim,
    LocalQueue,
    Protection,
    QueueConfig,
    ReclaimMode,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, SolverLimits
from queuectl.domain.utilization import GangUse, UseState
from queuectl.lifecycle.idleness import Idleness, IdlenessResult
from queuectl.planner.preempt.cost import RESTART_COST
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.holding_gangs import HoldingGangs
from tests.unit.test_state import RESUMED, World, on
from tests.unit.test_use_watch import RUNNING as RUNS

GRACE, EVERY, FRESH = 600.0, 60.0, 180.0
RULE = IdleReclaim(mode=ReclaimMode.ON_DEMAND, grace=GRACE, cooldown=3600.0)
NOW = 10_000.0
FIRST = NOW  # of the samples that show it as idle
RUNNING = replace(RUNS, gpus=16)


def configured(rule: IdleReclaim = RULE, **queue: Any) -> QueueConfig:
    known = ClusterQueue("cq", idle_reclaim=rule, **queue)
    return QueueConfig(
        cluster_queues={"cq": known}, local_queues={("a", "q"): LocalQueue("a", "q", "cq")}
    )


class Leader:
    """The leader's steps about idleness: samples, then a cycle."""

    def __init__(
        self,
        entry: Entry = RUNNING,
        job: JobRecord = RESUMED,
        config: QueueConfig | None = None,
        borrowing: Callable[[], Container[str]] = tuple,
    ) -> None:
        self.borrowing = borrowing
        pods = [on("p1", "n1", started_at=15.0), on("p2", "n2", started_at=16.0)]
        self.world = World(entry, records=[job, *pods])
        self.config = config or configured()
        self.uses: dict[str, GangUse] = {}
        self.take_over()

    def take_over(self) -> None:
        """Memory is lost; the ledger is not."""
        world = self.world
        self.snapshot_builder = SnapshotBuilder(
            world.mirror, world.ledger, world.usage, lambda: self.uses, self._idle_since
        )
        self.idleness = Idleness(
            world.mirror, lambda: world.ledger, self.snapshot_builder.running, FRESH, self.borrowing
        )

    def _idle_since(self, *gang: Any) -> float | None:
        return self.idleness.since(*gang)

    def sample(
        self, at: float, state: UseState = UseState.IDLE, attempt: int = 1
    ) -> IdlenessResult:
        before = self.uses.get("u1")
        since = before.since if before is not None and before.state is state else at
        use = GangUse("u1", attempt, state, since, at, 0.0, 1.0, "does nothing", 0.0)
        self.uses = {"u1": use}
        return self.idleness.evaluated(self.uses, self.config, at)

    def cycle(self, at: float, busy: Iterable[str] = ()) -> list[EntryChange]:
        changes = self.idleness.changes(self.config, at, frozenset(busy))
        self.world.ledger.apply(changes)
        self.idleness.note(changes)
        return changes

    def idle(
        self,
        seconds: float,
        start: float = FIRST,
        state: UseState = UseState.IDLE,
        attempt: int = 1,
    ) -> list[tuple[float, Code]]:
        """Samples for this time; each code that was reported or acted on, with its second."""
        notes = []
        for number in range(int(seconds / EVERY) + 1):
            at = start + number * EVERY
            self.sample(at, state, attempt)
            for change in self.cycle(at + 1.0):
                assert change.note is not None
                notes.append((number * EVERY, change.note.reason.code))
        return notes

    def gang(self, now: float) -> Admitted:
        self.world.usage.refresh(list(self.world.mirror.pods))
        (gang,) = self.snapshot_builder.freeze(self.config, now, SolverLimits()).admitted
        return gang


ENDS = 660.0  # the first sample after the grace: it counts from the warning, which is a second after its sample
WARNED_TWICE = [(0.0, Code.IDLE_GPUS), (360.0, Code.IDLE_GPUS)]


def modes(*takeable: ReclaimMode) -> list[tuple[ReclaimMode, bool]]:
    return [(mode, mode in takeable) for mode in ReclaimMode]


class TestTakeable:
    """``Admitted.idle_since``, after eleven minutes in which every sample showed the gang as idle; its grace is ten."""

    @pytest.mark.parametrize(
        ("mode", "takeable"),
        modes(ReclaimMode.DRY_RUN, ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS),
    )
    def test_in_every_mode_but_off(self, mode: ReclaimMode, takeable: bool) -> None:
        # Protected from eviction by the mode Always itself, so that there is a gang to check.
        config = configured(
            replace(RULE, mode=mode), protection=Protection(max_evictions_per_day=0)
        )
        leader = Leader(config=config)
        leader.idle(ENDS)
        assert leader.gang(FIRST + ENDS).idle_since == (FIRST if takeable else None)

    @pytest.mark.parametrize("state", list(UseState))
    def test_only_if_it_is_idle(self, state: UseState) -> None:
        leader = Leader()
        leader.idle(ENDS, state=state)
        assert (leader.gang(FIRST + ENDS).idle_since is not None) == (state is UseState.IDLE)

    @pytest.mark.parametrize("state", [s for s in UseState if s is not UseState.IDLE])
    def test_and_every_sample_since_the_warning_was_idle(self, state: UseState) -> None:
        leader = Leader()
        leader.idle(300)
        leader.sample(FIRST + 330, state)
        assert leader.idle(300, start=FIRST + 360)[0] == (0.0, Code.IDLE_GPUS), "warned anew"
        assert leader.gang(FIRST + ENDS).idle_since is None

    @pytest.mark.parametrize(
        ("last_look", "takeable"),
        [(540.0, False), (600.0, False), (660.0, True)],
    )
    def test_only_once_a_sample_after_its_grace_is_idle(
        self, last_look: float, takeable: bool
    ) -> None:
        leader = Leader()
        leader.idle(last_look)
        assert (leader.gang(FIRST + 661.0).idle_since is not None) == takeable

    @pytest.mark.parametrize(
        ("age", "takeable"), [(0.0, True), (FRESH, True), (FRESH + 1.0, False), (9e9, False)]
    )
    def test_not_by_an_old_sample(self, age: float, takeable: bool) -> None:
        leader = Leader()
        leader.idle(ENDS)
        assert (leader.gang(FIRST + ENDS + age).idle_since is not None) == takeable

    @pytest.mark.parametrize(("attempt", "takeable"), [(0, False), (1, True), (2, False)])
    def test_not_by_samples_of_another_start(self, attempt: int, takeable: bool) -> None:
        leader = Leader()
        leader.idle(ENDS, attempt=attempt)
        assert (leader.gang(FIRST + ENDS).idle_since is not None) == takeable

    def test_nor_for_a_warning_to_another_start(self) -> None:
        leader = Leader(config=configured(replace(RULE, cooldown=0.0)))
        leader.idle(ENDS)
        leader.world.ledger.apply(
            [EntryChange(RUNNING, replace(RUNNING, attempt=2, evictions=1), FIRST + ENDS)]
        )
        again = FIRST + ENDS + EVERY
        leader.sample(again, attempt=2)
        assert leader.gang(again).idle_since is None
        assert leader.idle(360, start=again, attempt=2) == WARNED_TWICE

    @pytest.mark.parametrize(
        ("grace", "takeable"), [(0.0, True), (660.0, False), (600.0, True), (6000.0, False)]
    )
    def test_not_within_the_grace_of_its_queue(self, grace: float, takeable: bool) -> None:
        leader = Leader(config=configured(replace(RULE, grace=grace)))
        leader.idle(ENDS)
        assert (leader.gang(FIRST + ENDS).idle_since is not None) == takeable

    @pytest.mark.parametrize(
        ("evictions", "started_at", "takeable"),
        [
            (0, FIRST - 2000, True),
            (1, FIRST - 2000, False),  # back for less than the cooldown
            (1, FIRST - 3700, True),
            (1, FIRST - 3000, False),  # over, but it was warned only then
            (5, FIRST - 9000, True),
        ],
    )
    def test_not_soon_after_an_eviction(
        self, evictions: int, started_at: float, takeable: bool
    ) -> None:
        leader = Leader(replace(RUNNING, evictions=evictions, started_at=started_at))
        leader.idle(ENDS)
        assert (leader.gang(FIRST + ENDS).idle_since is not None) == takeable

    @pytest.mark.parametrize(
        "exempt", [{"idle_reclaim": False}, {"preemptible": False}, {"deleting": True}]
    )
    def test_not_if_its_job_is_exempt(self, exempt: dict[str, Any]) -> None:
        leader = Leader(job=replace(RESUMED, **exempt))
        assert leader.idle(ENDS) == []
        assert leader.gang(FIRST + ENDS).idle_since is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"state": State.STARTING},
            {"unready_since": NOW},
            {"state": State.EVICTING},
            {"cluster_queue": "gone"},
        ],
    )
    def test_not_if_it_is_not_whole_or_leaves(self, changes: dict[str, Any]) -> None:
        leader = Leader(replace(RUNNING, **changes))
        assert leader.idle(ENDS) == []
        assert leader.gang(FIRST + ENDS).idle_since is None

    def test_an_exemption_that_comes_late_counts(self) -> None:
        leader = Leader()
        leader.idle(ENDS)
        leader.world.see(replace(RESUMED, version=99, idle_reclaim=False))
        assert leader.gang(FIRST + ENDS).idle_since is None

    @pytest.mark.parametrize("now", [ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS])
    @pytest.mark.parametrize("before", list(ReclaimMode))
    def test_a_stricter_mode_needs_its_own_warnings(
        self, before: ReclaimMode, now: ReclaimMode
    ) -> None:
        """Warnings of the earlier mode did not say that the gang is evicted so."""
        unprotected = replace(RULE, mode=before)
        keep = Protection(max_evictions_per_day=0)
        leader = Leader(config=configured(unprotected, protection=keep))
        leader.idle(ENDS)
        leader.config = configured(replace(RULE, mode=now), protection=keep)
        stricter = list(ReclaimMode).index(now) > list(ReclaimMode).index(before)
        changed = FIRST + ENDS + EVERY
        leader.sample(changed)
        assert (leader.gang(changed).idle_since is None) is stricter
        assert leader.idle(ENDS, start=changed) == (WARNED_TWICE if stricter else [])
        assert leader.gang(changed + ENDS).idle_since is not None

    def test_a_shorter_grace_does_not_end_before_the_announced_time(self) -> None:
        leader = Leader(config=configured(replace(RULE, grace=10 * GRACE)))
        leader.idle(GRACE)
        leader.config = configured()
        leader.idle(9 * GRACE, start=FIRST + GRACE)
        assert leader.gang(FIRST + 10 * GRACE).idle_since is None
        leader.idle(2 * EVERY, start=FIRST + 10 * GRACE + EVERY)
        assert leader.gang(FIRST + 10 * GRACE + 3 * EVERY).idle_since is not None

    def test_a_mode_that_is_switched_off_ends_it(self) -> None:
        leader = Leader()
        leader.idle(ENDS)
        leader.config = configured(replace(RULE, mode=ReclaimMode.OFF))
        assert leader.gang(FIRST + ENDS).idle_since is None

    def test_a_new_leader_begins_with_its_own_warning(self) -> None:
        leader = Leader()
        leader.idle(ENDS)
        leader.take_over()
        assert leader.gang(FIRST + ENDS).idle_since is None
        again = FIRST + ENDS + EVERY
        assert leader.idle(600, start=again) == WARNED_TWICE
        assert leader.gang(again + 600).idle_since is None
        leader.sample(again + 660)
        assert leader.gang(again + 660).idle_since is not None

    def test_looks_that_find_nothing_new_leave_the_same_gang_in_the_snapshot(self) -> None:
        leader = Leader()
        leader.idle(ENDS)
        gang = leader.gang(FIRST + ENDS)
        leader.sample(FIRST + ENDS + EVERY)
        assert leader.gang(FIRST + ENDS + EVERY) is gang


class TestWarnings:
    @pytest.mark.parametrize(
        ("mode", "notes"),
        [
            (ReclaimMode.OFF, []),
            (ReclaimMode.DRY_RUN, WARNED_TWICE),
            (ReclaimMode.ON_DEMAND, WARNED_TWICE),
            (ReclaimMode.ALWAYS, [*WARNED_TWICE, (ENDS, Code.IDLE_RECLAIMED)]),
        ],
    )
    def test_two_and_then_the_action_of_the_mode(
        self, mode: ReclaimMode, notes: list[tuple[float, Code]]
    ) -> None:
        assert Leader(config=configured(replace(RULE, mode=mode))).idle(3 * GRACE) == notes

    def test_even_without_a_grace_each_warning_needs_its_own_sample(self) -> None:
        leader = Leader(config=configured(replace(RULE, mode=ReclaimMode.ALWAYS, grace=0.0)))
        assert [at for at, _ in leader.idle(GRACE)] == [0.0, EVERY, 2 * EVERY]

    def test_a_sample_that_began_before_the_last_warning_does_not_count(self) -> None:
        leader = Leader(config=configured(replace(RULE, mode=ReclaimMode.ALWAYS, grace=0.0)))
        notes = []
        for sample, cycle in (
            (100.0, 110.0),
            (109.0, 115.0),
            (120.0, 130.0),
            (129.0, 135.0),
            (140.0, 145.0),
        ):
            leader.sample(sample)
            notes += [
                (sample, c.note.reason.code) for c in leader.cycle(cycle) if c.note is not None
            ]
        assert notes == [
            (100.0, Code.IDLE_GPUS),
            (120.0, Code.IDLE_GPUS),
            (140.0, Code.IDLE_RECLAIMED),
        ]

    def test_one_that_did_not_reach_the_database_was_not_given(self) -> None:
        leader = Leader()
        leader.sample(FIRST)
        assert leader.idleness.changes(leader.config, FIRST + 1, ()) != []  # and is not committed
        assert leader.idle(2 * GRACE, start=FIRST + EVERY) == WARNED_TWICE

    def test_one_is_put_off_where_the_gang_changes_anyway(self) -> None:
        leader = Leader()
        leader.sample(FIRST)
        assert leader.cycle(FIRST + 1, busy=["u1"]) == []
        assert leader.idle(0, start=FIRST + EVERY) == [(0.0, Code.IDLE_GPUS)]

    @pytest.mark.parametrize(
        ("mode", "says"),
        [
            (ReclaimMode.DRY_RUN, "ClusterQueue cq only reports this (idleReclaim: DryRun). "),
            (ReclaimMode.ON_DEMAND,
             "from 1970-01-01T02:56:41Z on it is evicted when another gang needs its capacity, unless"),
            (ReclaimMode.ALWAYS, "after 1970-01-01T02:56:41Z it is evicted, unless"),
        ],
    )  # fmt: skip
    def test_they_say_since_when_what_will_happen_and_how_to_be_exempt(
        self, mode: ReclaimMode, says: str
    ) -> None:
        leader = Leader(config=configured(replace(RULE, mode=mode)))
        texts = []
        for seconds in (0.0, 360.0):
            leader.sample(FIRST + seconds)
            (change,) = leader.cycle(FIRST + seconds + 1)
            assert change.note is not None
            assert (change.after.state, change.after.reason) == (State.RUNNING, RUNNING.reason)
            texts.append(change.note.reason.message)
            assert change.note.reason.details["warning"] == len(texts)
        assert texts[0] == texts[1], "the grace counts from the first"
        assert texts[0].startswith("idle since 1970-01-01T02:46:40Z with 16 GPUs: does nothing; ")
        assert says in texts[0]
        assert 'Annotation queuectl.dev/idle-reclaim: "false" exempts it' in texts[0]

    @pytest.mark.parametrize(
        ("mode", "protection", "says"),
        [
            (ReclaimMode.ALWAYS, Protection(max_evictions_per_day=0),
             "by then; it is not evicted now: maxEvictionsPerDay of ClusterQueue cq is 0. "),
            (ReclaimMode.ON_DEMAND, Protection(min_runtime=FIRST + 90),
             "by then; it is not evicted now: protected until 1970-01-01T02:48:20Z. "),
            (ReclaimMode.DRY_RUN, Protection(max_evictions_per_day=0), "(idleReclaim: DryRun). "),
        ],
    )  # fmt: skip
    def test_they_say_that_a_protection_prevents_the_eviction(
        self, mode: ReclaimMode, protection: Protection, says: str
    ) -> None:
        leader = Leader(config=configured(replace(RULE, mode=mode), protection=protection))
        leader.sample(FIRST)
        (change,) = leader.cycle(FIRST + 1)
        assert change.note is not None
        assert says in change.note.reason.message


class TestAlways:
    CONFIG = configured(replace(RULE, mode=ReclaimMode.ALWAYS))

    def evicted(self, job: JobRecord = RESUMED, entry: Entry = RUNNING) -> EntryChange:
        leader = Leader(entry, job, self.CONFIG)
        leader.idle(600)
        leader.sample(FIRST + ENDS)
        (change,) = leader.cycle(FIRST + ENDS + 1)
        return change

    def test_it_leaves_for_its_idleness_and_stays_out_of_the_queue_for_the_cooldown(self) -> None:
        change = self.evicted()
        assert change.after.state is State.EVICTING
        assert change.after.reason.code is Code.IDLE_RECLAIMED
        assert change.after.reason.details["restSeconds"] == 3600.0
        assert change.after.preempted_at == (FIRST + ENDS + 1,), "protections count it"

    def test_what_is_lost_is_priced_as_for_any_victim(self) -> None:
        assert self.evicted().after.reason.details["lostGpuSeconds"] == RESTART_COST

    @pytest.mark.parametrize(
        ("protection", "evicted"),
        [
            (Protection(), True),
            (Protection(min_runtime=FIRST + ENDS - 10), True),
            (Protection(min_runtime=2 * FIRST), False),
            (Protection(max_evictions_per_day=0), False),
        ],
    )
    def test_not_while_its_queue_protects_it_and_then_no_cycle_is_woken_for_it(
        self, protection: Protection, evicted: bool
    ) -> None:
        rule = replace(RULE, mode=ReclaimMode.ALWAYS)
        leader = Leader(config=configured(rule, protection=protection))
        assert ((ENDS, Code.IDLE_RECLAIMED) in leader.idle(ENDS)) == evicted
        assert not leader.sample(FIRST + ENDS + EVERY).due

    @pytest.mark.parametrize("state", [s for s in UseState if s is not UseState.IDLE])
    def test_not_if_the_last_sample_shows_another_state(self, state: UseState) -> None:
        leader = Leader(config=self.CONFIG)
        leader.idle(600)
        leader.sample(FIRST + ENDS)
        leader.sample(FIRST + ENDS, state)
        assert leader.cycle(FIRST + ENDS + 1) == []

    @pytest.mark.sets_aside
    def test_a_gang_that_cannot_be_read_is_set_aside_and_fails_no_evaluation(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader = Leader(config=self.CONFIG)
        leader.idle(600)
        with monkeypatch.context() as broken:
            broken.setattr(HoldingGangs, "_made_admitted", None)
            leader.sample(FIRST + ENDS)
            assert leader.cycle(FIRST + ENDS + 1) == []
        (unit,) = leader.world.mirror.containment
        assert (unit.boundary, unit.key) == (Boundary.SNAPSHOT, "u1")
        leader.sample(FIRST + ENDS + EVERY)
        (change,) = leader.cycle(FIRST + ENDS + EVERY + 1)
        assert change.after.reason.code is Code.IDLE_RECLAIMED

    def test_not_by_a_sample_that_is_too_old_at_the_time_of_the_cycle(self) -> None:
        leader = Leader(config=self.CONFIG)
        leader.idle(600)
        assert leader.sample(FIRST + ENDS).due
        assert leader.cycle(FIRST + ENDS + FRESH + 1) == []


class TestWaking:
    """A cycle is requested when a warning is due or a gang becomes reclaimable, and at no other sample."""

    def test_a_steady_state_requests_no_cycle(self) -> None:
        leader, woken = Leader(), []
        for number in range(60):
            at = FIRST + number * EVERY
            news = leader.sample(at)
            leader.cycle(at + 1)
            if news != IdlenessResult(due=False, plan_again=False):
                woken.append((number * EVERY, *news))
        assert woken == [(0.0, True, False), (360.0, True, False), (ENDS, False, True)]

    @pytest.mark.parametrize("state", [UseState.ACTIVE, UseState.UNKNOWN, UseState.WARMUP])
    def test_nor_does_a_gang_that_is_not_idle(self, state: UseState) -> None:
        leader = Leader()
        assert {leader.sample(FIRST + n * EVERY, state) for n in range(20)} == {
            IdlenessResult(False, False)
        }

    @pytest.mark.parametrize("state", [UseState.ACTIVE, UseState.UNKNOWN])
    def test_a_gang_that_is_no_longer_reclaimable_requests_a_plan(self, state: UseState) -> None:
        leader = Leader()
        leader.idle(ENDS)
        assert leader.sample(FIRST + ENDS + EVERY, state) == IdlenessResult(False, True)
        assert leader.sample(FIRST + ENDS + 2 * EVERY, state) == IdlenessResult(False, False)

    def test_looks_that_come_back_after_a_gap_ask_for_a_plan(self) -> None:
        leader = Leader()
        leader.idle(ENDS)
        late = FIRST + ENDS + FRESH + EVERY
        assert leader.gang(late).idle_since is None  # as in every plan in the meantime
        assert leader.sample(late).plan_again


@dataclass
class Witness:
    """The events since the last reset, kept without any of the code above."""

    warned: list[float] = field(default_factory=list)
    last: tuple[float, UseState, int] | None = None

    def anew(self) -> None:
        self.warned = []

    def due(self, now: float, attempt: int) -> bool:
        """Whether a gang is shown as idle: warned, and idle in a fresh sample after the grace."""
        if self.last is None or not self.warned:
            return False
        at, state, of = self.last
        seen = state is UseState.IDLE and of == attempt and now - at <= FRESH
        return seen and at >= self.warned[0] + GRACE


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["idle"] * 14 + ["busy", "unknown", "crash", "restart", "late look", "gap"]
        ),
        st.sampled_from([30.0, 60.0, 60.0, 60.0, 120.0]),
    ),
    min_size=10,
    max_size=60,
)


@given(
    STEPS, st.sampled_from([0, 9, 12]), st.sampled_from([ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS])
)
def test_no_gang_is_reclaimed_without_a_grace_of_idleness_after_a_warning_of_this_leader(
    steps: list[tuple[str, float]], idle_before: int, mode: ReclaimMode
) -> None:
    """A gang that was idle all that time is reclaimable."""
    leader = Leader(config=configured(replace(RULE, mode=mode, cooldown=0.0)))
    witness, now = Witness(), FIRST
    for what, seconds in [("idle", EVERY)] * idle_before + steps:
        now += seconds
        (entry,) = leader.world.ledger
        if what == "gap":
            now += FRESH
        elif what == "crash":
            leader.take_over()
            witness.anew()
        elif what == "restart":
            after = replace(entry, attempt=entry.attempt + 1, version=entry.version + 1)
            leader.world.ledger.apply([EntryChange(entry, after, now)])
            leader.world.see(replace(RESUMED, attempt=after.attempt, version=99 + int(now)))
            witness.anew()
        else:
            state = {"busy": UseState.ACTIVE, "unknown": UseState.UNKNOWN}.get(what, UseState.IDLE)
            at = now - (GRACE if what == "late look" else 0.0)
            leader.sample(at, state, entry.attempt)
            witness.last = (at, state, entry.attempt)
            if state is not UseState.IDLE:
                witness.anew()
        for change in leader.cycle(now + 1.0):
            assert change.note is not None
            if change.note.reason.code is Code.IDLE_GPUS:
                witness.warned.append(now + 1.0)
                continue
            assert mode is ReclaimMode.ALWAYS
            assert len(witness.warned) == 2
            assert witness.due(now + 1.0, entry.attempt)
            return
        (entry,) = leader.world.ledger
        shown = leader.gang(now + 2.0).idle_since
        assert (shown is not None) == witness.due(now + 2.0, entry.attempt)
