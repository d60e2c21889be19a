"""One plan of a leader: freeze, plan and verify in a thread, commit, record. A plan that cannot be used is dropped and made again.

Independent code verifies a plan. Its decisions are compared with the current cluster. It is written only over the rows from which it
was made, and under a configuration that permits it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import structlog

from queuectl.control.checked_plan import CheckedPlan, PlanStep, checked_plan
from queuectl.control.contained_plan import ContainedPlan, contained_plan
from queuectl.control.leader.decisions import sentence, with_relocations
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.ledger_writer import RETRY_SECONDS, LedgerWriter
from queuectl.control.leader.schedule import Wakeup
from queuectl.control.leader.set_aside import GangsSetAside
from queuectl.control.leader.tolerance import ConfigurationTolerance
from queuectl.control.ports import Clock
from queuectl.control.questions.diagnosis import LeaderDiagnoser
from queuectl.db.ports import Commit
from queuectl.domain.containment import Boundary, Containment, place_of
from queuectl.domain.errors import StaleConfiguration
from queuectl.domain.gpus import summed
from queuectl.domain.ledger import CycleDecision, EntryChange, State
from queuectl.domain.pending_limits import considered
from queuectl.domain.plan import Plan, Refusal
from queuectl.domain.queries import Tolerance
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.lifecycle.machine import MAX_BUDGET
from queuectl.mig.reconfigurer import MigReconfigurer
from queuectl.mig.search import MigFound, MigSearch
from queuectl.objects.configuration.catalog import Catalog
from queuectl.objects.files.refused_plans import BrokenRule
from queuectl.planner import StopSignal
from queuectl.planner.backfill.timeline import next_expected_end
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.reservations import lease_end
from queuectl.planner.order.pending_gangs import PendingGangs
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import PlanViolation
from queuectl.reports.fragmentation import spreads
from queuectl.state.pending_window import PendingWindow
from queuectl.telemetry.metrics import CycleStage, DiscardReason, MetricsRecorder

# ---- The record of a cycle


def record_of(
    snapshot: Snapshot, plan: Plan, changes: Iterable[EntryChange], seconds: float
) -> CycleDecision | None:
    """The record of one cycle; None if no decision has a line of history.

    Args:
        snapshot: the plan was made from.
        plan: what was decided.
        changes: its committed changes.
        seconds: its duration.
    """
    noted = {c.after.uid: c.after for c in changes if c.note is not None}
    if not noted:
        return None
    asked = {p.workload.uid: p.workload for p in snapshot.pending if p.workload.uid in noted}
    started = [
        Admitted(asked[admission.uid], admission.placement).gpus
        for admission in plan.admitted
        if not admission.repaired
        and (entry := noted.get(admission.uid)) is not None
        and entry.state is State.STARTING
    ]
    leaving = [entry.reason.code for entry in noted.values() if entry.state is State.EVICTING]
    moved = leaving.count(Code.DEFRAGMENTED)
    return CycleDecision(
        at=snapshot.now,
        revision=snapshot.config.revision,
        nodes=len(snapshot.fleet.nodes),
        pending=len(snapshot.pending),
        running=len(snapshot.admitted),
        started=len(started),
        gpus=summed(started),
        evicted=len(leaving) - moved,
        moved=moved,
        waiting=len(plan.pending),
        reasons=plan.waiting_by_code,
        proof=plan.proof,
        seconds=seconds,
        stats=dict(plan.stats),
    )


# ---- The plan

log = structlog.get_logger()

_PLANNING: Final = "planning"
_MIG_SEARCH: Final = "search for MIG configurations"
WINDOW_SECONDS: Final = 1.0
"""The longest time between two plans while not all gangs are considered in each."""
MOST_KEPT: Final = 100
"""For so many different sets of violations, a plan is saved only once."""
NOTHING_TO_PLAN: Final = "no gang is pending"
"""The summary of a cycle without a plan."""


class Planning:
    """Makes, verifies and commits the plans of one leadership.

    Attributes:
        between_plans: set while no plan is made. Other threads can wait for it.
    """

    def __init__(
        self,
        *,
        leader_state: LeaderState,
        writer: LedgerWriter,
        wakeup: Wakeup,
        metrics: MetricsRecorder,
        clock: Clock,
        diagnoser: LeaderDiagnoser,
        cache: PlannerCache,
        stop: StopSignal,
        mig: MigReconfigurer,
        defragment_seconds: float,
        containment: Containment,
        step: Callable[[], None],
    ) -> None:
        """Plan nothing yet.

        ``defragment_seconds``: between two searches for gangs to move; 0: each plan can search. ``step``: called before each plan.
        """
        self._step = step
        self._containment = containment
        self._window = PendingWindow()
        self._gangs = GangsSetAside(containment, leader_state.pending)
        self._leader_state = leader_state
        self._writer = writer
        self._wakeup = wakeup
        self._metrics = metrics
        self._clock = clock
        self._diagnoser = diagnoser
        self._cache = cache
        self._stop = stop
        self._mig = mig
        self._defragment_seconds = defragment_seconds
        self._last_cohort = ""  # that was planned without the others
        self._seek_at = 0.0  # the time of the next search for gangs to move
        self._seeks = True  # whether the plans since the last change, which are for different gangs, search for gangs to move
        self._kept: dict[frozenset[tuple[str, str]], None] = {}  # violations of refused plans
        self._exposed_at: float | None = None  # the time at which plans can differ without a change
        self.worked = 0.0  # CPU seconds of the last plan
        self.between_plans = threading.Event()
        self.between_plans.set()

    async def plan(self, *, changed: bool) -> str:
        """Plan and commit once. Returns a summary. Raises the errors of :meth:`LedgerWriter.commit`.

        ``changed``: there is more to plan than the gangs that the last plan left out.
        """
        worked = time.thread_time()
        anything = self._leader_state.anything_to_plan()
        self.worked = time.thread_time() - worked
        if not anything:
            return NOTHING_TO_PLAN
        catalog = self._leader_state.catalog()
        with self._metrics.stage(CycleStage.FREEZE):
            if changed:
                self._seeks = self._clock() >= self._seek_at
            snapshot = self._leader_state.snapshot(seek_room=self._seeks)
            within, beyond = considered(snapshot, self._gangs.without_snapshot())
            planned = self._window.applied(within, changed=changed)
        asked = self._mig.question(planned)
        self.worked = frozen = time.thread_time() - worked
        began = time.perf_counter()
        out = self._gangs.left_out(planned)
        contained, answer = await asyncio.to_thread(self._decide, planned, asked, out)
        self._window.took(self.worked - frozen)
        await self._writer.written()
        took = time.perf_counter() - began
        refusals = self._gangs.learn(planned, out, contained)
        await self._keep_failures(planned, contained)
        checked = contained.checked
        if checked is None:
            self._metrics.attempted(took, admitted=False)
            return self._failed(contained.error)
        mig = await self._answered(answer, planned)
        decision = self._completed(contained, checked.plan, (*refusals, *beyond))
        self._metrics.planned(decision)
        lines = self._cache.get(checked.snapshot.config, PendingGangs)  # of the plan
        if lines is not None:
            self._metrics.pending_classes.planned(lines, self._leader_state.entry)
        for alarm in dict.fromkeys(decision.alarms):
            log.error("solver_failed", message=alarm, count=decision.alarms.count(alarm))
        if not checked.usable:
            self._metrics.attempted(took, admitted=False)
            return await self._discard(checked)
        if contained.cohort and contained.error is not None:
            self._containment.failed(Boundary.TASK, _PLANNING, contained.error)
        else:
            self._containment.passed(Boundary.TASK, _PLANNING)
        for violation in mig.violations:
            log.error("plan_refused", violation=str(violation))
            self._metrics.discarded(DiscardReason.VERIFIER)
        self._diagnoser.planned(checked)
        self._window.answered(checked.plan.pending, out)
        self._set_next_plan(contained, checked, decision, changed=changed)
        changes: list[EntryChange] = []
        try:
            changes = await self._commit(
                snapshot, decision, took, catalog, checked, mig, whole=not contained.cohort
            )
        finally:  # a plan that is not committed admits no gang
            self._metrics.attempted(took, admitted=any(map(_starts, changes)))
        if beyond and any(map(_leaves_room, changes)):
            self._wakeup.plan()  # others are considered instead of those that start or are held
        if any(c.before is not None and c.before.awaits_checks for c in changes):
            self._wakeup.plan()  # a gang without pods has released its capacity, and no observation follows
        if any(admission.repaired for admission in decision.admitted):
            self._wakeup.plan()  # pods that are added to a gang wait for its repair
        self._count(checked.snapshot, decision, changes)
        await self._mig.begin(mig, snapshot)
        return sentence(snapshot, decision, changes)

    def _set_next_plan(
        self, contained: ContainedPlan, checked: CheckedPlan, decision: Plan, *, changed: bool
    ) -> None:
        """Set the times at which plans follow without a change."""
        if contained.put_off or any(map(self._worth_more, decision.pending)):
            self._wakeup.plan_by(RETRY_SECONDS)
        elif self._window.partial:
            self._wakeup.plan_rest_in(WINDOW_SECONDS)
        if decision.stats.get("rooms_sought"):
            self._seek_again(checked.snapshot.now)
        self._exposed_at = _first(
            # The gangs of the plans before this one are not considered again before the next change.
            None if changed else self._exposed_at,
            next_plan_due(checked.snapshot, checked.decided),
            next_expected_end(checked.snapshot, checked.decided),
        )

    def _completed(
        self, contained: ContainedPlan, plan: Plan, refusals: tuple[Refusal, ...]
    ) -> Plan:
        """A plan with the answers for the gangs that it leaves out. The plan of one cohort decides no Reservation."""
        reserved = self._leader_state.planning.reserved if contained.cohort else plan.reserved
        return replace(plan, pending=(*plan.pending, *refusals), reserved=reserved)

    async def _commit(
        self,
        snapshot: Snapshot,
        decision: Plan,
        took: float,
        catalog: Catalog,
        checked: CheckedPlan,
        mig: MigFound,
        *,
        whole: bool,
    ) -> list[EntryChange]:
        """Write the decisions of a plan that are still valid.

        Users edit the configuration at any time. Decisions for gangs of LocalQueues for which the newest configuration does not permit
        them are dropped, and the rest is written. Changes of other rules than those of queues make the plan stale.

        ``catalog``: of the configuration it was made from. ``mig``: include migrations off nodes that are emptied. ``whole``: it is not
        the plan of one cohort.
        """
        dropped: frozenset[tuple[str, str]] = frozenset()
        documents = catalog.keys
        reserved = (
            decision.reserved if decision.reserved != self._leader_state.planning.reserved else None
        )
        while True:
            decider, now = self._leader_state.decider, self._clock()
            decided = decider.changes(snapshot, decision, now, dropped)
            relocations = [
                change
                for moves in self._mig.moves(mig)
                for change in decider.relocations(snapshot, moves, lease_end(snapshot), now)
            ]
            changes = with_relocations(decided, relocations)
            concerned = self._queues_served(decision, changes)
            news = ConfigurationTolerance(
                catalog, checked, concerned, dropped, whole=whole and not relocations
            )
            try:
                await self._writer.commit(
                    Commit(
                        changes,
                        snapshot.config.revision,
                        decision=record_of(snapshot, decision, changes, took),
                        tolerance=Tolerance(documents, news.spare),
                        reserved=reserved,
                    )
                )
            except StaleConfiguration:
                if news.error is not None:
                    self._containment.failed(Boundary.TASK, _PLANNING, news.error)
                if not news.faulty:
                    raise
                dropped |= news.faulty
                self._leader_state.drop_plan()
            else:
                return changes

    def _queues_served(
        self, decision: Plan, changes: Iterable[EntryChange]
    ) -> frozenset[tuple[str, str]]:
        """LocalQueues of the gangs in the changes, and of the gangs for which others are evicted."""
        waiting = [c.before for c in changes if c.before is not None and c.before.state.waiting]
        served = {p.preemptor for p in decision.preempted} | {m.beneficiary for m in decision.moved}
        waiting += filter(None, map(self._leader_state.entry, served))
        return frozenset((entry.namespace, entry.queue) for entry in waiting)

    def consider(self, uid: str) -> None:
        """Consider this gang in the next plans, however many others wait. A StrictFIFO ClusterQueue keeps its order."""
        entry = self._leader_state.ledger.get(uid)
        config = self._leader_state.config
        queue = config.cluster_queue_of(entry.namespace, entry.queue) if entry is not None else None
        if self._window.partial and queue is not None and not queue.strict:
            self._window.pin(uid)
            self._wakeup.plan()

    def exposes(self, now: float) -> bool:
        """Whether plans can differ at ``now`` without a change since the last one. True only once."""
        if self._exposed_at is None or self._exposed_at > now:
            return False
        self._exposed_at = None
        return True

    def _decide(
        self, snapshot: Snapshot, mig_search: MigSearch, out: Collection[str]
    ) -> tuple[ContainedPlan, MigFound | Exception]:
        """The plan without the gangs of ``out``, and the answer about MIG configurations."""
        self.between_plans.clear()
        worked = time.thread_time()
        try:
            contained = contained_plan(
                snapshot,
                out,
                self._plan_once,
                self._stop,
                proven=self._gangs.proven,
                earlier=self._gangs.by_place(),
                last_cohort=self._last_cohort,
            )
            checked, self._last_cohort = contained.checked, contained.cohort
            if checked is None or not checked.usable:
                return contained, MigFound()
            try:
                return contained, mig_search.answer(
                    checked.snapshot, checked.decided, checked.selects, self._stop
                )
            except Exception as error:  # noqa: BLE001 - contained on the event loop
                return contained, error
        finally:
            self.worked += time.thread_time() - worked
            self.between_plans.set()

    def _plan_once(self, snapshot: Snapshot) -> CheckedPlan:
        self._step()
        return checked_plan(snapshot, self._stop, self._cache, self._stage)

    async def _answered(self, answer: MigFound | Exception, planned: Snapshot) -> MigFound:
        """The answer about MIG configurations; nothing is found by a search that fails."""
        if isinstance(answer, Exception):
            self._containment.failed(Boundary.QUESTION, _MIG_SEARCH, answer)
            await self._keep_snapshot(planned, _MIG_SEARCH, answer)
            return MigFound()
        self._containment.passed(Boundary.QUESTION, _MIG_SEARCH)
        return answer

    def _failed(self, error: Exception | None) -> str:
        """Try again soon: planning fails, and no gang is found to be at fault."""
        if error is not None:
            self._containment.failed(Boundary.TASK, _PLANNING, error)
        self._wakeup.plan_by(RETRY_SECONDS)
        return "plan discarded: internal error"

    async def _keep_failures(self, snapshot: Snapshot, contained: ContainedPlan) -> None:
        """Count and save the plans that fail, each kind of failure once."""
        failed = [(one.uid, one.error, one.refused) for one in contained.failures]
        if contained.error is not None and (contained.checked is None or contained.cohort):
            failed.append(("", contained.error, None))
        for uid, error, refused in failed:
            self._metrics.discarded(DiscardReason.ERROR if refused is None else _why(refused))
            if refused is not None:
                log.error("plan_refused", violation=str(error))
                await self._keep(refused.snapshot, refused.decided, refused.violations)
                continue
            await self._keep_snapshot(snapshot, uid, error)

    async def _keep_snapshot(self, snapshot: Snapshot, subject: str, error: Exception) -> None:
        """Save the snapshot with which a plan or a question fails, each place of failure once."""
        rule = BrokenRule(place_of(error), subject, str(error))
        if self._new((rule,)):
            await self._writer.keep_refused(snapshot, Plan(), [rule])

    def _stage(self, step: PlanStep) -> AbstractContextManager[object]:
        return self._metrics.stage(CycleStage(step.value))

    async def _discard(self, checked: CheckedPlan) -> str:
        self._metrics.discarded(_why(checked))
        for violation in checked.violations:
            log.error("plan_refused", violation=str(violation))
        if checked.violations:
            await self._keep(checked.snapshot, checked.decided, checked.violations)
        self._wakeup.plan_by(RETRY_SECONDS)
        cut = checked.decided.cut
        return "plan discarded: " + ("cut by the wall clock" if cut else "verification")

    async def _keep(
        self, snapshot: Snapshot, decision: Plan, violations: Sequence[PlanViolation]
    ) -> None:
        """Save it, unless a plan with the same violations is saved: plans are made every second."""
        broken = [BrokenRule(v.rule.value, v.subject, v.message) for v in violations]
        if self._new(broken):
            await self._writer.keep_refused(snapshot, decision, broken)

    def _new(self, broken: Iterable[BrokenRule]) -> bool:
        """Whether no plan was saved for the same reasons."""
        where = frozenset((one.rule, one.subject) for one in broken)
        if where in self._kept:
            return False
        self._kept[where] = None
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return True

    def _worth_more(self, refusal: Refusal) -> bool:
        """Whether a plan with a larger budget can decide it."""
        if refusal.reasons[0].code is not Code.UNDECIDED:
            return False
        entry = self._leader_state.ledger.get(refusal.uid)
        return entry is not None and entry.budget < MAX_BUDGET

    def _seek_again(self, now: float) -> None:
        """Set the time of the next search for gangs to move, which takes longer than a plan. It runs even without a change."""
        rest = self._defragment_seconds
        self._seek_at = now + rest
        if rest:
            self._wakeup.plan_in(rest)

    def _count(self, snapshot: Snapshot, decision: Plan, changes: list[EntryChange]) -> None:
        """Record the committed part of a plan."""
        committed = {change.after.uid for change in changes}
        preempted = [p for p in decision.preempted if p.victim in committed]
        self._metrics.preempted(preempted, self._leader_state.cluster_queue)
        slipped = [p for p in decision.planned if p.uid in committed]
        self._metrics.slipped(slipped, self._leader_state.cluster_queue)
        self._metrics.reserved(snapshot, decision.reserved)
        started = [a for a in decision.admitted if a.uid in committed]
        self._metrics.fleet.started(spreads(snapshot, started, self._cache))


def _starts(change: EntryChange) -> bool:
    before = change.before
    return change.after.state is State.STARTING and before is not None and before.state.waiting


def _leaves_room(change: EntryChange) -> bool:
    """Whether a gang no longer counts against the limit of pending gangs of its LocalQueue."""
    before, after = change.before, change.after
    waited = before is not None and before.state.waiting and not before.awaits_checks
    return waited and (after.awaits_checks or not after.state.waiting)


def _why(checked: CheckedPlan) -> DiscardReason:
    """Why a plan is not usable."""
    return DiscardReason.CUT if checked.decided.cut else DiscardReason.VERIFIER


def _first(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)
