"""The leader's ledger in memory, and the views that are derived from it.

A new leader builds it from the database, and builds it again if memory and database can differ. A standby has one that follows the
database. If it becomes the leader, it reads the whole ledger once more, and computes again what follows from entries that differ.

Each commit updates the state in two steps, because planning uses observations while they are being written:
:meth:`LeaderState.take_in` when a change is known, and :meth:`LeaderState.follow` when it is in the database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from queuectl.control.leader.accounting import UsageInputs
from queuectl.control.leader.decisions import Decider
from queuectl.control.ports import Clock
from queuectl.domain.checks import EXTERNAL, CheckReport, update_refusal
from queuectl.domain.commands import Action, Command
from queuectl.domain.errors import BadInput
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Document, Entry, EntryChange, Loaded, Purpose, State
from queuectl.domain.queries import IN_QUEUE_ORDER, ConfigChanges, DocumentKey, UnmanagedPod
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse
from queuectl.lifecycle.idleness import Idleness, IdlenessResult
from queuectl.lifecycle.nodes import Interruptions, Stragglers, requeued
from queuectl.lifecycle.observations import Observer
from queuectl.lifecycle.old_pods import OldPods
from queuectl.lifecycle.outstanding_writes import Write, outstanding_writes
from queuectl.lifecycle.refusals import Refusals
from queuectl.lifecycle.user_commands import move_refusal, priority_refusal
from queuectl.objects.configuration.catalog import Catalog, concerned
from queuectl.objects.configuration.queue_config import closed
from queuectl.state.durations import LearnedDurations
from queuectl.state.estimates import Estimates
from queuectl.state.gpu_holders import SampleLog
from queuectl.state.holdings import Holdings
from queuectl.state.ledger import HistoryLimit, Ledger
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import MigrationBudget, PastUseSums
from queuectl.state.planning_state import PlanningState, StoredUse

log = structlog.get_logger()
_NAMED: Final = 10  # Cohorts in one line of the log


class LeaderState:
    """The leader's ledger in memory, for one leadership.

    Attributes:
        planning: what plans are made from.
        observer, decider: turn observations and plans into changes of the ledger.
        past_use_sums, holdings: past use, and current use.
        durations: of gangs, stated and learned.
        estimates: of the starts of pending gangs.
        gang_uses: the last measured GPU utilization of gangs, by uid.
        refusals: outstanding writes that the API server denies.
        stragglers: ranks whose GPUs run far slower than those of their peers.
        readable: the configuration in use is the one in the database.
        configured: the configuration in use is that of the database, or was. Without one, queues would not exist, and limits would
            be the defaults.
        unwritten: uids of changes that are taken in and not in the database yet.
    """

    def __init__(
        self,
        mirror: Mirror,
        limits: SolverLimits,
        unschedulable_seconds: float,
        clock: Clock,
        max_age_seconds: float,
    ) -> None:
        """``max_age_seconds``: the age in seconds after which an evaluation of GPU utilization is no longer valid."""
        self._mirror = mirror
        self._limits = limits
        self._unschedulable_seconds = unschedulable_seconds
        self._clock = clock
        self._catalog = Catalog()
        self.readable = True
        self.configured = False
        self.gang_uses: Mapping[str, GangUse] = {}
        self._samples = SampleLog()
        self.unwritten: Collection[str] = frozenset()
        self.past_use_sums = PastUseSums(mirror)
        self.holdings = Holdings(mirror)
        self.durations = LearnedDurations(mirror)
        self.estimates = Estimates(mirror, self.durations)
        self.refusals = Refusals()
        self.stragglers = Stragglers(max_age_seconds)
        self._interruptions = Interruptions(mirror)
        self._marker = Marker(mirror, lambda: self.ledger)
        self._history = HistoryLimit()
        self._old_pods = OldPods()
        self._idleness = Idleness(
            mirror, lambda: self.ledger, self._running, max_age_seconds, self.holdings.borrowing
        )
        self.planning = PlanningState(
            mirror,
            past_use=self.past_use_sums,
            durations=self.durations,
            uses=lambda: self.gang_uses,
            idle_since=self._idleness.since,
        )
        self._followed: int | None = None  # the generation of the mirror; None = not complete
        self._documents: Sequence[Document] = ()
        self._begin()

    @property
    def ledger(self) -> Ledger:
        """All workloads that are not Finished."""
        return self.planning.ledger

    @property
    def config(self) -> QueueConfig:
        """The configuration in use."""
        return self.planning.config

    @property
    def followed(self) -> bool:
        """Whether it is the state of a standby: :meth:`load` continues from it."""
        return self._followed == self._mirror.generation

    def load(self, loaded: Loaded) -> None:
        """Replace the state in memory by that of the database.

        The first load after :meth:`follow_database` keeps what was computed for entries and documents that are equal to those of the
        database. Each other one computes everything again, because sums of before can be wrong.
        """
        self.unwritten = frozenset()
        self._copy(loaded, read=True)
        self._followed = None
        self.planning.past_use = self.past_use_sums
        self._marker.forget()
        self.past_use_sums.learn(loaded.used)
        self.past_use_sums.configure(self.config, self.ledger, self._clock())
        self._begin()
        self.holdings.configure(self.config, self.ledger)
        self.estimates.forget(self.ledger)
        self.durations.keep_only(self.ledger)

    def follow_database(self, loaded: Loaded) -> None:
        """Continue as a standby with the state of the database, of which plans for questions are made."""
        self._copy(loaded, read=False)
        self.planning.past_use = StoredUse(loaded.used, self.config)
        self._followed = self._mirror.generation
        ended = self._mirror.ended
        self._mirror.forget_ended(uid for uid in ended if self.ledger.get(uid) is None)

    def clear_marks(self) -> None:
        """Take in what the watch has marked for an observation, as a standby, which makes none: marks must not accumulate."""
        followed = self._followed
        if self.followed:
            self._followed = None  # an error would leave pods that are not counted
            self.planning.count_moved()
            self._followed = followed
        self._mirror.forget_marks()  # a leader begins with all workloads, and a state that does not follow with all pods

    def _copy(self, loaded: Loaded, *, read: bool) -> None:
        """The parts of the state from which plans are made. ``read``: see :meth:`PlanningState.replace`."""
        followed, self._followed = self.followed, None  # until everything is copied
        revision = self.config.revision if followed and self.readable else None
        if loaded.revision == revision and loaded.documents == self._documents:
            self.planning.turns(self._clock())
        else:
            self._catalog.replace(loaded.documents)
            self._build(loaded.revision)
        self._documents = loaded.documents
        self.planning.reserved = loaded.reserved
        self.planning.moves = MigrationBudget(loaded.spent)
        if followed:
            self.planning.replace(loaded.entries, read=read)
        else:
            self.planning.load(loaded.entries)

    def _begin(self) -> None:
        """Begin to observe and to decide."""
        mirror, planning = self._mirror, self.planning
        self.observer = Observer(
            mirror, planning.ledger, planning.usage, self._unschedulable_seconds, self.refusals
        )
        self.decider = Decider(mirror, planning.ledger, self._idles)
        self._evaluate_all()

    def _running(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Admitted | None:
        return self.planning.running(entry, job, config, now)

    def _idles(self, uid: str) -> bool:
        """Whether it can still be evicted as idle."""
        entry, job = self.ledger.get(uid), self._mirror.jobs.get(uid)
        if entry is None or job is None:
            return False
        return self._idleness.since(entry, job, self.config, self._clock()) is not None

    @property
    def documents(self) -> set[DocumentKey]:
        """The keys of the documents of the configuration that was read last."""
        return self._catalog.keys

    def catalog(self) -> Catalog:
        """A copy of these documents."""
        return self._catalog.copy()

    def configure(self, changes: ConfigChanges) -> None:
        """Continue with another configuration."""
        self._catalog.follow(changes)
        known, before = self.readable, self.config
        self._build(changes.revision)
        queues = concerned(changes, before, self.config) if known and self.readable else None
        self.past_use_sums.configure(self.config, self.ledger, self._clock())
        if queues is None:
            self.holdings.configure(self.config, self.ledger)
            self._evaluate_all()
            return
        if not queues:  # amounts of quota: no pass over the ledger for each edit
            self.holdings.reconfigure(self.config, ())
            return
        entries = [e for e in self.ledger if (e.namespace, e.queue) in queues]
        self.holdings.reconfigure(self.config, entries)
        jobs = self._mirror.jobs.values()
        of_queues = {job.uid for job in jobs if (job.namespace, job.queue) in queues}
        self.observer.again(of_queues | {entry.uid for entry in entries})

    def _build(self, revision: int) -> None:
        now, self.readable = self._clock(), False
        try:
            self.planning.configure(self._catalog.config(revision), now)
            self.readable = self.configured = True
            if ignored := sorted(self._catalog.circular_cohorts()):
                log.warning("cohort_parents_ignored", cohorts=ignored[:_NAMED], count=len(ignored))
        except (
            BadInput
        ) as error:  # the API checks documents, so this is a manual change in the database
            log.exception(
                "configuration_unreadable", error=str(error), previous_in_force=self.configured
            )
            self.planning.renumber(revision, now)

    def configuration_turns(self, now: float) -> bool:
        """Whether an override or a Reservation has begun or ended by ``now``, so that plans can differ."""
        if not self.planning.turns(now):
            return False
        self.past_use_sums.configure(self.config, self.ledger, self._clock())
        self.holdings.configure(self.config, self.ledger)
        return True

    def _evaluate_all(self) -> None:
        mirror = self._mirror
        entries = (entry.uid for entry in self.ledger)
        self.observer.again({*mirror.jobs, *mirror.ended, *entries})

    def marked(self, changes: Sequence[EntryChange]) -> list[EntryChange]:
        """The changes with their marks for the usage ledger, and with no more lines of the history than a workload can add."""
        return self._history.limited(self._marker.marked(changes, self.config))

    def take_in(self, changes: Sequence[EntryChange]) -> None:
        """Apply changes to the state from which plans are made."""
        self.planning.take_in(changes)
        for change in changes:
            if change.after.state is State.FINISHED:
                self.decider.forget(change.after.uid)
                self._mirror.containment.forget(change.after.uid)
            elif change.before is not None and _observed_again(change.before) != _observed_again(
                change.after
            ):
                self._mirror.touched.add(change.after.uid)
            if change.before is not None and change.before.priority != change.after.priority:
                self._mirror.touched.update(self._mirror.indexes(change.after.uid))

    def drop_plan(self) -> None:
        """Undo the notes of a plan whose changes were not written."""
        self._marker.forget()
        self.decider = Decider(self._mirror, self.ledger, self._idles)

    def follow(self, changes: Sequence[EntryChange]) -> None:
        """Apply changes to the sums that count committed changes only."""
        self.planning.follow(changes)
        self._idleness.note(changes)
        self.holdings.note(changes)

    def evaluated(self, uses: Mapping[str, GangUse]) -> IdlenessResult:
        """Store the GPU utilization of gangs, by uid, as of now."""
        self.gang_uses = {uid: self._with_stragglers(use) for uid, use in uses.items()}
        self._samples.note(uses, self._clock())
        return self._idleness.evaluated(uses, self.config, self._clock())

    def _with_stragglers(self, use: GangUse) -> GangUse:
        """The measurement with the stragglers of the gang in its text."""
        slow = self.stragglers.of(use.uid, use.attempt, self._clock())
        return replace(use, text="; ".join([use.text, *map(str, slow)])) if slow else use

    def of_stragglers(self, observed: Iterable[EntryChange]) -> list[EntryChange]:
        """Reports of stragglers, to commit with the observations."""
        busy = {change.after.uid for change in observed}
        return self.stragglers.changes(self.ledger, self.config.rules, self._clock(), busy)

    def of_idle_gangs(self, observed: Iterable[EntryChange]) -> list[EntryChange]:
        """Warnings and evictions of idle gangs, to commit with the observations."""
        busy = {change.after.uid for change in observed}
        return self._idleness.changes(self.config, self._clock(), busy)

    def of_unhealthy_nodes(self, observed: Iterable[EntryChange]) -> list[EntryChange]:
        """Evictions of gangs from nodes that fail or are taken away, to commit with the observations."""
        busy = {change.after.uid for change in observed}
        now = self._clock()
        gone = self._interruptions.evictions(self.ledger, self.config, now, busy)
        busy |= {change.after.uid for change in gone}
        return [*gone, *requeued(self._mirror, self.ledger, self.config, now, busy)]

    def snapshot(self, *, seek_room: bool) -> Snapshot:
        """The snapshot for the next plan. ``seek_room``: whether the plan can move gangs."""
        return self.planning.snapshot(self._clock(), self._limits, seek_room=seek_room)

    def anything_to_plan(self) -> bool:
        """Whether a gang is pending, or runs on lost nodes, or there are Reservations."""
        if self.ledger.count(State.PENDING) or self.ledger.count(State.RESERVED):
            return True
        if self.config.reservations or self.planning.reserved:
            return True
        return self.observer.any_on_lost_nodes(self.config)

    def outstanding_writes(self, uid: str) -> list[Write] | None:
        """The writes to the cluster that follow from the committed state of a workload; None while a change of it is being committed."""
        if uid in self.unwritten:
            return None
        entry, job = self.ledger.get(uid), self._mirror.job(uid)
        if entry is None or job is None:
            self._old_pods.forget(uid)
            return []
        nodes = self._mirror.fleet.by_name
        pods, kinds = list(self._mirror.pods_of(job)), self._mirror.kinds
        start_at = self._old_pods.start_at(job, pods, self._clock())
        flavors, backed = self.config.flavors, self._mirror.devices.backed
        writes = outstanding_writes(entry, job, pods, nodes, flavors, kinds, backed)
        if start_at == 0:
            return writes
        return [replace(w, send_at=start_at) if w.purpose is Purpose.START else w for w in writes]

    @property
    def names(self) -> Mapping[str, str]:
        """Hostname label -> node name."""
        return self.planning.usage.names

    def entry(self, uid: str) -> Entry | None:
        """A workload of the ledger as it is now."""
        return self.ledger.get(uid)

    def pending(self) -> Iterable[Entry]:
        """The pending gangs."""
        return self.ledger.entries(*IN_QUEUE_ORDER)

    def cluster_queue(self, uid: str) -> str:
        """The ClusterQueue of a workload; empty if the workload is not in the ledger."""
        entry = self.ledger.get(uid)
        return entry.cluster_queue if entry is not None else ""

    def unmanaged(self) -> tuple[UnmanagedPod, ...]:
        """Pods of no job in a queue that hold GPUs, by namespace and name."""
        return self.planning.unmanaged()

    def command_refusal(self, entry: Entry, command: Command) -> str | None:
        """Why its queue, or the queue to which it moves, does not allow a command; None if it does."""
        job = self._mirror.jobs.get(entry.uid)
        if command.action is Action.PRIORITY:
            shared = priority_refusal(entry, job)
            return shared or self._over_the_cap(entry.cluster_queue, command.priority)
        if command.report is not None:
            return self._check_refusal(entry, command.report)
        if command.action is not Action.MOVE or command.queue is None:
            return None
        shared = move_refusal(entry, job, self.ledger.get)
        if shared is not None:
            return shared
        record = self._mirror.namespaces.get(entry.namespace)
        labels = dict(record.labels) if record is not None else {}
        why = closed(entry.namespace, command.queue, self.config, labels)
        if why is not None:
            return why.message
        to = self.config.cluster_queue_of(entry.namespace, command.queue)
        return self._over_the_cap(to.name if to is not None else "", entry.priority_set)

    def _check_refusal(self, entry: Entry, report: CheckReport) -> str | None:
        """Why the state of a check cannot be set so; None if it can."""
        if entry.checks.of(report.check) is None:
            return f"{report.check} is not an admission check of {entry.ref} now"
        known = self.config.checks.get(report.check)
        if known is None or known.controller != EXTERNAL:
            return f"only the controller of AdmissionCheck {report.check} sets its state"
        job = self._mirror.jobs.get(entry.uid)
        if job is None or not report.updates:
            return None
        if entry.state.live:
            return "podSetUpdates: its pods have started"
        others = [s for s in entry.checks.statuses if s.name != report.check]
        earlier = [update for status in others for update in status.updates]
        return update_refusal(report.updates, earlier, job.podsets)

    def _over_the_cap(self, queue: str, priority: int | None) -> str | None:
        """Why a ClusterQueue does not allow a priority that a user sets; None if it does."""
        found = self.config.cluster_queues.get(queue)
        most = found.max_priority if found is not None else None
        if most is None or priority is None or priority <= most:
            return None
        return f"ClusterQueue {queue} allows at most priority {most} to be set (maxPriority), not {priority}"

    def priority_class(self, entry: Entry) -> str:
        """The WorkloadPriorityClass that its job names; empty for none, and for one that does not exist."""
        job = self._mirror.jobs.get(entry.uid)
        name = (job.priority_class or "") if job is not None else ""
        return name if name in self.config.priority_classes else ""

    def facts(self) -> UsageInputs:
        """The rules of accounting."""
        return UsageInputs(
            marker=self._marker,
            live=lambda: [e for e in self.ledger if e.uid not in self.unwritten],
            config=lambda: self.config,
            samples=self._samples.of,
            snapshot=lambda: self.planning.builder.freeze(self.config, self._clock(), self._limits),
        )


def _observed_again(entry: Entry) -> tuple[State, int | None, float | None, float | None]:
    """A change of these can make other values of the entry outdated, or sets a time for its next change."""
    return entry.state, entry.priority_set, entry.priority_until, entry.checks.due
