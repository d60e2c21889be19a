"""The contract of every store. The fixture ``open_store`` opens another store on the same database at each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from queuectl.db.ports import Commit, ConfigurationBatch
from queuectl.domain.accounting import AccountingTerms, Mark, UsagePhase
from queuectl.domain.audit import AuditFilter, AuditLine
from queuectl.domain.commands import (
    MOST_WAITING,
    Action,
    Answer,
    Command,
    CommandFilter,
    CommandState,
)
from queuectl.domain.containment import KEPT_OBJECTS, Boundary, SetAsideObject, Suspect
from queuectl.domain.errors import (
    BadInput,
    Conflict,
    Fenced,
    NotFound,
    StaleConfiguration,
    StaleSnapshot,
    TooManyCommands,
)
from queuectl.domain.estimates import ExpectedRunTime, ExpectedStart, ExpectedStarts, RunTimeSource
from queuectl.domain.events import (
    Admit,
    CommandReceived,
    Drained,
    Ended,
    Event,
    Evict,
    LabelsChanged,
    ObjectChanged,
    ObjectDeleted,
    PodsReady,
    Refuse,
    RetryDue,
    StartConfirmed,
)
from queuectl.domain.fleet import Node
from queuectl.domain.folding import Fold
from queuectl.domain.followed import (
    FaultyObject,
    FollowedReport,
    FollowedSource,
    PendingDeletion,
)
from queuectl.domain.job_usage import ContainerSums
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import (
    KEPT_BYTES,
    KEPT_DECISIONS,
    KEPT_SECONDS,
    CycleDecision,
    Entry,
    EntryChange,
    MigrationCost,
    RefusedPlan,
    State,
)
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used
from queuectl.domain.plan import Proof
from queuectl.domain.processes import LeaderFindings, ProcessEnd
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queries import (
    MOST_URGENT_FIRST,
    ConfigChanges,
    DocumentKey,
    PagePosition,
    QueuePosition,
    SortKey,
    Tolerance,
    WorkloadFilter,
    WorkloadOrder,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Retention
from queuectl.domain.search import SearchText
from queuectl.domain.selectors import label_selector
from queuectl.domain.shadow import GangName, GangRecord, LastObservation, ShadowFold, ShadowSums
from queuectl.domain.shadow_trace import (
    Between,
    FigureInterval,
    NodeVersion,
    QueueWaits,
    SideFigures,
    SimulatedReport,
    TraceBook,
    TracedAttempt,
    TracedGang,
    TracedState,
    TraceProgress,
    TraceSpan,
    TraceStep,
)
from queuectl.domain.stages import EndedStages
from queuectl.domain.usage_reports import Period
from queuectl.domain.use_curve import UseCurve, UseSpan
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.state.durations import work_of
from tests.db.histories import HERE, LEASE, WAITS, WHOLE_LIFE, ask, step, submitted
from tests.doubles.store import MemoryStore
from tests.support.stores import PostgresStore

AnyStore = PostgresStore | MemoryStore
OpenStore = Callable[[], Awaitable[AnyStore]]

QUEUE = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "ClusterQueue",
    "metadata": {"name": "gpus"},
    "spec": {"queueingStrategy": "StrictFIFO"},
}


BUSY = Used(PastUseAccount.of_local_queue("team", "busy"), 7.5, {"cpu": 0.1, "nvidia.com/gpu": 8.0})
CQ = Used(PastUseAccount(AccountScope.CLUSTER_QUEUE, "gpus"), 8.0, {"nvidia.com/gpu": 1 / 3})
FOUND = LeaderFindings(
    10.5,
    {
        "u1": GangUse("u1", 2, UseState.ACTIVE, 3.0, 10.25, 1 / 3, 1.0, "busy: Größe", 0.5),
        "u2": GangUse("u2", 1, UseState.UNKNOWN, 3.0, 10.25, None, 0.0, "nobody knows", None),
    },
    ExpectedStarts(
        9.5,
        {"w1": ExpectedStart(1e9 / 7, 1e9 / 3, 9.5), "w2": ExpectedStart(20.0, None, 9.5)},
        gangs=3,
        left_out=2,
        run_times={
            "w1": ExpectedRunTime(RunTimeSource.LEARNED, 1e4 / 3, 0.8, 1e3 / 3, 12, 100.5),
            "u1": ExpectedRunTime(RunTimeSource.LIMIT, 600.0),
        },
    ),
)
USER = Used(PastUseAccount(AccountScope.USER, "ann's"), 7.0, {"nvidia.com/gpu": 1e-9})


DECISION = CycleDecision(
    at=1700000000.25,
    revision=3,
    nodes=10,
    pending=5,
    running=4,
    started=1,
    gpus=32,
    evicted=1,
    moved=0,
    waiting=4,
    reasons={"WaitingForQuota": 4},
    proof=Proof.FEASIBLE,
    seconds=0.0125,
    stats={"solves": 2.0, "ratio": 0.1},
)


def queue(name: str, **spec: object) -> dict[str, object]:
    return {**QUEUE, "metadata": {"name": name}, "spec": spec}


async def leader(store: AnyStore) -> int:
    return await store.take_over("test", 0)


async def commit(
    store: AnyStore, epoch: int, *changes: EntryChange, revision: int | None = None, cycle: int = 1
) -> None:
    await store.commit(Commit(changes, revision=revision), epoch=epoch, cycle=cycle)


async def loaded(store: AnyStore) -> dict[str, Entry]:
    return {entry.uid: entry for entry in (await store.load()).entries}


def asked(uid: str, action: Action, request: str, priority: int | None = None) -> Command:
    return Command(0, uid, action, "alice", request, 1700000000.5, priority)


SHADOW_GANG = GangRecord(
    GangName("u1", "team", "Größe", "Job", "train", "gpus", 16.0, 2),
    7200.0,
    7260.0,
    waited=60.0,
    fitted=1 / 3,
    fits_since=7200.5,
    startable=16 / 3,
    reasons={"WaitingForQuota": 60.0},
    message="a sentence\u2026",
)


def shadow_fold(at: float, *gangs: GangRecord, **sums: float) -> ShadowFold:
    last = LastObservation(
        at, 64.0, 8.0, True, {"u1": 16.0}, {"u1": 16.0}, {"u2": 0.5}, ("Node/x: y",)
    )
    hour = int(at // 3600) * 3600
    return ShadowFold(last, {hour: ShadowSums(**sums, reasons={"Held": 1.5})}, gangs)


def shadow_step(fold: ShadowFold, *gangs: TracedGang, **nodes: Node | None) -> TraceStep:
    at = fold.last.at
    versions = tuple(NodeVersion(name, at, node) for name, node in nodes.items())
    return TraceStep(TraceSpan(7200.0, at, (Between(7200.0, 7201.0),)), gangs, versions)


def shadow_moment(at: float, *gangs: GangRecord, **sums: float) -> tuple[ShadowFold, TraceStep]:
    fold = shadow_fold(at, *gangs, **sums)
    return fold, shadow_step(fold)


SHADOW_NODE = Node("n1", {"zone": "a"}, Resources({GPU: 8, "cpu": 64000}))
SHADOW_TRACED = TracedGang(
    gang=SHADOW_GANG.gang,
    podsets=(PodSet("main", 2, PodShape(Resources({GPU: 8, "pods": 1}))),),
    priority=3,
    user="a",
    limit=None,
    arrived=7200.5,
    state=TracedState.RUNNING,
    attempts=(
        TracedAttempt(
            Between(7200.5, 7260.0), Placement((PodSetPlacement("main", (("n1", 2),), {GPU: "f"}),))
        ),
    ),
)
_SHADOW_SIDE = SideFigures(
    QueueWaits(FigureInterval(0.0, 60.0), FigureInterval(1.5, None), FigureInterval(0.0, 1.0)),
    {
        "team/train": QueueWaits(
            FigureInterval(None, None), FigureInterval(None, None), FigureInterval(0.0, 0.0)
        )
    },
    FigureInterval(0.0, 1.0),
    FigureInterval(0.25, 0.5),
    FigureInterval(0.0, 0.0),
)
SHADOW_SIMULATED = SimulatedReport(
    began=7200.0,
    until=9000.0,
    made_at=9001.0,
    took=1.5,
    gangs=2,
    arrived={"team/train": 1},
    running_at_begin=1,
    unfinished=1,
    left_out=0,
    resized=0,
    gaps=0.0,
    whole=True,
    observed=_SHADOW_SIDE,
    simulated=_SHADOW_SIDE,
)


class StoreConformance:
    """Subclass it and define the fixture ``open_store``."""

    POLL = 3600.0  # seconds; a store with notifications does not poll

    async def test_a_new_database_is_empty(self, open_store: OpenStore):
        store = await open_store()
        content = await store.load()
        assert (content.entries, content.documents, content.revision) == ((), (), 0)

    async def test_every_step_of_a_workload_is_read_as_it_was_committed(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        change = submitted("u1")
        await commit(store, epoch, change)
        assert await loaded(store) == {"u1": change.after}
        for event in WHOLE_LIFE[:-1]:
            change = step(change.after, event)
            await commit(store, epoch, change)
            assert await loaded(store) == {"u1": change.after}, event

    async def test_a_finished_workload_is_not_loaded_but_can_be_read(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1")
        last = step(first.after, Ended(JobOutcome.SUCCEEDED))
        await commit(store, epoch, first, submitted("u2"))
        await commit(store, epoch, last)
        assert set(await loaded(store)) == {"u2"}
        assert await store.get_workload("u1") == last.after
        assert await store.get_workload("u3") is None

    async def test_past_runs_are_the_last_workloads_that_finished_after_a_start(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        waited = submitted("waited")
        await commit(store, epoch, waited)
        await commit(store, epoch, step(waited.after, ObjectDeleted()))
        for number, uid in enumerate(("a", "b", "c")):
            queued = submitted(uid, queue=f"q-{uid}")
            began = step(queued.after, Admit(HERE), 1700000010.0)
            await commit(store, epoch, queued)
            await commit(store, epoch, began)
            ended = 1700000100.0 - number
            await commit(store, epoch, step(began.after, Ended(JobOutcome.SUCCEEDED), ended))
        runs = await store.usage.past_runs(2)
        assert [(run.work.queue, run.seconds) for run in runs] == [("q-b", 89.0), ("q-a", 90.0)]
        first = await store.get_workload("a")
        assert first is not None
        assert runs[1].work == work_of(first)
        assert len(await store.usage.past_runs(100)) == 3

    async def test_what_containers_used_is_added_once_for_each_time(self, open_store: OpenStore):
        """A new leader evaluates a part of a window that the one before has added."""
        store = await open_store()
        epoch = await leader(store)
        assert (await store.usage.job("a")).containers is None

        def over(until: float, peak: float) -> dict[str, ContainerSums]:
            return {"a": ContainerSums(until, 240.0, 120.0, 480.0, 24.0, 48.0, peak)}

        await store.usage.measured(over(1000.0, 7.0), 120.0, epoch=epoch)
        first = over(1000.0, 7.0)["a"]
        assert (await store.usage.job("a")).containers == first
        for until, peak in ((1030.0, 5.0), (1030.0, 9.0), (900.0, 1.0)):
            await store.usage.measured(over(until, peak), 120.0, epoch=epoch)
        quarter = ContainerSums(1030.0, 300.0, 150.0, 600.0, 30.0, 60.0, 9.0)
        assert (await store.usage.job("a")).containers == quarter
        await store.usage.measured(over(9000.0, 1.0), 120.0, epoch=epoch)
        known = (await store.usage.job("a")).containers
        assert known is not None
        assert (known.until, known.pod_seconds) == (9000.0, 540.0)
        with pytest.raises(Fenced):
            await store.usage.measured(over(9999.0, 1.0), 120.0, epoch=epoch - 1)

    async def test_the_utilization_of_a_workload_over_time_is_replaced_as_a_whole(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        over = None
        for until, seconds in ((600.0, 90.0), (700.0, 9000.0)):
            fold = Fold(0.0, until, AccountingTerms())
            curve = UseCurve(0.0)
            curve.add([UseSpan(0.0, seconds, 8, 0.25), UseSpan(seconds, 2 * seconds, 8, None)])
            fold.curves = {"a": curve}
            await store.usage.keep(fold, over=over, until=until, marks=(), epoch=epoch, free={})
            over = until
            known = (await store.usage.job("a")).curve
            assert known is not None
            assert known.points() == curve.points()
            assert (await store.usage.curves(["a", "b"]))["a"].points() == curve.points()
        assert (await store.usage.job("b")).curve is None

    @pytest.mark.parametrize(("floor", "epoch"), [(0, 2), (1, 2), (7, 8)])
    async def test_a_take_over_sets_an_epoch_above_those_of_the_database_and_the_lease(
        self, open_store: OpenStore, floor: int, epoch: int
    ):
        store = await open_store()
        assert await store.take_over("a", 0) == 1
        assert await store.take_over("b", floor) == epoch

    @pytest.mark.parametrize("behind", ["epoch", "usage"])
    async def test_usage_continues_at_a_take_over_of_a_restored_database(
        self, open_store: OpenStore, behind: str
    ):
        """No leader knows what ran since the backup. The Lease knows that there were others."""
        store = await open_store()
        epoch = await store.take_over("a", 0)
        progress = await store.usage.progress()
        assert (progress.begins, progress.until) == (None, None)
        fold = Fold(0.0, 600.0, AccountingTerms())
        await store.usage.keep(fold, over=None, until=600.0, marks=(), epoch=epoch, free={})
        mark = Mark("u1", 590.0, 595.0, UsagePhase.WAITS, 0, 8)
        await commit(store, epoch, replace(submitted("u1"), marks=(mark,)))
        epoch = await store.take_over("b", epoch)
        assert (await store.usage.progress()).until == 600.0
        before = await store.now()
        if behind == "epoch":
            await store.take_over("b", epoch + 1)
        else:
            epoch = await store.take_over("b", epoch, 600)
            assert (await store.usage.progress()).until == 600.0
            await store.take_over("b", epoch, 601)
        progress = await store.usage.progress()
        until = progress.until
        assert progress.begins == 600.0
        assert until is not None
        assert until == pytest.approx(before, abs=60.0)
        ((_, moved),) = await store.usage.marks(10)
        assert moved == replace(mark, at=until)

    async def test_the_end_of_a_run_without_a_note_is_unknown_when_its_process_starts_again(
        self, open_store: OpenStore
    ):
        store = await open_store()
        before = await store.now() - 60.0
        await store.begin_run("a")
        assert await store.unknown_ends(before) == ()
        for count in (1, 2, 3):
            await store.begin_run("a")
            assert len(await store.unknown_ends(before)) == count
        assert await store.unknown_ends(await store.now() + 60.0) == ()

    @pytest.mark.parametrize(
        "how", [ProcessEnd.ORDERLY, ProcessEnd.LOST_LEASE, ProcessEnd.DATABASE]
    )
    async def test_an_end_with_a_note_is_known(self, open_store: OpenStore, how: ProcessEnd):
        store = await open_store()
        await store.begin_run("a")
        await store.take_over("a", 0)
        await store.end_run("a", how)
        await store.begin_run("a")
        assert await store.unknown_ends(0.0) == ()

    async def test_a_take_over_ends_the_leadership_of_another_process_until_that_notes_its_end(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await store.take_over("a", 0)
        epoch = await store.take_over("b", epoch)
        assert len(await store.unknown_ends(0.0)) == 1
        await store.take_over("b", epoch)  # its write of the lease had no answer
        assert len(await store.unknown_ends(0.0)) == 1
        await store.end_run("a", ProcessEnd.LOST_LEASE)
        assert await store.unknown_ends(0.0) == ()

    async def test_all_processes_know_the_suspects_of_the_last_careful_start(
        self, open_store: OpenStore
    ):
        store, other = await open_store(), await open_store()
        assert await store.suspects() == ()
        for _ in range(3):
            await store.begin_run("a")
        found = [
            Suspect(Boundary.OBJECT, "u1", "jobs/team/eins-ß", "team", "SIGSEGV"),
            Suspect(Boundary.SNAPSHOT, "", "namespace team", "team", "out of memory"),
        ]
        await store.keep_suspects(found)
        assert await other.suspects() == tuple(found)
        assert await other.unknown_ends(0.0) == (), "the careful start has covered them"
        await other.keep_suspects([])
        assert await store.suspects() == ()

    async def test_a_deposed_leader_cannot_commit(self, open_store: OpenStore):
        old, new = await open_store(), await open_store()
        old_epoch = await old.take_over("old", 0)
        await commit(old, old_epoch, submitted("u1"))
        new_epoch = await new.take_over("new", old_epoch)
        with pytest.raises(Fenced):
            await commit(old, old_epoch, submitted("u2"))
        assert set(await loaded(new)) == {"u1"}
        await commit(new, new_epoch, submitted("u3"))
        assert set(await loaded(old)) == {"u1", "u3"}

    async def test_a_commit_with_an_unknown_epoch_is_refused(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        with pytest.raises(Fenced):
            await commit(store, epoch + 1, submitted("u1"))

    async def test_a_stale_row_stops_the_whole_commit(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first, other = submitted("u1"), submitted("u2")
        await commit(store, epoch, first, other)
        moved = step(first.after, Refuse(WAITS))
        await commit(store, epoch, moved)
        before = await store.history(None)
        stale = step(first.after, Admit(HERE))
        with pytest.raises(StaleSnapshot):
            await commit(store, epoch, step(other.after, Admit(HERE)), stale, submitted("u3"))
        assert await loaded(store) == {"u1": moved.after, "u2": other.after}
        assert await store.history(None) == before

    async def test_a_workload_has_one_change_in_a_commit(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1")
        await commit(store, epoch, first)
        before = await store.history(None)
        twice = (step(first.after, Refuse(WAITS)), step(first.after, Admit(HERE)))
        for changes in (twice, (submitted("u2"), submitted("u2"))):
            with pytest.raises(ValueError, match="has two changes in one commit"):
                await commit(store, epoch, *changes)
        assert await loaded(store) == {"u1": first.after}
        assert await store.history(None) == before

    async def test_a_workload_is_added_once(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, submitted("u1"))
        with pytest.raises(StaleSnapshot):
            await commit(store, epoch, submitted("u0"), submitted("u1"))
        assert set(await loaded(store)) == {"u1"}

    async def test_a_workload_that_is_submitted_again_replaces_its_finished_row(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1")
        await commit(store, epoch, first)
        await commit(store, epoch, step(first.after, Ended(JobOutcome.SUCCEEDED)))
        await commit(store, epoch, first)
        assert await loaded(store) == {"u1": first.after}

    async def test_a_change_of_a_workload_that_does_not_exist_is_stale(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        with pytest.raises(StaleSnapshot):
            await commit(store, epoch, step(submitted("u1").after, Refuse(WAITS)))

    async def test_a_plan_of_an_older_configuration_is_stale(self, open_store: OpenStore):
        store, api = await open_store(), await open_store()
        epoch = await leader(store)
        await api.put_config(QUEUE)
        revision, _ = await store.configuration()
        await commit(store, epoch, submitted("u1"), revision=revision)
        await api.put_config(queue("gpus"))
        with pytest.raises(StaleConfiguration):
            await commit(store, epoch, submitted("u2"), revision=revision)
        await commit(store, epoch, submitted("u3"))
        assert set(await loaded(store)) == {"u1", "u3"}

    @pytest.mark.parametrize("right", [True, False])
    async def test_a_commit_can_tolerate_a_change_of_the_configuration(
        self, open_store: OpenStore, right: bool
    ):
        store, api = await open_store(), await open_store()
        epoch = await leader(store)
        await api.put_config(queue("gone"))
        revision = await api.put_config(queue("gpus"))
        await api.put_config(queue("gpus", cohort="all"))
        await api.delete_config(DocumentKey("ClusterQueue", "", "gone"))
        asked: list[ConfigChanges] = []

        async def judge(changes: ConfigChanges) -> bool:
            asked.append(changes)
            return right

        known = {DocumentKey("ClusterQueue", "", name) for name in ("gone", "gpus")}
        tolerance = Tolerance(known, judge)
        with nullcontext() if right else pytest.raises(StaleConfiguration):
            await store.commit(
                Commit([submitted("u1")], revision=revision, tolerance=tolerance),
                epoch=epoch,
                cycle=1,
            )
        (changes,) = asked
        assert changes.written == (queue("gpus", cohort="all"),)
        assert changes.deleted == {DocumentKey("ClusterQueue", "", "gone")}
        assert set(await loaded(store)) == ({"u1"} if right else set())

    async def test_edits_wait_while_a_commit_decides_whether_it_tolerates_earlier_ones(
        self, open_store: OpenStore
    ):
        store, api = await open_store(), await open_store()
        epoch = await leader(store)
        revision = await api.put_config(queue("gpus"))
        await api.put_config(queue("gpus", cohort="all"))
        edits: list[asyncio.Task[int]] = []
        present: list[int] = []

        async def judge(changes: ConfigChanges) -> bool:
            edits.append(asyncio.create_task(api.put_config(queue("gpus"))))
            await asyncio.wait(edits, timeout=0.1)
            present.append((await api.configuration())[0])
            return not edits[0].done() and present == [changes.revision]

        await store.commit(
            Commit([submitted("u1")], revision, tolerance=Tolerance((), judge)),
            epoch=epoch,
            cycle=1,
        )
        assert await edits[0] > present[0]
        assert set(await loaded(store)) == {"u1"}

    async def test_an_empty_commit_of_a_deposed_leader_is_refused_too(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch)
        await store.take_over("next", 0)
        with pytest.raises(Fenced):
            await commit(store, epoch)

    async def test_text_that_no_database_can_hold_does_not_stop_a_commit(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1")
        refused = step(first.after, Refuse(Reason(Code.MISCONFIGURED, "annotation 'a\x00b'")))
        await commit(store, epoch, first)
        await commit(store, epoch, refused)
        assert (await loaded(store))["u1"].reason.message == "annotation 'a\ufffdb'"

    # -- history ------------------------------------------------------------------------------------------------------

    async def test_history_has_each_recorded_step_in_order(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1")
        admitted = step(first.after, Admit(HERE, {"tried": 3}), 1700000002.5)
        echoed = step(admitted.after, StartConfirmed())
        assert echoed.note is None
        for number, change in enumerate((first, admitted, echoed), 5):
            await commit(store, epoch, change, submitted(f"x{number}"), cycle=number)
        queued, started = await store.history("u1")
        assert (queued.event, queued.from_state, queued.to_state) == ("Queued", None, State.PENDING)
        assert (started.from_state, started.to_state) == (State.PENDING, State.STARTING)
        assert (started.at, started.cycle, started.epoch) == (1700000002.5, 6, epoch)
        assert started.reason == Reason(Code.ADMITTED, "admitted as attempt 1", {"tried": 3})
        assert (started.placement, queued.placement) == (HERE, None)
        assert (started.kind, started.namespace, started.name) == ("Job", "team-a", "job-u1")

    async def test_history_is_read_from_the_last_known_line_on(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, *(submitted(f"u{n}") for n in range(5)))
        seen = await store.history(None, limit=2)
        seen += await store.history(None, after=seen[-1].id, limit=2)
        seen += await store.history(None, after=seen[-1].id, limit=2)
        assert sorted(line.uid for line in seen) == [f"u{n}" for n in range(5)]
        assert [line.id for line in seen] == sorted({line.id for line in seen})
        assert await store.history(None, after=seen[-1].id) == ()

    # -- decisions ----------------------------------------------------------------------------------------------------

    async def test_a_decision_is_kept_with_the_lines_of_its_commit(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first, second = submitted("u1"), submitted("u2")
        await commit(store, epoch, first, second, cycle=4)
        assert await store.decisions() == ()
        started = step(first.after, Admit(HERE))
        await store.commit(Commit([started], decision=DECISION), epoch=epoch, cycle=4)
        (decided,) = await store.decisions()
        assert (decided.epoch, decided.cycle, decided.decision) == (epoch, 4, DECISION)
        assert await store.get_decision(decided.id) == decided
        lines = await store.history(None)
        own = [line for line in lines if decided.after < line.id <= decided.upto]
        assert [(line.uid, line.to_state) for line in own] == [("u1", State.STARTING)]
        assert await store.get_decision(decided.id + 1) is None

    async def test_a_decision_in_the_first_commit_has_all_lines(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        both = [submitted("u1"), submitted("u2")]
        await store.commit(Commit(both, decision=DECISION), epoch=epoch, cycle=1)
        (decided,) = await store.decisions()
        lines = await store.history(None, decided.after)
        assert {line.uid for line in lines if line.id <= decided.upto} == {"u1", "u2"}

    async def test_decisions_are_read_from_the_newest_on(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        for n in range(5):
            await store.commit(
                Commit([submitted(f"u{n}")], decision=DECISION), epoch=epoch, cycle=n
            )
        newest = await store.decisions(limit=2)
        rest = await store.decisions(before=newest[-1].id, limit=10)
        assert [decided.cycle for decided in (*newest, *rest)] == [4, 3, 2, 1, 0]

    # -- refused plans ------------------------------------------------------------------------------------------------

    async def test_the_newest_refused_plans_are_kept_up_to_a_number_and_a_size(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        assert await store.refused_plans() == ()
        for n in range(KEPT_DECISIONS + 2):
            plan = RefusedPlan(0, float(n), epoch, n, ("Whole",), 3)
            await store.keep_refused(plan, b"%3d" % n)
        found = await store.refused_plans()
        assert [one.cycle for one in found] == list(range(KEPT_DECISIONS + 1, 1, -1))
        newest = replace(plan, id=found[0].id)
        assert found[0] == newest
        assert await store.refused_plan(newest.id) == b"%3d" % (KEPT_DECISIONS + 1)
        assert await store.refused_plan(newest.id + 1) is None
        large = RefusedPlan(0, 1.0, epoch, 99, ("Order", "Whole"), KEPT_BYTES - 6)
        await store.keep_refused(large, b"large")
        assert [one.cycle for one in await store.refused_plans()] == [
            99,
            KEPT_DECISIONS + 1,
            KEPT_DECISIONS,
        ]
        await store.take_over("next", 0)
        with pytest.raises(Fenced):
            await store.keep_refused(large, b"late")

    async def test_a_leader_writes_a_batch_of_configuration_under_one_revision(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        epoch = await store.take_over("a", 0)
        await store.put_config(QUEUE)
        other = {**QUEUE, "metadata": {"name": "other"}}
        changed = {**QUEUE, "spec": {"queueingStrategy": "BestEffortFIFO"}}
        begun, _ = await store.configuration()
        line = AuditLine(0, 1.0, "", "leader", (), "PUT", "/x", "putClusterQueue", 200, "a\0b")
        batch = ConfigurationBatch(begun, [changed, other], (), [line, line])
        assert await store.write_configuration(batch, epoch=epoch) == begun + 1
        changes = await store.config_changes(begun, set())
        assert changes.revision == begun + 1
        names = {one["metadata"]["name"] for one in changes.written}
        assert names == {"gpus", "other"}
        found = await store.get_config(DocumentKey.of(QUEUE))
        assert found is not None
        assert (found.document, found.version) == (changed, begun + 1)
        assert len(await store.audit.lines(AuditFilter(caller="leader"), 10)) == 2

        await store.confirm_deletion("abc")
        with pytest.raises(StaleConfiguration):
            await store.write_configuration(
                ConfigurationBatch(begun, (), {DocumentKey.of(QUEUE)}, ()), epoch=epoch
            )
        with pytest.raises(Fenced):
            await store.write_configuration(
                ConfigurationBatch(begun + 1, (), {DocumentKey.of(QUEUE)}, ()), epoch=epoch - 1
            )
        assert await store.get_config(DocumentKey.of(QUEUE)) is not None
        assert await store.confirmed_deletion() == "abc"
        removal = ConfigurationBatch(begun + 1, (), {DocumentKey.of(QUEUE)}, ())
        assert await store.write_configuration(removal, epoch=epoch) == begun + 2
        assert await store.get_config(DocumentKey.of(QUEUE)) is None
        assert await store.confirmed_deletion() == "", "a confirmation is used once"

    async def test_the_report_on_objects_of_the_cluster_is_replaced(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        epoch = await store.take_over("a", 0)
        assert await store.followed() == FollowedReport()
        report = FollowedReport(
            5.0,
            "kueue",
            (FollowedSource("cohorts.kueue.x-k8s.io", "v1beta2", 3, "403"),),
            (FaultyObject("Cohort", "", "a", "spec: is wrong", True),),
            1,
            ("ClusterQueue b",),
            PendingDeletion("id", ("ClusterQueue c",), 7),
        )
        await store.keep_followed(report, epoch=epoch)
        assert await store.followed() == report
        with pytest.raises(Fenced):
            await store.keep_followed(FollowedReport(), epoch=epoch - 1)
        assert await store.followed() == report

    async def test_stages_are_read_from_history_once(self, open_store: OpenStore) -> None:
        store = await open_store()
        epoch = await leader(store)
        begin = await store.exported_upto(epoch=epoch)
        assert await store.ended_stages(begin, 10) == EndedStages(begin, ())
        changes = [submitted("uid", "train", at=10.0)]
        preempted = Evict(Reason(Code.PREEMPTED, "for job-x"))
        for event in (Admit(HERE), PodsReady(), preempted, Drained(), Admit(HERE), PodsReady()):
            changes.append(step(changes[-1].after, event, changes[-1].at + 1.0))
        for change in changes:
            await commit(store, epoch, change)
        page = await store.ended_stages(begin, 100)
        found = [(s.attempt, str(s.state), s.since, s.until, s.begun) for s in page.stages]
        at = [change.at for change in changes]
        assert found == [
            (1, "Pending", at[0], at[1], at[0]),
            (1, "Starting", at[1], at[2], at[0]),
            (1, "Running", at[2], at[3], at[0]),
            (1, "Evicting", at[3], at[4], at[0]),
            (2, "Pending", at[4], at[5], at[4]),
            (2, "Starting", at[5], at[6], at[4]),
        ]
        assert {(s.namespace, s.name, s.cluster_queue) for s in page.stages} == {
            ("team-a", "train", "gpus")
        }
        first = await store.ended_stages(begin, 2)
        assert first.stages == page.stages[:1]
        await store.keep_exported(first.upto, epoch=epoch)
        assert await store.exported_upto(epoch=epoch) == first.upto
        for call in (
            store.keep_exported(page.upto, epoch=epoch - 1),
            store.exported_upto(epoch=epoch - 1),
        ):
            with pytest.raises(Fenced):
                await call
        assert await store.exported_upto(epoch=epoch) == first.upto

    async def test_the_newest_object_of_each_unit_that_is_set_aside_is_kept(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        assert await store.set_aside_objects() == ()
        first = SetAsideObject(
            0, 1.5, epoch, "object", "u", "jobs/a/b", "abc", "KeyError", 9, False
        )
        await store.keep_set_aside(first, b"first")
        for n in range(KEPT_OBJECTS):
            await store.keep_set_aside(replace(first, key=f"u{n}"), b"%d" % n)
        found = await store.set_aside_objects()
        assert [one.key for one in found] == [f"u{n}" for n in reversed(range(KEPT_OBJECTS))]
        again = replace(first, key="u0", truncated=True)
        await store.keep_set_aside(again, b"again")
        newest, *others = await store.set_aside_objects()
        assert newest == replace(again, id=newest.id)
        assert len(others) == KEPT_OBJECTS - 1
        assert await store.set_aside_object(newest.id) == b"again"
        assert await store.set_aside_object(newest.id + 1) is None
        await store.take_over("next", 0)
        with pytest.raises(Fenced):
            await store.keep_set_aside(first, b"late")

    async def test_only_the_leader_waits_for_its_commits(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await store.commits_ended(epoch=epoch)
        await store.take_over("next", 0)
        with pytest.raises(Fenced):
            await store.commits_ended(epoch=epoch)

    async def test_a_commit_that_fails_keeps_no_decision(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        with pytest.raises(Fenced):
            await store.commit(
                Commit([submitted("u1")], decision=DECISION), epoch=epoch - 1, cycle=1
            )
        assert await store.decisions() == ()

    async def test_old_decisions_are_deleted_and_history_is_not(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await store.commit(Commit([submitted("u1")], decision=DECISION), epoch=epoch, cycle=1)
        still = DECISION.at + KEPT_SECONDS
        assert await store.prune(Retention(), still, epoch=epoch) == 0
        assert await store.prune(Retention(), still + 1.0, epoch=epoch) == 1
        assert await store.decisions() == ()
        assert len(await store.history(None)) == 1

    # -- waiting for history ---------------------------------------------------------------------------------------

    async def test_a_waiter_for_history_is_notified_of_new_lines(self, open_store: OpenStore):
        writer, reader = await open_store(), await open_store()
        epoch = await leader(writer)
        assert await reader.newest_line() == 0
        waiting = asyncio.create_task(reader.history_grown(0, poll=self.POLL))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await commit(writer, epoch, submitted("u1"))
        async with asyncio.timeout(10.0):
            await waiting
        newest = await reader.newest_line()
        assert [line.id for line in await reader.history(None)] == [newest]
        await reader.history_grown(newest - 1)

    async def test_a_line_knows_the_cluster_queue_of_its_workload(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        new = submitted("u1")
        await commit(store, epoch, new)
        (line,) = await store.history("u1")
        assert line.cluster_queue == new.after.cluster_queue != ""

    # -- commands -----------------------------------------------------------------------------------------------------

    async def test_a_command_is_pending_until_it_is_answered_with_its_changes(
        self, open_store: OpenStore
    ):
        store, api = await open_store(), await open_store()
        epoch = await leader(store)
        await commit(store, epoch, first := submitted("u1"))
        hold = await api.add_command(asked("u1", Action.HOLD, "r1"))
        boost = await api.add_command(asked("u1", Action.PRIORITY, "r2", 70))
        assert await store.commands() == (hold,), "the first one of a workload"
        held = step(first.after, CommandReceived(hold))
        await store.commit(Commit([held], answers=[Answer(hold.id, "done")]), epoch=epoch, cycle=1)
        assert await loaded(store) == {"u1": held.after}
        assert await store.commands() == (boost,)

    async def test_a_command_is_answered_once(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, first := submitted("u1"))
        hold = await store.add_command(asked("u1", Action.HOLD, "r1"))
        answers = [Answer(hold.id, "done")]
        await store.commit(Commit([], answers=answers), epoch=epoch, cycle=1)
        held = step(first.after, CommandReceived(hold))
        with pytest.raises(StaleSnapshot):
            await store.commit(Commit([held], answers=answers), epoch=epoch, cycle=1)
        assert await loaded(store) == {"u1": first.after}, "the second answer has no effect"

    async def test_the_same_request_is_the_same_command(self, open_store: OpenStore):
        store = await open_store()
        first = await store.add_command(asked("u1", Action.PRIORITY, "r1", 70))
        assert await store.add_command(asked("u1", Action.PRIORITY, "r1", 70)) == first
        assert await store.get_command("r1") == first
        assert await store.get_command("r2") is None
        for other in (asked("u2", Action.PRIORITY, "r1", 70), asked("u1", Action.HOLD, "r1")):
            with pytest.raises(Conflict):
                await store.add_command(other)
        assert await store.commands() == (first,)

    async def test_commands_of_one_workload_do_not_delay_those_of_others(
        self, open_store: OpenStore
    ):
        store = await open_store()
        flood = [asked("u1", Action.PRIORITY, f"r{n}", n) for n in range(MOST_WAITING)]
        first, *_ = [await store.add_command(one) for one in flood]
        other = await store.add_command(asked("u2", Action.HOLD, "other"))
        assert await store.commands() == (first, other)
        with pytest.raises(TooManyCommands):
            await store.add_command(asked("u1", Action.HOLD, "one-more"))
        assert await store.add_command(flood[0]) == first, "the same request gets the same result"

    async def test_the_result_of_a_command_is_found_by_its_id_and_by_its_workload(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, submitted("u1"), submitted("u2"))
        command = replace(asked("u1", Action.PRIORITY, "r1", 70), until=1700000900.5, why="a demo")
        boost = await store.add_command(command)
        move = await store.add_command(replace(asked("u1", Action.MOVE, "r2"), queue="other"))
        other = await store.add_command(asked("u2", Action.HOLD, "r3"))
        assert await store.commands() == (boost, other)
        answers = [Answer(boost.id, "done"), Answer(other.id, "it was so already")]
        await store.commit(Commit([], answers=answers), epoch=epoch, cycle=1)
        done = replace(boost, outcome="done")
        assert (boost.outcome, boost.until, boost.why) == (None, 1700000900.5, "a demo")
        assert await store.command(boost.id) == done
        assert await store.command(move.id) == move
        assert await store.command(other.id + 1) is None
        assert await store.get_command("r1") == done
        assert await store.add_command(command) == done, "the same request gets the same result"
        assert await store.commands_of("u1") == (done, move)
        assert await store.commands_of("u1", limit=1) == (done,)
        assert await store.commands_of("u1", after=boost.id) == (move,)
        assert await store.commands_of("nobody") == ()

    async def test_following_the_ledger_gives_the_same_as_loading_it(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        names = ("u1", "u2", "u3", "u4")
        first, second, third, fourth = (submitted(name) for name in names)
        await store.put_config({"kind": "ClusterQueue", "metadata": {"name": "a"}})
        await commit(store, epoch, first, second, third)
        before = await store.load()
        same = await store.follow(before)
        assert same == before
        assert all(a is b for a, b in zip(same.entries, before.entries, strict=True))
        assert same.documents is before.documents
        started = step(second.after, Admit(HERE))
        await commit(store, epoch, started, step(third.after, ObjectDeleted()), fourth)
        after = await store.follow(before)
        assert after == await store.load()
        assert [e.uid for e in after.entries] == ["u1", "u2", "u4"]
        assert after.entries[0] is before.entries[0]
        assert after.entries[1] == started.after
        await store.put_config({"kind": "ClusterQueue", "metadata": {"name": "b"}})
        later = await store.follow(after)
        assert later == await store.load()
        assert len(later.documents) == 2

    @pytest.mark.parametrize(
        ("wanted", "numbers"),
        [
            (CommandFilter(), "5 4 3 2 1"),
            (CommandFilter(states=frozenset({CommandState.WAITING})), "5 4"),
            (CommandFilter(states=frozenset({CommandState.DONE})), "1"),
            (CommandFilter(states=frozenset({CommandState.DONE, CommandState.REFUSED})), "3 2 1"),
            (CommandFilter(by="bob"), "3"),
            (CommandFilter(by="bob", states=frozenset({CommandState.DONE})), ""),
            (CommandFilter(namespaces=frozenset({"team-a", "team-x"})), "4 3 1"),
            (CommandFilter(namespaces=frozenset()), ""),
            (CommandFilter(workload="team-b/job-u2"), "2"),
            (CommandFilter(frozenset({"team-a"}), "team-b/job-u2"), ""),
            (CommandFilter(before=3), "2 1"),
        ],
    )
    async def test_the_newest_commands_are_listed_by_subject_and_progress(
        self, open_store: OpenStore, wanted: CommandFilter, numbers: str
    ):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, submitted("u1"), submitted("u2", namespace="team-b"))
        ids: dict[str, int] = {}
        for number, (uid, by) in enumerate(
            [("u1", "a"), ("u2", "a"), ("u1", "bob"), ("u1", "a"), ("gone", "a")], 1
        ):
            request = f"r{number}"
            added = await store.add_command(replace(asked(uid, Action.HOLD, request), by=by))
            ids[request] = added.id
        results = {"r1": "done", "r2": "it was so already", "r3": "the workload no longer exists"}
        answers = [Answer(ids[request], outcome) for request, outcome in results.items()]
        await store.commit(Commit([], answers=answers), epoch=epoch, cycle=1)
        if wanted.before is not None:
            wanted = replace(wanted, before=ids[f"r{wanted.before}"])
        found = await store.newest_commands(wanted)
        assert [c.request_id.removeprefix("r") for c in found] == numbers.split()
        assert [c.outcome for c in found] == [results.get(c.request_id) for c in found]
        assert await store.newest_commands(wanted, 1) == found[:1]

    async def test_another_expiry_or_another_queue_is_another_command(self, open_store: OpenStore):
        store = await open_store()
        first = replace(asked("u1", Action.PRIORITY, "r1", 70), until=1700000900.5)
        await store.add_command(first)
        await store.add_command(replace(asked("u1", Action.MOVE, "r2"), queue="a"))
        for other in (
            replace(first, until=None),
            replace(asked("u1", Action.MOVE, "r2"), queue="b"),
        ):
            with pytest.raises(Conflict):
                await store.add_command(other)

    async def test_a_waiter_is_notified_of_a_command(self, open_store: OpenStore):
        store, api = await open_store(), await open_store()
        waiter = asyncio.create_task(store.commands_waiting(poll=self.POLL))
        done, _ = await asyncio.wait({waiter}, timeout=0.2)
        assert not done
        await api.add_command(asked("u1", Action.HOLD, "r1"))
        async with asyncio.timeout(30):
            await waiter
            await store.commands_waiting()

    # -- retention ----------------------------------------------------------------------------------------------------

    async def test_finished_workloads_are_kept_for_the_retention_period_and_their_history_permanently(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        lives = {uid: submitted(uid) for uid in ("old", "new", "runs", "given-up", "held")}
        await commit(store, epoch, *lives.values())
        given_up = step(lives["given-up"].after, ask(Action.DEACTIVATE))
        held = step(lives["held"].after, ask(Action.HOLD))
        await commit(store, epoch, given_up, held)
        ends = [(lives["old"], 1000.0), (lives["new"], 5000.0), (given_up, 1000.0), (held, 1000.0)]
        await commit(store, epoch, *(step(c.after, ObjectDeleted(), at) for c, at in ends))

        async def left() -> set[str]:
            return {e.uid for e in (await store.list_workloads(WorkloadFilter())).entries}

        assert await store.prune(Retention(), 9000.0, epoch=epoch) == 0
        assert await store.prune(Retention(after_finished=6000.0), 9000.0, epoch=epoch) == 2
        assert await left() == {"new", "runs", "given-up"}
        assert await store.prune(Retention(after_deactivated=6000.0), 9000.0, epoch=epoch) == 1
        assert await left() == {"new", "runs"}
        assert [line.to_state for line in await store.history("old")] == [
            State.PENDING,
            State.FINISHED,
        ]
        with pytest.raises(Fenced):
            await store.prune(Retention(after_finished=0.0), 9000.0, epoch=epoch + 1)

    async def test_a_command_has_the_time_of_the_database(self, open_store: OpenStore):
        store = await open_store()
        before = await store.now()
        late = replace(asked("u1", Action.HOLD, "r1"), at=before + 100_000)
        assert before <= (await store.add_command(late)).at <= await store.now()

    async def test_answered_commands_are_kept_for_a_day(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first = await store.add_command(asked("u1", Action.HOLD, "r1"))
        second = await store.add_command(asked("u1", Action.RELEASE, "r2"))
        await store.commit(Commit([], answers=[Answer(first.id, "done")]), epoch=epoch, cycle=1)
        assert await store.prune(Retention(), first.at + 86_000, epoch=epoch) == 0
        assert await store.prune(Retention(), first.at + 86_500, epoch=epoch) == 1
        assert await store.commands() == (second,)

    # -- configuration ------------------------------------------------------------------------------------------------

    async def test_a_document_is_read_with_its_version(self, open_store: OpenStore):
        store = await open_store()
        version = await store.put_config(QUEUE)
        found = await store.get_config(DocumentKey("ClusterQueue", "", "gpus"))
        assert found is not None
        assert (found.document, found.version) == (QUEUE, version)
        assert await store.configuration() == (version, (QUEUE,))
        assert await store.get_config(DocumentKey("ClusterQueue", "", "cpus")) is None

    async def test_writing_the_same_again_changes_nothing(self, open_store: OpenStore):
        store = await open_store()
        version = await store.put_config(QUEUE)
        assert await store.put_config(QUEUE) == version
        assert (await store.configuration())[0] == version

    @pytest.mark.parametrize(("present", "if_match"), [(True, 0), (True, 99), (False, 1)])
    async def test_a_write_over_another_version_is_a_conflict(
        self, open_store: OpenStore, present: bool, if_match: int
    ):
        store = await open_store()
        version = await store.put_config(QUEUE) if present else 0
        for attempt in (
            store.put_config(queue("gpus", cohort="all"), if_match),
            store.delete_config(DocumentKey("ClusterQueue", "", "gpus"), if_match),
        ):
            with pytest.raises(Conflict) as conflict:
                await attempt
            assert conflict.value.version == version
        assert (await store.configuration())[0] == version

    async def test_if_match_accepts_exactly_one_of_two_writers(self, open_store: OpenStore):
        one, two = await open_store(), await open_store()
        version = await one.put_config(QUEUE, 0)
        answers = await asyncio.gather(
            one.put_config(queue("gpus", cohort="a"), version),
            two.put_config(queue("gpus", cohort="b"), version),
            return_exceptions=True,
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "int"]

    async def test_a_version_is_never_used_again_after_a_deletion(self, open_store: OpenStore):
        store = await open_store()
        key = DocumentKey("ClusterQueue", "", "gpus")
        version = await store.put_config(QUEUE)
        await store.delete_config(key, version)
        assert await store.get_config(key) is None
        with pytest.raises(NotFound):
            await store.delete_config(key)
        assert await store.put_config(QUEUE) > version

    async def test_a_document_has_its_fields_in_the_order_of_a_manifest(
        self, open_store: OpenStore
    ):
        store = await open_store()
        flavor = {"resources": [{"nominalQuota": 8, "name": "cpu"}], "name": "h100"}
        spec = {"flavors": [flavor], "queueingStrategy": "BestEffortFIFO", "cohortName": "all"}
        metadata = {"labels": {"b": "1", "a": "2"}, "name": "q"}
        await store.put_config(
            {
                "spec": spec,
                "metadata": metadata,
                "kind": "ClusterQueue",
                "apiVersion": "queuectl.dev/v1",
            }
        )
        (stored,) = await store.list_config("ClusterQueue")
        assert list(stored.document) == ["apiVersion", "kind", "metadata", "spec"]
        assert list(stored.document["metadata"]) == ["name", "labels"]
        assert list(stored.document["metadata"]["labels"]) == ["a", "b"]
        assert list(stored.document["spec"]) == ["cohortName", "queueingStrategy", "flavors"]
        assert list(stored.document["spec"]["flavors"][0]) == ["name", "resources"]
        assert list(stored.document["spec"]["flavors"][0]["resources"][0]) == [
            "name",
            "nominalQuota",
        ]

    async def test_documents_are_listed_by_code_point(self, open_store: OpenStore):
        store = await open_store()
        for name in ("b", "B", "a-b", "a.b", "ab"):
            await store.put_config(queue(name))
        for namespace in ("team-b", "team-a"):
            local = {"kind": "LocalQueue", "metadata": {"name": "q", "namespace": namespace}}
            await store.put_config(local)
        listed = await store.list_config("ClusterQueue")
        assert [d.key.name for d in listed] == ["B", "a-b", "a.b", "ab", "b"]
        assert [d.key.namespace for d in await store.list_config("LocalQueue")] == [
            "team-a",
            "team-b",
        ]
        assert len(await store.list_config("LocalQueue", "team-b")) == 1
        assert len((await store.configuration())[1]) == 7

    @pytest.mark.parametrize(
        "document", [{}, {"kind": "ClusterQueue"}, {"metadata": {"name": "x"}}]
    )
    async def test_a_document_without_identity_is_refused(
        self, open_store: OpenStore, document: dict[str, object]
    ):
        store = await open_store()
        with pytest.raises(BadInput):
            await store.put_config(document)

    async def test_existing_documents_are_found_by_their_keys(self, open_store: OpenStore):
        store = await open_store()
        for name in ("b", "a", "c"):
            await store.put_config(queue(name))
        keys = [DocumentKey("ClusterQueue", "", name) for name in ("b", "x", "a")]
        found = await store.get_configs(keys)
        assert [(one.key.name, one.version) for one in found] == [("a", 2), ("b", 1)]
        assert await store.get_configs([DocumentKey("Cohort", "", "a")]) == ()
        assert await store.get_configs([]) == ()

    async def test_following_reads_the_changed_documents_alone(self, open_store: OpenStore):
        store, api = await open_store(), await open_store()
        for name in ("a", "b", "c"):
            await api.put_config(queue(name))
        known = {DocumentKey("ClusterQueue", "", name) for name in ("a", "b", "c")}
        first = await store.config_changes(0, ())
        assert (first.revision, len(first.written), first.deleted) == (3, 3, frozenset())
        assert await store.config_changes(3, known) == ConfigChanges(3, ())

        await api.put_config(queue("b", cohort="all"))
        await api.put_config(queue("d"))
        await api.delete_config(DocumentKey("ClusterQueue", "", "a"))
        await api.delete_config(DocumentKey("ClusterQueue", "", "c"))
        await api.put_config(queue("c"))
        after = await store.config_changes(3, known)
        assert after.revision == 8
        assert sorted(one["metadata"]["name"] for one in after.written) == ["b", "c", "d"]
        assert after.deleted == {DocumentKey("ClusterQueue", "", "a")}

    async def test_a_restored_database_is_read_completely(self, open_store: OpenStore):
        store = await open_store()
        await store.put_config(queue("a"))
        gone = DocumentKey("ClusterQueue", "", "b")
        changes = await store.config_changes(99, {DocumentKey("ClusterQueue", "", "a"), gone})
        assert changes == ConfigChanges(1, (queue("a"),), frozenset({gone}))

    async def test_a_waiter_is_notified_of_a_change_by_another_process(self, open_store: OpenStore):
        store, api = await open_store(), await open_store()
        waiter = asyncio.create_task(store.config_changed(0, poll=3600))
        done, _ = await asyncio.wait({waiter}, timeout=0.2)
        assert not done
        version = await api.put_config(QUEUE)
        async with asyncio.timeout(30):
            assert await waiter == version
            assert await store.config_changed(0) == version

    # -- the API's reads ----------------------------------------------------------------------------------------------

    async def test_a_name_finds_the_live_workload_before_finished_ones(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        old, older = submitted("u1", "train", at=90.0), submitted("u2", "train", at=80.0)
        await commit(store, epoch, old, older, submitted("u3", "train", kind="PyTorchJob"))
        await commit(
            store, epoch, step(old.after, ObjectDeleted()), step(older.after, ObjectDeleted())
        )
        gone = await store.find_workload("Job", "team-a", "train")
        assert gone is not None
        assert gone.uid == "u1"
        await commit(store, epoch, submitted("u4", "train", at=70.0))
        live = await store.find_workload("Job", "team-a", "train")
        assert live is not None
        assert live.uid == "u4"
        assert await store.find_workload("Job", "team-b", "train") is None
        each = await store.find_workloads("team-a", "train")
        assert [(one.kind, one.uid) for one in each] == [("Job", "u4"), ("PyTorchJob", "u3")]
        assert await store.find_workloads("team-b", "train") == ()

    @pytest.mark.parametrize(
        ("wanted", "uids"),
        [
            (WorkloadFilter(), {"u1", "u2", "u3", "u4"}),
            (WorkloadFilter(namespace="team-b"), {"u2"}),
            (WorkloadFilter(kind="PyTorchJob"), {"u3"}),
            (WorkloadFilter(queue="other", cluster_queue="cpus"), {"u4"}),
            (WorkloadFilter(states=frozenset({State.STARTING})), {"u1"}),
            (WorkloadFilter(states=frozenset({State.STARTING, State.PENDING})), {"u1", "u2", "u4"}),
            (WorkloadFilter(namespace="team-a", states=frozenset({State.FINISHED})), {"u3"}),
            (WorkloadFilter(namespace="nowhere"), set()),
            (WorkloadFilter(user="ann"), {"u4"}),
            (WorkloadFilter(name="job-u2"), {"u2"}),
        ],
    )
    async def test_a_list_has_the_workloads_of_the_filter(
        self, open_store: OpenStore, wanted: WorkloadFilter, uids: set[str]
    ):
        store = await open_store()
        epoch = await leader(store)
        first, third, fourth = submitted("u1"), submitted("u3", kind="PyTorchJob"), submitted("u4")
        await commit(store, epoch, first, submitted("u2", namespace="team-b"), third, fourth)
        await commit(
            store,
            epoch,
            admitted := step(first.after, Admit(HERE)),
            step(third.after, ObjectDeleted()),
            step(fourth.after, ObjectChanged("other", "cpus", 1, 1, 1, user="ann")),
        )
        page = await store.list_workloads(wanted)
        assert {entry.uid for entry in page.entries} == uids
        assert page.cursor is None
        bare = replace(admitted.after, placement=None, lease=None, intent=None)
        assert all(e == bare for e in page.entries if e.uid == "u1")

    async def test_labels_select_as_in_kubernetes(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1", labels=(("stage", ""), ("team", "nlp")))
        changes = (
            first,
            submitted("u2", namespace="team-b", labels=(("team", "nlp"),)),
            submitted("u3"),
            submitted("u4", labels=(("a.example/b", "1"), ("team", "vision"))),
        )
        await commit(store, epoch, *changes)
        table = {
            "": {"u1", "u2", "u3", "u4"},
            "team=nlp": {"u1", "u2"},
            "team=nlp,stage": {"u1"},
            "team in (nlp,vision)": {"u1", "u2", "u4"},
            "team in (nothing,none)": set(),
            "team!=nlp": {"u3", "u4"},
            "team notin (nlp,vision)": {"u3"},
            "!team": {"u3"},
            "stage": {"u1"},
            "stage=": {"u1"},
            "team=nlp,!stage": {"u2"},
            "a.example/b in (1)": {"u4"},
        }
        for text, uids in table.items():
            page = await store.list_workloads(WorkloadFilter(labels=label_selector(text)))
            assert {entry.uid for entry in page.entries} == uids, text
        there = WorkloadFilter(namespace="team-b", labels=label_selector("team=nlp"))
        assert [entry.uid for entry in (await store.list_workloads(there)).entries] == ["u2"]
        relabeled = step(first.after, LabelsChanged((("team", "vision"),)))
        await commit(store, epoch, relabeled)
        page = await store.list_workloads(WorkloadFilter(labels=label_selector("team=nlp")))
        assert [entry.uid for entry in page.entries] == ["u2"]
        read = await store.get_workload("u1")
        assert read is not None
        assert read.labels == (("team", "vision"),)

    async def test_pages_hold_each_workload_once_by_code_point(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        names = ["b", "a-1", "a.1", "B", "a", "a"]
        spaces = ["t-1", "t"]
        await commit(
            store,
            epoch,
            *(submitted(f"{s}{n}", x, namespace=s) for s in spaces for n, x in enumerate(names)),
        )
        seen: list[tuple[str, str, str]] = []
        cursor = None
        for _ in range(3):
            page = await store.list_workloads(WorkloadFilter(), cursor, 5)
            seen += [(e.namespace, e.name, e.uid) for e in page.entries]
            cursor = page.cursor
        assert cursor is None
        assert len(seen) == 12
        assert seen == sorted(seen)

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("key", list(SortKey))
    async def test_pages_in_any_order_hold_each_workload_once(
        self, open_store: OpenStore, key: SortKey, *, descending: bool
    ):
        store = await open_store()
        epoch = await leader(store)
        arrived = [submitted(f"u{n}", f"job-{n % 4}", at=80.0 + n / 7) for n in range(11)]
        await commit(store, epoch, *arrived)
        said = [
            ObjectChanged("q", "B" if n % 2 else "a", n % 3, n % 4, 1, user=f"user-{n % 3}")
            for n in range(11)
        ]
        await commit(store, epoch, *(step(a.after, s) for a, s in zip(arrived, said, strict=True)))
        order = WorkloadOrder(key, descending)
        seen: list[PagePosition] = []
        cursor = None
        for _ in range(4):
            page = await store.list_workloads(WorkloadFilter(), cursor, 3, order)
            seen += [PagePosition.of(entry, order) for entry in page.entries]
            cursor = page.cursor
        assert cursor is None
        assert len(seen) == 11
        assert seen == sorted(seen, key=lambda one: one.key, reverse=descending)

    async def test_what_waits_or_runs_is_first_and_the_newest_of_each_urgency(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        new = [submitted(f"u{n}", at=float(100 + n // 2)) for n in range(10)]
        await commit(store, epoch, *new)
        hold = CommandReceived(Command(1, "", Action.HOLD, "alice", "r", 1.0))
        events: dict[int, Event] = {1: Admit(HERE), 2: hold, 3: Admit(HERE), 4: hold}
        await commit(store, epoch, *(step(new[n].after, event) for n, event in events.items()))
        for n, at in ((8, 300.0), (5, 301.0), (7, 300.0)):  # the last that ended is first
            await commit(store, epoch, step(new[n].after, ObjectDeleted(), at))
        expected = ["u9", "u6", "u0", "u3", "u1", "u4", "u2", "u5", "u8", "u7"]
        unfinished = frozenset(State) - {State.FINISHED}
        for wanted, uids in (
            (WorkloadFilter(), expected),
            (WorkloadFilter(states=unfinished), expected[:7]),
            (WorkloadFilter(states=frozenset({State.HELD, State.FINISHED})), expected[5:]),
            (WorkloadFilter(namespaces=frozenset()), []),
        ):
            for size in (1, 2, 3, 100):
                for order in (MOST_URGENT_FIRST, WorkloadOrder(SortKey.URGENCY)):
                    seen: list[str] = []
                    cursor: str | None = None
                    while True:
                        page = await store.list_workloads(wanted, cursor, size, order)
                        seen += [entry.uid for entry in page.entries]
                        cursor = page.cursor
                        if cursor is None:
                            break
                    assert seen == (uids if order.descending else uids[::-1])

    async def test_a_cursor_continues_only_the_order_that_it_was_given_for(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, submitted("u1"), submitted("u2"))
        cursor = (await store.list_workloads(WorkloadFilter(), None, 1)).cursor
        with pytest.raises(BadInput):
            await store.list_workloads(WorkloadFilter(), cursor, 1, WorkloadOrder.parse("-gpus"))

    async def test_a_full_page_can_be_the_last_one(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await commit(store, epoch, submitted("u1"), submitted("u2"))
        assert (await store.list_workloads(WorkloadFilter(), None, 2)).cursor is None

    @pytest.mark.parametrize("cursor", ["", "x", "bnVsbA==", "WzEsMiwzXQ=="])
    async def test_a_made_up_cursor_is_bad_input(self, open_store: OpenStore, cursor: str):
        store = await open_store()
        with pytest.raises(BadInput):
            await store.list_workloads(WorkloadFilter(), cursor)

    async def test_workloads_are_named_by_uid_and_unknown_ones_left_out(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        first, second = submitted("u1", "train"), submitted("u2", "eval", namespace="team-b")
        await commit(store, epoch, first, second)
        await commit(store, epoch, step(second.after, ObjectDeleted()))
        asked = ["u2", "nobody", "u1"]
        assert await store.workload_names(asked) == {"u1": "team-a/train", "u2": "team-b/eval"}
        assert await store.workload_names([]) == {}
        read = await store.get_workloads(asked)
        assert {entry.uid: entry.state for entry in read} == {
            "u1": State.PENDING,
            "u2": State.FINISHED,
        }
        assert await store.get_workloads([]) == ()

    async def test_users_are_those_of_workloads_that_have_not_finished(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        users = ("zoe", "ann", "", "Ben", "gone", "ann")
        new = [submitted(f"u{n}", namespace=f"team-{n % 2}") for n in range(len(users))]
        await commit(store, epoch, *new)
        said = [ObjectChanged("q", "a", 0, 8, 1, user=user) for user in users]
        named = [step(a.after, s) for a, s in zip(new, said, strict=True)]
        await commit(store, epoch, *named)
        await commit(store, epoch, step(named[4].after, ObjectDeleted()))
        assert await store.users(None, 9) == ("Ben", "ann", "zoe")
        assert await store.users(None, 2) == ("Ben", "ann")
        assert await store.users({"team-1"}, 9) == ("Ben", "ann")
        assert await store.users([], 9) == ()

    async def test_queue_order_is_by_priority_and_then_by_position(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        lives = {
            "late": submitted("late", at=300.0),
            "early": submitted("early", at=100.0),
            "boosted": submitted("boosted", at=400.0),
            "failed": submitted("failed", at=50.0),
            "other": submitted("other", at=200.0, namespace="team-b"),
            "starts": submitted("starts", at=10.0),
            "never": submitted("never", at=20.0),
            "nowhere": submitted("nowhere", cluster_queue=""),
            "elsewhere": submitted("elsewhere", cluster_queue="cpus", queue="cpus", at=900.0),
        }
        await commit(store, epoch, *lives.values())
        changes = [
            step(lives["boosted"].after, ask(Action.PRIORITY, 99)),
            step(lives["starts"].after, Admit(HERE)),
            step(lives["never"].after, Refuse(Reason(Code.SHAPE_NEVER_FITS))),
        ]
        await commit(store, epoch, *changes)
        last = lives["failed"]
        for event, at in (
            (Admit(HERE), 60.0),
            (Evict(Reason(Code.PODS_READY_TIMEOUT)), 250.0),
            (Drained(), 251.0),
            (RetryDue(), 400.0),
        ):
            await commit(store, epoch, last := step(last.after, event, at))
        lines = await store.positions([*lives, "unknown"])
        assert lines == {
            "boosted": QueuePosition(1, 1),
            "early": QueuePosition(2, 2),
            "other": QueuePosition(3, 1),
            "failed": QueuePosition(4, 3),
            "late": QueuePosition(5, 4),
            "elsewhere": QueuePosition(1, 1),
        }
        assert await store.positions(["late"]) == {"late": QueuePosition(5, 4)}
        assert await store.positions([]) == {}

    async def test_live_workloads_without_a_change_are_the_same_objects(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        first, second = submitted("u1", "train"), submitted("u2", "eval")
        await commit(store, epoch, first, second)
        before = await store.live_workloads(())
        assert [entry.uid for entry in before.entries] == ["u1", "u2"]
        assert before.at <= await store.now()
        await commit(store, epoch, step(first.after, Admit(HERE)))
        after = await store.live_workloads(before.entries)
        assert after.entries[1] is before.entries[1]
        assert after.entries[0].placement == HERE
        await commit(store, epoch, step(second.after, ObjectDeleted()))
        last = await store.live_workloads(after.entries)
        assert [entry.uid for entry in last.entries] == ["u1"]
        assert last.at >= before.at

    async def test_a_search_finds_parts_of_the_names_of_finished_workloads(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        names = {
            "11111111-a": ("team-a", "train"),
            "22222222-b": ("team-a", "train-7b.large"),
            "33333333-c": ("team-b", "pretrain"),
            "44444444-d": ("team-b", "eval"),
        }
        ends = {}
        for at, (uid, (namespace, name)) in enumerate(names.items(), 1):
            ends[uid] = submitted(uid, name, namespace=namespace, at=float(at))
        waits = submitted("55555555-e", "train-now", namespace="team-a")
        await commit(store, epoch, *ends.values(), waits)
        for at, change in enumerate(ends.values(), 100):
            await commit(store, epoch, step(change.after, ObjectDeleted(), float(at)))

        async def matching(text: str, *among: str, limit: int = 50) -> str:
            visible = frozenset(among) if among else None
            matches = await store.finished_matches(SearchText(text), visible, limit)
            return " ".join(each.name for each in matches)

        everything = "train train-7b.large pretrain"
        for text, expected in {
            "train": everything,
            "TRAIN": everything,
            "ai": "pretrain train-7b.large train",
            "e": "eval pretrain train-7b.large train",
            "-7b.": "train-7b.large",
            "b/p": "pretrain",
            "team-a/train": "train train-7b.large",
            "team-b": "eval pretrain",
            "22222222": "train-7b.large",
            "2222222": "",
            "train%": "",
            "tr_in": "",
            "tr\\ain": "",
            "'": "",
            "trainé": "",
            "漢字字": "",
            "tra\0in": "",
            "": "",
            "t" * 400: "",
            "train-now": "",
        }.items():
            assert await matching(text) == expected, text
        assert await matching("train", "team-b") == "pretrain"
        assert await matching("e", "team-b", "nobody") == "eval pretrain"
        assert await matching("22222222", "team-b") == ""
        assert await matching("team-a/train", "team-b") == ""
        assert await matching("team-a/train", limit=1) == "train"
        (summary,) = await store.finished_matches(SearchText("33333333-c"), None, 50)
        assert (summary.ref, summary.state, summary.queued_at) == ("team-b/pretrain", State.FINISHED, 3.0)  # fmt: skip
        assert summary.finished_at == 102.0
        assert [each.ref for each in await store.unfinished()] == ["team-a/train-now"]

    async def test_recent_costs_of_migrations_are_loaded_even_after_the_gang_has_finished(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        now = time.time()
        await commit(store, epoch, first := submitted("u1"))
        await commit(store, epoch, started := step(first.after, Admit(HERE), at=now - 90))
        results = {"clusterQueue": "gpus", "lostGpuSeconds": 460}
        move = Evict(Reason(Code.DEFRAGMENTED, "moved", results), lease=LEASE)
        await commit(store, epoch, leaves := step(started.after, move, at=now - 60))
        assert (await loaded(store))["u1"].lease == LEASE
        await commit(store, epoch, step(leaves.after, ObjectDeleted(), at=now))
        assert (await store.load()).spent == (MigrationCost(now - 60, "gpus", 460),)

    async def test_past_use_is_read_as_it_was_last_sampled(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        assert (await store.load()).used == ()
        await store.keep_use([BUSY, CQ, USER], 0.0, epoch=epoch)
        assert (await store.load()).used == (CQ, BUSY, USER)
        assert await store.past_use() == (CQ, BUSY, USER)
        later = replace(BUSY, at=9.5, amounts={**BUSY.amounts, "memory": 2.0**70 / 3})
        await store.keep_use([later], 0.0, epoch=epoch)
        assert (await (await open_store()).load()).used == (CQ, later, USER)

    async def test_past_use_is_imported_only_if_none_is_known(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await store.put_config(QUEUE, None, [BUSY])
        await store.keep_use([CQ], 0.0, epoch=epoch)
        other = {"memory": 3.0, "nvidia.com/gpu": 99.0}
        stated = [replace(BUSY, amounts=other), replace(CQ, amounts=other), USER]
        with pytest.raises(Conflict):
            await store.put_config(QUEUE, 0, stated)
        assert await store.past_use() == (CQ, BUSY)
        await store.put_config(QUEUE, None, stated)
        assert await store.past_use() == (CQ, BUSY, USER)

    async def test_past_use_that_is_old_is_forgotten(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await store.keep_use([BUSY, CQ, USER], 0.0, epoch=epoch)
        await store.keep_use([], BUSY.at, epoch=epoch)
        assert await store.past_use() == (CQ, BUSY)

    async def test_a_deposed_leader_cannot_write_past_use(self, open_store: OpenStore):
        old, new = await open_store(), await open_store()
        epoch = await old.take_over("old", 0)
        await new.take_over("new", epoch)
        with pytest.raises(Fenced):
            await old.keep_use([BUSY], 0.0, epoch=epoch)
        assert await new.past_use() == ()

    async def test_the_findings_of_the_leader_are_read_by_other_processes(
        self, open_store: OpenStore
    ):
        store, other = await open_store(), await open_store()
        epoch = await leader(store)
        assert await other.findings(0.0) is None
        await store.keep_findings(FOUND, epoch=epoch)
        assert await other.findings(0.0) == FOUND
        assert await other.findings(FOUND.at) is None
        less = LeaderFindings(FOUND.at - 3)  # the clock of a successor can be behind
        await store.keep_findings(less, epoch=epoch)
        assert await other.findings(FOUND.at) == less

    async def test_a_deposed_leader_cannot_publish_findings(self, open_store: OpenStore):
        old, new = await open_store(), await open_store()
        epoch = await old.take_over("old", 0)
        await new.take_over("new", epoch)
        with pytest.raises(Fenced):
            await old.keep_findings(FOUND, epoch=epoch)
        assert await new.findings(0.0) is None

    async def test_past_use_outlives_its_queue(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await store.put_config(queue("gpus"))
        await store.keep_use([CQ], 0.0, epoch=epoch)
        await store.delete_config(DocumentKey("ClusterQueue", "", "gpus"))
        assert (await store.load()).used == (CQ,)

    async def test_a_lease_keeps_its_victims_and_times(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        first = submitted("u1")
        reserved = replace(first.after, version=2, state=State.RESERVED, lease=LEASE)
        await commit(store, epoch, first)
        await commit(store, epoch, EntryChange(first.after, reserved, 1.0))
        assert (await loaded(store))["u1"].lease == LEASE

    async def test_moments_of_shadow_mode_are_summed_by_hour(self, open_store: OpenStore):
        store, other = await open_store(), await open_store()
        epoch = await leader(store)
        assert await other.shadow.last() is None
        first, second = (
            shadow_fold(7200.25, SHADOW_GANG, fitting=1 / 3),
            shadow_fold(7260.5, free=2.0),
        )
        await store.shadow.keep(first, shadow_step(first), over=None, epoch=epoch)
        await store.shadow.keep(second, shadow_step(second), over=7200.25, epoch=epoch)
        assert await other.shadow.last() == second.last
        assert await other.shadow.records(["u1", "other"]) == {"u1": SHADOW_GANG}
        history = await other.shadow.history(Period(7200, 10800), 10)
        assert history.hours == {7200: first.hours[7200] + second.hours[7200]}
        assert history.total.reasons == {"Held": 3.0}
        assert (history.gangs, history.gang_count) == ((SHADOW_GANG,), 1)
        assert (await other.shadow.history(Period(10800, 14400), 10)).hours == {}

    async def test_no_moment_of_shadow_mode_is_counted_twice(self, open_store: OpenStore):
        old, new = await open_store(), await open_store()
        epoch = await leader(old)
        await old.shadow.keep(*shadow_moment(7200.0, free=1.0), over=None, epoch=epoch)
        with pytest.raises(StaleSnapshot):
            await old.shadow.keep(*shadow_moment(7230.0, free=1.0), over=7100.0, epoch=epoch)
        later = await new.take_over("new", epoch)
        with pytest.raises(Fenced):
            await old.shadow.keep(*shadow_moment(7260.0, free=1.0), over=7200.0, epoch=epoch)
        await new.shadow.keep(*shadow_moment(7260.0, free=1.0), over=7200.0, epoch=later)
        history = await new.shadow.history(Period(7200, 10800), 10)
        assert history.total.free == 2.0

    async def test_old_records_of_shadow_mode_are_deleted(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        await store.shadow.keep(*shadow_moment(7260.0, SHADOW_GANG), over=None, epoch=epoch)
        newer = replace(SHADOW_GANG, gang=replace(SHADOW_GANG.gang, uid="u2"), last_at=9e4)
        await store.shadow.keep(*shadow_moment(9e4, newer), over=7260.0, epoch=epoch)
        assert await store.shadow.prune(8e4, epoch=epoch) == 2
        assert await store.shadow.prune(8e4, epoch=epoch) == 0
        history = await store.shadow.history(Period(0, 10**6), 10)
        assert (list(history.hours), history.gangs) == ([90000], (newer,))
        with pytest.raises(Fenced):
            await store.shadow.prune(8e4, epoch=epoch - 1)

    async def test_the_trace_of_shadow_mode_continues_in_another_process(
        self, open_store: OpenStore
    ):
        store, other = await open_store(), await open_store()
        epoch = await leader(store)
        assert await other.shadow.book(0.0) == TraceBook()
        assert await other.shadow.trace(0.0) is None
        assert await other.shadow.progress() == TraceProgress(None, 0, None)
        first, second = shadow_fold(7200.0), shadow_fold(7260.0)
        step = shadow_step(first, SHADOW_TRACED, n1=SHADOW_NODE)
        await store.shadow.keep(first, step, over=None, epoch=epoch)
        gone = replace(SHADOW_TRACED, state=TracedState.GONE, gone=Between(7200.0, 7260.0))
        later = shadow_step(second, gone, n1=None)
        await store.shadow.keep(second, later, over=7200.0, epoch=epoch)
        book = await other.shadow.book(7000.0)
        assert book == TraceBook(later.span, {gone.gang.uid: gone}, {"n1": later.nodes[0]})
        assert (await other.shadow.book(7261.0)).gangs == {}
        whole = await other.shadow.trace(7000.0)
        assert whole is not None
        assert (whole.span, whole.gangs) == (later.span, (gone,))
        assert sorted(one.at for one in whole.nodes) == [7200.0, 7260.0]
        assert await other.shadow.progress() == TraceProgress(later.span, 1, None)
        third = shadow_fold(300.0)
        again = replace(shadow_step(third, n2=SHADOW_NODE), begins=True)
        await store.shadow.keep(third, again, over=7260.0, epoch=epoch)
        assert await other.shadow.book(0.0) == TraceBook(again.span, {}, {"n2": again.nodes[0]})

    async def test_the_trace_of_shadow_mode_keeps_the_last_version_of_each_node(
        self, open_store: OpenStore
    ):
        store = await open_store()
        epoch = await leader(store)
        first, second = shadow_fold(7200.0), shadow_fold(7260.0)
        gone = replace(SHADOW_TRACED, state=TracedState.GONE, gone=Between(7200.0, 7200.0))
        step = shadow_step(first, gone, n1=SHADOW_NODE, n2=SHADOW_NODE)
        await store.shadow.keep(first, step, over=None, epoch=epoch)
        later = shadow_step(second, n1=None)
        await store.shadow.keep(second, later, over=7200.0, epoch=epoch)
        assert await store.shadow.prune(7250.0, epoch=epoch) > 0
        assert set((await store.shadow.book(0.0)).nodes) == {"n1", "n2"}
        await store.shadow.prune(8000.0, epoch=epoch)
        whole = await store.shadow.trace(0.0)
        assert whole is not None
        assert whole.gangs == ()
        assert sorted((one.name, one.at) for one in whole.nodes) == [("n1", 7260.0), ("n2", 7200.0)]

    async def test_the_simulated_report_of_shadow_mode_is_replaced(self, open_store: OpenStore):
        store = await open_store()
        epoch = await leader(store)
        assert await store.shadow.simulated() is None
        await store.shadow.keep_simulated(SHADOW_SIMULATED, epoch=epoch)
        newer = replace(SHADOW_SIMULATED, made_at=9002.5)
        await store.shadow.keep_simulated(newer, epoch=epoch)
        assert await store.shadow.simulated() == newer
        assert (await store.shadow.progress()).simulated_at == 9002.5
        with pytest.raises(Fenced):
            await store.shadow.keep_simulated(newer, epoch=epoch - 1)
