"""Turns changes in the copy of the cluster that the watch keeps into changes of entries, in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Final, NamedTuple

from queuectl.domain.arrays import has_begun
from queuectl.domain.commands import Action, Command
from queuectl.domain.containment import Boundary, SetAside, entering, never_contained
from queuectl.domain.events import (
    Adopt,
    AttemptFound,
    CommandReceived,
    Evict,
    LabelsChanged,
    NotifyChanged,
    ObjectChanged,
    PriorityOver,
    Submitted,
)
from queuectl.domain.gates import Standing, still_listed
from queuectl.domain.identity import LONGEST_NAME
from queuectl.domain.jobs import JobRecord, PodRecord, PriorAdmission
from queuectl.domain.ledger import LIVE, Entry, EntryChange, State
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import Placement
from queuectl.lifecycle.adoption import running_placement
from queuectl.lifecycle.backlog import Backlog
from queuectl.lifecycle.failures import (
    late_pods,
    refused_pods,
)
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.nodes import LostDevices
from queuectl.lifecycle.outstanding_writes import as_checked
from queuectl.lifecycle.provisioning import reports
from queuectl.lifecycle.refusals import Refusals
from queuectl.lifecycle.transitions import Dependents, Timers, alarm_of
from queuectl.lifecycle.workload_events import ObservationRules, observe
from queuectl.objects.configuration.queue_config import drain
from queuectl.objects.kubernetes.nodes import priority_values
from queuectl.state.claims import priority_now, priority_of
from queuectl.state.holding_gangs import closed_slots, is_grown
from queuectl.state.ledger import Ledger
from queuectl.state.marking import user_of
from queuectl.state.mirror import Mirror, asked_of
from queuectl.state.usage import OtherPodUsage

_WAITING: Final = tuple(state for state in State if state.waiting)


@dataclass(frozen=True, slots=True)
class Observations:
    """The result of one observation.

    Attributes:
        changes: to commit, at most one for each workload.
        plan_again: whether plans can differ now.
        edited: uids of new jobs, and of jobs with another request than before.
    """

    changes: list[EntryChange]
    plan_again: bool
    edited: Collection[str]


class _Judged(NamedTuple):
    """Whether a gang is on lost nodes, with the objects from which that follows."""

    entry: Entry
    job: JobRecord | None
    on_lost_nodes: bool


class Observer:
    """Turns the changes of the cluster since the last observation into changes of entries.

    Attributes:
        backlog: workloads that are still to be observed.
        alarms: when to observe a workload again without a change.
        damaged: an error has possibly left sums half changed: they are to be computed from the records again.
    """

    def __init__(
        self,
        mirror: Mirror,
        ledger: Ledger,
        usage: OtherPodUsage,
        unschedulable: float,
        refusals: Refusals | None = None,
    ) -> None:
        """``unschedulable``: seconds, as in :class:`ObservationRules`. ``refusals``: None in a process that does not write."""
        self._refusals = refusals if refusals is not None else Refusals()
        self._containment = mirror.containment
        self.damaged = False
        self._mirror = mirror
        self.backlog = Backlog()
        self._uncounted: set[str] = set()  # of these, those that run without an entry
        self._ledger = ledger
        self._usage = usage
        self._unschedulable = unschedulable
        self._plan_again = False
        self._basis: object = None  # of the sizes
        self._classes: Mapping[str, int] = {}  # value of each PriorityClass of the cluster
        self.alarms = Timers()
        self.log_messages: list[str] = []  # for the log; the reader clears it
        self._left_alone: set[str] = set()
        self._refused: dict[str, dict[str, float]] = {}  # results of refused_pods, by workload
        self._late: dict[str, dict[str, float]] = {}  # results of late_pods, by workload
        self._absent: dict[str, float] = {}  # times since which groups are without pods
        # Live gangs of the database from which this leader began, until their first observation.
        self._taken_over = {entry.uid for entry in ledger if entry.state.live}
        self._judged: dict[str, _Judged] = {}  # live gangs, by uid
        self._judged_with: tuple[object, ...] = (None, None)  # these nodes and flavors
        self._dependents = Dependents(mirror, ledger)
        # Ends of deleted jobs with which all dependents were observed.
        self._ends: set[str] = set()

    @property
    def uncounted(self) -> bool:
        """Whether some of them run without an entry: a plan would use their quota again."""
        return bool(self._uncounted)

    def again(self, uids: Collection[str]) -> None:
        """Observe these workloads again, and what depends on them, although they have not changed. A new one is not delayed by them."""
        self._put({*uids, *self._dependents.of(uids)}, again=True)

    def observe(self, config: QueueConfig, now: float, most: int | None = None) -> Observations:
        """Turn the marked changes of the cluster into changes of entries, and clear the marks.

        ``most``: workloads, the same number of each namespace; the others are left for the next calls. None = all.
        """
        mirror = self._mirror
        moved, mirror.moved_pods = mirror.moved_pods, set()
        self._forget_ends()
        touched, mirror.touched = mirror.touched, set()
        self._put(self._described_anew(config), again=True)
        edited, mirror.edited = mirror.edited, set()
        touched |= self._dependents.of(touched)
        self._plan_again = self._counted(moved) or mirror.planning_changed
        self._plan_again |= any(map(self._waits, edited))
        mirror.planning_changed = False
        changes = []
        # In the order of the API server's revisions: of two jobs that are observed together, the first created is first in
        # queue order, even if it has changed since.
        self._put(touched)
        taken = self.backlog.take(most)
        self._uncounted.difference_update(taken)
        for number, uid in enumerate(sorted(taken, key=self._revision)):
            change = self._contained(uid, config, now + number * 1e-6)
            if change is not None:
                changes.append(change)
        if not self.backlog:
            mirror.touched |= mirror.ended.keys() - self._ends  # the next observation forgets them
            self._ends = set(mirror.ended)
        return Observations(changes, self._plan_again, edited)

    def _forget_ends(self) -> None:
        """Forget the ends of deleted jobs that are in the ledger. An array has no entry there: others can depend on it."""
        self._mirror.forget_ended(
            uid
            for uid, job in self._mirror.ended.items()
            if self._ledger.get(uid) is None and (uid in self._ends or job.array is None)
        )

    def _put(self, uids: Iterable[str], *, again: bool = False) -> None:
        for uid in sorted(uids, key=self._revision):
            entry = self._ledger.get(uid)
            known = self._mirror.jobs.get(uid) or entry
            namespace = known.namespace if known is not None else ""
            self.backlog.put(uid, namespace, again=again and entry is not None)
            if self._runs_uncounted(uid):
                self._uncounted.add(uid)
            else:
                self._uncounted.discard(uid)

    def _runs_uncounted(self, uid: str) -> bool:
        """A job of a takeover: it runs, and has no entry yet."""
        job = self._mirror.jobs.get(uid)
        runs = job is not None and not job.suspended and job.outcome is None
        return runs and uid not in self._left_alone and self._ledger.get(uid) is None

    def _counted(self, moved: Collection[str]) -> bool:
        """Count these pods again. Returns whether the use of any node changed."""
        try:
            return self._usage.refresh_moved(moved)
        except Exception as error:
            if never_contained(error):
                raise
        self.damaged = True
        for uid in moved:
            with self._containment.unit(Boundary.RECORD, uid, f"pods/{uid}"):
                self._usage.refresh((uid,))
        return True

    def _contained(self, uid: str, config: QueueConfig, now: float) -> EntryChange | None:
        """All new events of one workload, as one change; None for one that is set aside, which keeps what it holds."""
        containment, job = self._containment, self._mirror.jobs.get(uid)
        entry = self._ledger.get(uid)
        if entry is not None and self._mirror.hides(entry):
            return None
        version = asked_of(job) if job is not None and not containment.empty else None
        known = job or entry
        namespace = known.namespace if known is not None else ""
        waits = containment.waits(Boundary.OBSERVATION, uid, version, namespace)
        waits = waits or containment.waits(Boundary.COMMIT, uid)
        if waits is not None:
            self.alarms.put(uid, waits.until)
            return None
        entering(Boundary.OBSERVATION, uid, namespace=namespace)
        try:
            change = self._one(uid, config, now)
        except Exception as error:  # noqa: BLE001 - contained
            found = self._set_aside(uid, error)
            self.alarms.put(uid, found.until)
            return None
        containment.passed(Boundary.OBSERVATION, uid)
        self._forget_ended(uid, job, change.after if change is not None else entry)
        return change

    def _forget_ended(self, uid: str, job: JobRecord | None, entry: Entry | None) -> None:
        """Forget what is known of a job that is deleted, and of a workload that has finished."""
        if job is None:
            self._left_alone.discard(uid)
        if entry is None or entry.state is State.FINISHED:
            self._refused.pop(uid, None)
            self._late.pop(uid, None)
            self._absent.pop(uid, None)

    def _set_aside(self, uid: str, error: Exception) -> SetAside:
        job, entry = self._mirror.jobs.get(uid), self._ledger.get(uid)
        known = job or entry
        return self._containment.failed(
            Boundary.OBSERVATION,
            uid,
            error,
            f"{known.kind}/{known.namespace}/{known.name}" if known is not None else uid,
            namespace=known.namespace if known is not None else "",
            version=asked_of(job) if job is not None else None,
        )

    def _one(self, uid: str, config: QueueConfig, now: float) -> EntryChange | None:
        """All new events of one workload, as one change."""
        before = self._ledger.get(uid)
        job = self._mirror.jobs.get(uid)
        if before is None:
            return self._submitted(job, config, now) if job and job.outcome is None else None
        if job is not None and job.outcome is None and job.attempt > before.attempt:
            return self._restored(before, job, config, now)
        last: EntryChange | None = None
        pods = list(self._mirror.pods_of(before))
        refused = refused_pods(pods, self._refused.pop(uid, {}), now)
        if refused:
            self._refused[uid] = refused
        late = late_pods(pods, before.attempt, self._late.pop(uid, {}), now)
        if late and before.state is State.STARTING:
            self._late[uid] = late
        if uid in self._refused or uid in self._late:
            self._mirror.unschedulable.add(uid)
        else:
            self._mirror.unschedulable.discard(uid)
        terms = replace(
            self._terms(before, job, pods, config, now),
            refused=refused,
            late=late,
            absent_since=self._absent_since(uid, job, now),
        )
        if refused:
            stuck = [pod for pod in pods if pod.uid in refused and pod.attempt == before.attempt]
            tainted = LostDevices(self._mirror).refusal(stuck, self._usage.names)
            terms = replace(terms, tainted=tainted, closed=self._closed(before, job, config))
        for event in observe(before, job or self._mirror.ended.get(uid), pods, now, terms):
            change = handle(last.after if last else before, event, now, config.rules)
            last = joined(last, change)
        after = last.after if last is not None else before
        if job is not None and _is_described(after, job):
            described = handle(after, self._described(job, config, after), now)
            self._plan_again |= described is not None
            last = joined(last, described)
            after = last.after if last is not None else before
        last = self._renotified(_relabeled(last, after, job, now), after, job, now)
        after = last.after if last is not None else before
        if job is not None and _own_priority_over(after, now):
            last = self._priority_over(last, after, job, config, now)
            after = last.after
        self._plan_again |= after.state is not before.state
        self._plan_again |= after.refused_write is not before.refused_write
        self._plan_again |= after.checks is not before.checks
        alarm = alarm_of(after, job, config.rules.pods_ready, now, terms.absent_since)
        self.alarms.put(uid, alarm)
        if before.placement is not after.placement:
            self._plan_again = True  # pods that have succeeded have freed their slots
        if before.state.live and self.on_lost_nodes(before, config):
            # One of its pods there is possibly deleted, so that its slot can move.
            self._plan_again = True
        self._taken_over.discard(uid)
        return last

    def _absent_since(self, uid: str, job: JobRecord | None, now: float) -> float | None:
        since = self._absent.pop(uid, now)
        if job is None or not job.absent:
            return None
        self._absent[uid] = since
        return since

    def _renotified(
        self, last: EntryChange | None, after: Entry, job: JobRecord | None, now: float
    ) -> EntryChange | None:
        """The change with the receivers that the object names now. A wrong value waits if the change has another line of history."""
        if job is None or job.absent or after.notify == job.notify:
            return last
        after = last.after if last is not None else after
        if last is not None and last.note is not None and job.notify and job.notify.error:
            self._mirror.touched.add(after.uid)
            return last
        return joined(last, handle(after, NotifyChanged(job.notify), now))

    def _priority_over(
        self,
        last: EntryChange | None,
        after: Entry,
        job: JobRecord,
        config: QueueConfig,
        now: float,
    ) -> EntryChange:
        """Take its priority from its classes again. A change has one cause: with other events, this waits for the next observation."""
        self._plan_again = True
        if last is not None and last.note is not None:
            self._mirror.touched.add(after.uid)
            return last
        over = handle(after, PriorityOver(self._described(job, config, after).priority), now)
        change = joined(last, over)
        assert change is not None
        return change

    def _terms(
        self,
        entry: Entry,
        job: JobRecord | None,
        pods: Iterable[PodRecord],
        config: QueueConfig,
        now: float,
    ) -> ObservationRules:
        gates = still_listed(entry.gates, job.gates) if job is not None else ()
        return ObservationRules(
            config.rules,
            self._unschedulable,
            self._usage.names,
            drain=drain(entry.namespace, entry.queue, config) if entry.state.live else None,
            refusal=self._refusals.of(entry),
            may_start=job is not None and self._refusals.may_start(job, pods),
            taken_over=entry.uid in self._taken_over,
            statuses=self._statuses(job, gates),
            provisioned=reports(entry, job, self._mirror.provisioning, config, now),
        )

    def _statuses(self, job: JobRecord | None, gates: tuple[str, ...]) -> Mapping[str, Standing]:
        return self._dependents.statuses(job, gates) if job is not None and gates else {}

    def _closed(self, entry: Entry, job: JobRecord | None, config: QueueConfig) -> frozenset[str]:
        """The nodes of its placement that are deleted or take no new pods of it."""
        if entry.placement is None:
            return frozenset()
        closed = closed_slots(self._mirror, entry, job, entry.placement, config)
        return frozenset(node for _, node, _ in closed)

    def on_lost_nodes(self, entry: Entry, config: QueueConfig) -> bool:
        """Whether any node of its placement is deleted or takes no new pods of it."""
        return bool(self._closed(entry, self._mirror.jobs.get(entry.uid), config))

    def any_on_lost_nodes(self, config: QueueConfig) -> bool:
        """Whether :meth:`on_lost_nodes` is true for a live gang. It reads only gangs that have changed, or all if a node or a flavor has."""
        basis = self._mirror.fleet, config.flavors
        unchanged = self._judged if all(map(is_, basis, self._judged_with)) else {}
        self._judged_with, self._judged = basis, {}
        for entry in self._ledger.entries(*LIVE):
            job, last = self._mirror.jobs.get(entry.uid), unchanged.get(entry.uid)
            if last is None or last.entry is not entry or last.job is not job:
                last = _Judged(entry, job, self.on_lost_nodes(entry, config))
            self._judged[entry.uid] = last
        return any(last.on_lost_nodes for last in self._judged.values())

    def _revision(self, uid: str) -> tuple[int, str]:
        return (self._mirror.appeared(uid), uid)

    def _waits(self, uid: str) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and entry.state.waiting

    def _submitted(self, job: JobRecord, config: QueueConfig, now: float) -> EntryChange | None:
        if job.notify is not None and job.notify.error:
            self._mirror.touched.add(job.uid)  # a line of history of its own follows
        job = self._mirror.sized(job, config)
        array = self._mirror.arrays.get(job.index.job_uid) if job.index is not None else None
        if array is not None and has_begun(array):
            job = replace(job, gates=())
        described = self._described(job, config)
        prior = self._mirror.prior_of(job)
        if not (job.suspended or job.attempt or described.cluster_queue):
            self._leave_alone(job)
            return None
        self._plan_again = True
        if prior is not None and prior.queued_at is not None:
            job = replace(job, created_at=prior.queued_at)
        submitted = Submitted(
            job,
            described.priority,
            described.cluster_queue,
            described.user,
            self._statuses(job, job.gates),
        )
        new = handle(None, submitted, now)
        placement = self._running(job, config, prior)
        if new is not None and job.suspended and self._leaves(job):
            text = f"pods of attempt {job.attempt} still run; the gang queues when they have ended"
            return joined(new, handle(new.after, Evict(Reason(Code.SUSPENDED_OUTSIDE, text)), now))
        if new is None or (placement is None and (prior is None or prior.active)):
            return new
        if placement is None:
            return joined(new, handle(new.after, CommandReceived(_given_up(job, now)), now))
        started_at = prior.admitted_at if prior is not None else None
        return joined(new, handle(new.after, Adopt(placement, job.attempt, started_at), now))

    def _leaves(self, job: JobRecord) -> bool:
        """Whether a suspended job without an entry has running pods: its eviction had begun when the database was lost."""
        return not job.of_pods and any(not pod.terminal for pod in self._mirror.pods_of(job))

    def _leave_alone(self, job: JobRecord) -> None:
        """It runs, queuectl never managed it, and no ClusterQueue of queuectl can account for it."""
        if job.uid not in self._left_alone:
            self._left_alone.add(job.uid)
            self.log_messages.append(
                f"{job.kind} {job.namespace}/{job.name} runs in LocalQueue {job.queue}, which does not exist or leads to "
                "no ClusterQueue: it is left alone"
            )

    def _restored(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> EntryChange | None:
        """The ledger has a lower attempt than the cluster: the database was restored from a backup.

        A complete gang continues. The rest is for the next observation, which no longer mistakes this attempt for an earlier one.
        """
        self._plan_again = True
        self._mirror.touched.add(entry.uid)
        placement = self._running(job, config)
        if placement is not None:
            # The placement has the flavors of the ClusterQueue to which its LocalQueue leads: it is charged for them.
            described = handle(entry, self._described(job, config, entry), now)
            known = described.after if described is not None else entry
            return joined(described, handle(known, Adopt(placement, job.attempt), now))
        found = handle(entry, AttemptFound(job.attempt), now)
        if found is None or not found.after.state.live:
            return found
        text = "the database was restored from a backup that does not have this start, and the gang is incomplete"
        return joined(found, handle(found.after, Evict(Reason(Code.RESUMED_OUTSIDE, text)), now))

    def _running(
        self, job: JobRecord, config: QueueConfig, prior: PriorAdmission | None = None
    ) -> Placement | None:
        pods = self._mirror.pods_of(job)
        return running_placement(job, pods, self._mirror.fleet.by_name, config, prior)

    def _described(
        self, job: JobRecord, config: QueueConfig, entry: Entry | None = None
    ) -> ObjectChanged:
        """The request of its object, with the priority of its gang if it is an added pod.

        ``entry``: of the ledger, which alone knows the request of a group without pods. While an added pod runs, only its priority changes.
        """
        gang = self._ledger.elastic_gang(job)
        if gang is not None and entry is not None and not entry.state.waiting:
            request = (entry.queue, entry.cluster_queue, gang.priority, entry.gpus, entry.pods)
            return ObjectChanged(*request, user=entry.user)
        queue = config.cluster_queue_of(job.namespace, job.queue)
        most = queue.max_priority if queue else None
        name = queue.name if queue else ""
        if entry is not None and job.absent and not job.podsets:
            known = (entry.priority, entry.gpus, entry.pods, most, entry.user)
            return ObjectChanged(job.queue or "", name, *known)
        classes = priority_values(self._mirror.priority_classes.values())
        priority = priority_of(job, config, classes) if gang is None else gang.priority
        user = user_of(job, config)[:LONGEST_NAME]
        gpus = self._mirror.sized(job, config).gpus
        edited = entry is not None and not as_checked(entry, job)
        return ObjectChanged(job.queue or "", name, priority, gpus, job.pods, most, user, edited)

    def _described_anew(self, config: QueueConfig) -> Iterator[str]:
        """The waiting workloads that have another size or priority since nodes, devices, PriorityClasses or the configuration changed."""
        sizes = self._mirror.gpus(config)
        classes = priority_values(self._mirror.priority_classes.values())
        if sizes.basis is self._basis and classes == self._classes:
            return
        self._basis, self._classes = sizes.basis, classes
        for entry in self._ledger.entries(*_WAITING):
            job = self._mirror.jobs.get(entry.uid)
            if job is None:
                continue
            priority = priority_now(self._ledger, entry, job, config, classes)
            known = priority, self._mirror.sized(job, config).gpus
            if known != (entry.priority, entry.gpus):
                yield entry.uid


def _relabeled(
    last: EntryChange | None, after: Entry, job: JobRecord | None, now: float
) -> EntryChange | None:
    """The change with the labels that the object has now. A group without pods keeps those of its last pods."""
    if job is None or job.absent or after.labels == job.listed_labels:
        return last
    return joined(last, handle(after, LabelsChanged(job.listed_labels), now))


def _is_described(entry: Entry, job: JobRecord) -> bool:
    """Whether the request in the entry changes with the object. An added pod has the priority of its gang even while it runs."""
    return entry.state.waiting or (is_grown(job) and entry.state is not State.FINISHED)


def _own_priority_over(entry: Entry, now: float) -> bool:
    until = entry.priority_until
    return until is not None and until <= now and entry.state is not State.FINISHED


def _given_up(job: JobRecord, now: float) -> Command:
    """Its admission by a Kueue that ran before queuectl."""
    return Command(0, job.uid, Action.DEACTIVATE, "the Kueue that ran here", "", now)


def joined(first: EntryChange | None, then: EntryChange | None) -> EntryChange | None:
    """Two changes of one workload as one. At most one of them has a line of history."""
    if first is None or then is None:
        return first or then
    return EntryChange(first.before, then.after, then.at, then.note or first.note)
