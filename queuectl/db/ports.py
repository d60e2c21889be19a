"""The interfaces of the stores, for the packages that use them.

The stores of this package on Postgres and the double in memory (tests/doubles/store.py) satisfy the same Protocol and pass the
same conformance tests (tests/db/conformance.py). Each method can raise StoreUnavailable. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from queuectl.domain.accounting import Free, Mark, UsageProgress
from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome
from queuectl.domain.budgets import Budget, SpentUnits
from queuectl.domain.commands import Answer, Command, CommandFilter
from queuectl.domain.containment import SetAsideObject, Suspect
from queuectl.domain.folding import Fold
from queuectl.domain.followed import FollowedReport
from queuectl.domain.identity import Caller, Session
from queuectl.domain.job_usage import ContainerSums, JobUsage
from queuectl.domain.ledger import (
    CycleDecision,
    Document,
    Entry,
    EntryChange,
    Loaded,
    RefusedPlan,
    StoredDecision,
)
from queuectl.domain.notifications import BudgetLimit, Event, NotificationStore
from queuectl.domain.past_jobs import FinishedRun, RecordedWorkload
from queuectl.domain.pastuse import Used
from queuectl.domain.processes import LeaderFindings, ProcessEnd
from queuectl.domain.queries import (
    BY_NAME,
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    LiveWorkloads,
    QueueCounts,
    QueuePosition,
    Tolerance,
    WaitingOrder,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.reservations import ReservationState
from queuectl.domain.rules import Retention
from queuectl.domain.search import SearchText, WorkloadSummary
from queuectl.domain.shadow import GangRecord, LastObservation, ShadowFold, ShadowHistory
from queuectl.domain.shadow_trace import (
    ShadowTrace,
    SimulatedReport,
    TraceBook,
    TraceProgress,
    TraceStep,
)
from queuectl.domain.stages import EndedStages
from queuectl.domain.usage_reports import (
    ALL_USAGE,
    ComparedReport,
    Grouping,
    Period,
    Report,
    UsageHours,
    UsageScope,
)
from queuectl.domain.use_curve import UseCurve


@dataclass(frozen=True, slots=True)
class Commit:
    """The writes of a leader in one transaction.

    Attributes:
        changes: at most one for each workload. A row is written only over the version that was read.
        revision: configuration revision of the plan; None = the changes do not depend on it.
        answers: results of commands; each command gets one result.
        decision: record of the cycle, stored with the history.
        tolerance: accepts changes of the configuration after ``revision``; None = accepts none.
        reserved: the placements of all Reservations, which replace the stored ones; None = these stay.
    """

    changes: Sequence[EntryChange]
    revision: int | None = None
    answers: Sequence[Answer] = ()
    decision: CycleDecision | None = None
    tolerance: Tolerance | None = None
    reserved: tuple[ReservationState, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConfigurationBatch:
    """Changes of configuration that a leader makes in one transaction.

    Attributes:
        revision: of the configuration from which the changes follow.
        written: documents that are created or replaced.
        removed: keys of documents that are deleted, together with the confirmation of a mass deletion.
        lines: of the audit log.
    """

    revision: int
    written: Sequence[Document]
    removed: Collection[DocumentKey]
    lines: Sequence[AuditLine]


class StoreReads(Protocol):
    """The reads of the leader's store and of the API's, and the delivery of events, which both can do."""

    @property
    def notifications(self) -> NotificationStore:
        """Events for receivers, and the subscriptions to them."""

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Revision and all configuration documents, of one moment."""

    async def config_changes(self, since: int, keys: Collection[DocumentKey]) -> ConfigChanges:
        """The documents that were written after revision ``since``, and the ``keys`` documents that were deleted, at one moment.

        If the revision is lower than ``since``, it is another database, and all documents count as written.
        """

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One configuration document with its version, or None."""

    async def get_workload(self, uid: str) -> Entry | None:
        """The workload with this uid, Finished or not; or None."""

    async def commands(self) -> tuple[Command, ...]:
        """Commands without a result, oldest first; not necessarily all of them."""

    async def past_use(self) -> tuple[Used, ...]:
        """The last sample of the past use of all accounts, or imported past use."""


class UsageStore(Protocol):
    """The usage ledger of the leader."""

    async def progress(self) -> UsageProgress:
        """The time up to which everything is accounted for, and the next mark."""

    async def marks(self, limit: int) -> tuple[tuple[int, Mark], ...]:
        """Marks that are not folded yet, with their ids, oldest first."""

    async def accounted(self, uids: Iterable[str]) -> frozenset[str]:
        """The workloads among these that have hours."""

    async def curves(self, uids: Iterable[str]) -> Mapping[str, UseCurve]:
        """The utilization over time of the workloads among these that have one, by uid."""

    async def keep(
        self,
        fold: Fold,
        *,
        over: float | None,
        until: float,
        marks: Collection[int],
        epoch: int,
        free: Mapping[str, Free],
    ) -> None:
        """Add the hours of one folding, in one transaction.

        Args:
            fold: the hours, with their subjects and curves.
            over: the progress when the folding began.
            until: the progress after it.
            marks: ids of its marks: all up to the last of them. They are deleted.
            epoch: of the caller.
            free: GPUs by flavor, for the time from ``over`` to ``until``.

        Raises:
            Fenced: the epoch is no longer the caller's.
            StaleSnapshot: the progress is no longer ``over``, or these marks are folded already; nothing was written.
            StoreUnavailable: the outcome is unknown: read the progress again. The write can still happen after that, so only
                the marks show it.
        """

    async def measured(
        self, sums: Mapping[str, ContainerSums], window: float, *, epoch: int
    ) -> None:
        """Add what containers used, by uid of the workload.

        Args:
            sums: over the ``window`` seconds before their ``until``. The part that was added before is not added again.
            window: seconds.
            epoch: of the caller.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def spent(self, budgets: Iterable[Budget], at: float) -> SpentUnits:
        """The use of budgets in the month of ``at`` (unix seconds)."""

    async def past_runs(self, most: int) -> tuple[FinishedRun, ...]:
        """The run times of the workloads that have finished last, at most so many, oldest first."""

    async def prune(self, before: float, *, epoch: int) -> int:
        """Delete a batch of rows of hours that began before ``before`` (unix seconds), or sums of their oldest day. 0 = none is left.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def add_up(self, now: float, since: float, *, epoch: int) -> bool:
        """Add up the newest day, up to ``now`` or the last full three hours, that is not added up yet, so that reports read fewer rows. They state the same.

        Args:
            now: unix seconds.
            since: days that began before are left out, because their hours are deleted.
            epoch: of the caller.

        Returns:
            Whether there was such a day.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """


class ShadowReports(Protocol):
    """The records of shadow mode, for reports."""

    async def history(self, period: Period, most: int) -> ShadowHistory:
        """The hours of a period, and at most so many of the gangs that were seen since its start."""

    async def simulated(self) -> SimulatedReport | None:
        """The last simulated report; None before the first one."""

    async def progress(self) -> TraceProgress:
        """The state of the records."""


class ShadowStore(ShadowReports, Protocol):
    """The records of shadow mode, for its leader."""

    async def last(self) -> LastObservation | None:
        """The last observation; None before the first one."""

    async def records(self, uids: Iterable[str]) -> Mapping[str, GangRecord]:
        """The records of those of these gangs that have one, by uid."""

    async def book(self, since: float) -> TraceBook:
        """The state with which the next observation is compared; gangs that left before ``since`` (unix seconds) are not in it."""

    async def trace(self, since: float) -> ShadowTrace | None:
        """The trace, without gangs that left before ``since`` (unix seconds); None before the first observation."""

    async def keep_simulated(self, report: SimulatedReport, *, epoch: int) -> None:
        """Replace the simulated report.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep(
        self, fold: ShadowFold, step: TraceStep, *, over: float | None, epoch: int
    ) -> None:
        """Add what an observation adds, and make it the last one. ``over``: time of the observation before; None = there was none.

        Raises:
            Fenced: the epoch is no longer the caller's.
            StaleSnapshot: another observation is the last one; nothing was written.
            StoreUnavailable: the outcome is unknown: read the last observation again.
        """

    async def prune(self, before: float, *, epoch: int) -> int:
        """Delete a batch of hours that began before ``before`` (unix seconds), gangs last seen before it, and versions of nodes that ended before it.

        Returns their number.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """


class LeaderStore(StoreReads, Protocol):
    """The ledger of a leader and of a standby."""

    @property
    def usage(self) -> UsageStore:
        """The usage ledger."""

    async def now(self) -> float:
        """The database's time, unix seconds."""

    async def take_over(self, holder: str, floor: int, accounted: int = 0) -> int:
        """Become the leader that can commit: set the epoch to ``max(stored, floor) + 1`` and return it.

        If the epoch or the usage ledger is behind what the Lease states, the database was restored from a backup. No leader knows what ran
        since then, so the usage ledger continues now.

        Args:
            holder: name of this process.
            floor: epoch that the Lease states.
            accounted: unix seconds until which, by the Lease, the usage ledger was complete.
        """

    async def begin_run(self, holder: str) -> None:
        """Add the run of a process, at its start or when it is a standby again.

        Its earlier runs have ended, and so have those of processes without a heartbeat: for an unknown reason, unless their end
        was noted.
        """

    async def end_run(self, holder: str, how: ProcessEnd) -> None:
        """Note how the last run of a process ended."""

    async def unknown_ends(self, since: float) -> tuple[float, ...]:
        """When runs of this release ended for an unknown reason, after ``since`` and the last careful start, the oldest first.

        A process that runs has not ended. A takeover ends the leaderships of all other processes.
        """

    async def suspects(self) -> tuple[Suspect, ...]:
        """The units of input that ended a process, for all processes."""

    async def keep_suspects(self, suspects: Sequence[Suspect]) -> None:
        """Replace them. A careful start has ended."""

    async def commits_ended(self, *, epoch: int) -> None:
        """Wait until no commit under this epoch is in progress, also none whose call has timed out.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def load(self) -> Loaded:
        """Read all data of the leader in one consistent snapshot."""

    async def follow(self, before: Loaded) -> Loaded:
        """As :meth:`load`, after an earlier read: an entry without a change is the same object."""

    async def commit(self, commit: Commit, *, epoch: int, cycle: int) -> None:
        """Write rows, placements, leases, outbox and history in one transaction.

        Args:
            commit: what is written.
            epoch: of the caller.
            cycle: number of the cycle, stored in the history.

        Raises:
            Fenced: the epoch is no longer the caller's.
            ValueError: a workload has two changes; nothing was written.
            StaleConfiguration: the configuration is no longer at the revision of the plan, and its changes are not accepted;
                nothing was written.
            StaleSnapshot: a row changed, or a command has a result already; nothing was written.
            StoreUnavailable: the outcome is unknown: wait for :meth:`commits_ended`, then load again.
        """

    async def config_changed(self, since: int) -> int:
        """Wait until the revision of the configuration differs from ``since``, and return it."""

    async def write_configuration(self, batch: ConfigurationBatch, *, epoch: int) -> int:
        """Write the documents that follow objects of the cluster. Returns the new revision.

        Raises:
            Fenced: the epoch is no longer the caller's.
            StaleConfiguration: the configuration has another revision; nothing was written.
        """

    async def keep_followed(self, report: FollowedReport, *, epoch: int) -> None:
        """Replace the report on objects of the cluster.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def confirmed_deletion(self) -> str:
        """The id of the mass deletion that a person has confirmed; empty without one."""

    async def commands_waiting(self) -> None:
        """Wait until there is a command without a result."""

    async def ended_stages(self, after: int, limit: int) -> EndedStages:
        """The stages that at most ``limit`` lines of history with ids above ``after`` ended."""

    async def exported_upto(self, *, epoch: int) -> int:
        """The id of the line of history up to which stages are exported; first that of the last line.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_exported(self, line: int, *, epoch: int) -> None:
        """Replace it. Raises Fenced."""

    async def announce(self, events: Sequence[Event], *, epoch: int) -> None:
        """Write events for receivers that belong to no commit. Without receivers it does nothing.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def announce_budgets(
        self, announcements: Mapping[BudgetLimit, Event], *, epoch: int
    ) -> None:
        """Write the events of these limits, without those that were written before. Without receivers it does nothing.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        """Delete some rows that have expired. Returns their number; 0 = none is left.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_use(self, used: Sequence[Used], forget: float, *, epoch: int) -> None:
        """Write a sample of past use for these accounts, and delete accounts that are older than ``forget``.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        """Store the file of a plan that the verifier refused, and delete the oldest beyond the limit.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_set_aside(self, unit: SetAsideObject, content: bytes) -> None:
        """Store the file of a unit that is set aside instead of an earlier one, and delete the oldest beyond the limit.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_findings(self, leader_findings: LeaderFindings, *, epoch: int) -> None:
        """Replace the results of this leader or an earlier one.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def findings(self, last_at: float) -> LeaderFindings | None:
        """The last results of the leader; None if they are of the time ``last_at``, unix seconds."""

    async def close(self) -> None:
        """Give back all connections."""


class UsageReports(Protocol):
    """The usage ledger, read only."""

    async def report(
        self, period: Period, grouping: Grouping, scope: UsageScope = ALL_USAGE
    ) -> Report:
        """Sums of a period by group, in the order of the groups' names; sums of nodes only if the scope is everything.

        Raises:
            BadInput: the report has too many rows.
        """

    async def compared(
        self, period: Period, grouping: Grouping, scope: UsageScope, most: int
    ) -> ComparedReport:
        """The ``most`` largest groups of a period, the largest first, the sum of the others, the period before, and the course.

        Raises:
            BadInput: it is by workload, and has too many of them.
        """

    async def recorded(
        self, period: Period, after: str, limit: int
    ) -> tuple[RecordedWorkload, ...]:
        """Workloads that were started, and were there in a period: by uid, those after one.

        The sums of all hours before the period are those of the hour before it.
        """

    async def hours(self, period: Period) -> UsageHours:
        """The use and the requests of each LocalQueue in each hour of a period."""

    async def job(self, uid: str) -> JobUsage:
        """The sums of one workload, finished or not."""


class AuditStore(Protocol):
    """The audit log."""

    async def begin(self, line: AuditLine) -> int:
        """Write a line without an outcome. This method assigns its id and its time, by the clock of the database."""

    async def end(self, number: int, outcome: RequestOutcome) -> None:
        """Complete a line."""

    async def lines(self, filters: AuditFilter, limit: int) -> tuple[AuditLine, ...]:
        """The newest of these lines, newest first."""

    async def prune(self, age: float) -> int:
        """Delete some lines older than ``age`` seconds, by the clock of the database. Returns their number."""


class Sessions(Protocol):
    """Browser sessions, under hashes of their ids. Their times are those of the database."""

    async def open(self, key: str, caller: Caller, seconds: float, ends: float | None) -> Session:
        """Store a session that begins now, and delete expired sessions.

        Args:
            key: of the session.
            caller: its user.
            seconds: its longest duration.
            ends: unix seconds at which it ends at the latest; None = no such time.
        """

    async def find(self, key: str) -> Session | None:
        """The session; None without one, or if it has expired."""

    async def close(self, key: str) -> None:
        """End a session, if there is one."""


class WorkloadFacts(Protocol):
    """Facts that the view of a workload needs beyond its row."""

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with a LocalQueue or a workload."""

    async def positions(self, uids: Iterable[str]) -> Mapping[str, QueuePosition]:
        """The positions of these workloads in queue order. Workloads that are not pending are left out."""

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        """``namespace/name`` of the known workloads among these, finished or not."""


class ApiStore(StoreReads, WorkloadFacts, Protocol):
    """The ledger and the configuration for REST and the dashboard."""

    @property
    def shadow(self) -> ShadowReports:
        """The records of shadow mode, for reports."""

    @property
    def audit(self) -> AuditStore:
        """The audit log."""

    @property
    def sessions(self) -> Sessions:
        """Browser sessions."""

    @property
    def usage(self) -> UsageReports:
        """The usage ledger."""

    async def list_config(
        self, kind: str, namespace: str | None = None
    ) -> tuple[ConfigDocument, ...]:
        """Documents of one kind by (namespace, name); of one namespace, or of all when None."""

    async def reservations(self) -> tuple[ReservationState, ...]:
        """The placements of Reservations by the last plan of the leader."""

    async def get_configs(self, keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        """The documents with these keys that exist, in the order of their keys."""

    async def put_config(
        self, document: Document, if_match: int | None = None, used: Sequence[Used] = ()
    ) -> int:
        """Create or replace a document. Returns the new version, or the current one if nothing changes.

        Args:
            document: the new document.
            if_match: the version that it replaces; 0 = it must not exist, None = any.
            used: past use that it states. In the same transaction, accounts without past use begin with it; others do not change.

        Raises:
            Conflict: its version is not ``if_match`` (0 = it must not exist, None = any).
        """

    async def delete_config(self, key: DocumentKey, if_match: int | None = None) -> None:
        """Delete.

        Raises:
            NotFound: it does not exist.
            Conflict: its version is not ``if_match``.
        """

    async def followed(self) -> FollowedReport:
        """The last report of a leader on objects of the cluster."""

    async def confirm_deletion(self, deletion: str) -> None:
        """Confirm the mass deletion with this id, instead of any other."""

    async def list_workloads(
        self,
        filters: WorkloadFilter,
        cursor: str | None = None,
        limit: int = 100,
        order: WorkloadOrder = BY_NAME,
    ) -> WorkloadPage:
        """A page of workloads in this order, each as :class:`WorkloadPage` has it.

        Raises:
            BadInput: ``cursor`` is not one of the store's, or of a list in another order.
        """

    async def get_workloads(self, uids: Collection[str]) -> tuple[Entry, ...]:
        """The workloads with these uids that exist, in no order."""

    async def users(self, namespaces: Collection[str] | None, limit: int) -> tuple[str, ...]:
        """The users of workloads that have not finished, by name, at most ``limit``.

        Args:
            namespaces: only of workloads in these; None = all.
            limit: at most this many.
        """

    async def live_workloads(self, before: Collection[Entry]) -> LiveWorkloads:
        """Every workload that is not Finished. Those among ``before`` without a change are the same objects."""

    async def unfinished(self) -> tuple[WorkloadSummary, ...]:
        """All workloads that are not Finished, in no order."""

    async def finished_matches(
        self, search: SearchText, namespaces: frozenset[str] | None, limit: int
    ) -> tuple[WorkloadSummary, ...]:
        """Finished workloads that match a search, at most ``limit``, in the order of results.

        Args:
            search: the text. A text that is not :attr:`SearchText.indexed` is compared with the newest workloads only.
            namespaces: only these; None = all.
            limit: of the result. Beyond it, the newest are left out last, after those whose ``namespace/name`` or uid the text is.
        """

    async def find_workload(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The workload of this name: the live one, otherwise the newest finished one, or None."""

    async def find_workloads(self, namespace: str, name: str) -> tuple[Entry, ...]:
        """The workload of this name of each kind, by kind: the live one, otherwise the newest finished one."""

    async def add_command(self, command: Command) -> Command:
        """Add a command for the leader. This method assigns its ``id`` and its time, by the clock of the database.

        A repeated request returns the first command.

        Raises:
            Conflict: the request id was used for something else.
        """

    async def get_command(self, request_id: str) -> Command | None:
        """The command of this request, with or without a result; or None."""

    async def command(self, number: int) -> Command | None:
        """The command with this id, with or without a result; or None."""

    async def commands_of(self, uid: str, after: int = 0, limit: int = 100) -> tuple[Command, ...]:
        """Commands for one workload with ids above ``after``, oldest first."""

    async def newest_commands(
        self, filters: CommandFilter, limit: int = 100
    ) -> tuple[Command, ...]:
        """The newest of these commands, with or without a result, newest first."""

    async def history(
        self, uid: str | None, after: int = 0, limit: int = 100
    ) -> tuple[HistoryLine, ...]:
        """Lines of one workload (None = of all) with ids above ``after``, oldest first."""

    async def decisions(
        self, before: int | None = None, limit: int = 100
    ) -> tuple[StoredDecision, ...]:
        """Records of planning cycles with ids below one (None = all), the newest first, at most 500."""

    async def get_decision(self, number: int) -> StoredDecision | None:
        """The record with this id, or None."""

    async def refused_plans(self) -> tuple[RefusedPlan, ...]:
        """Plans that the verifier refused, the newest first."""

    async def refused_plan(self, number: int) -> bytes | None:
        """The file of the refused plan with this id (:mod:`queuectl.objects.files.refused_plans`), or None."""

    async def set_aside_objects(self) -> tuple[SetAsideObject, ...]:
        """Objects of units that were set aside, the newest first."""

    async def set_aside_object(self, number: int) -> bytes | None:
        """The file of the object with this id (:mod:`queuectl.objects.files.set_aside_objects`), or None."""

    async def newest_lines(self, uid: str, limit: int = 100) -> tuple[HistoryLine, ...]:
        """The last lines of one workload, newest first, at most 500."""

    async def newest_line(self) -> int:
        """The id of the last history line; 0 without any."""

    async def history_grown(self, after: int) -> None:
        """Wait until there is a history line with an id above ``after``."""

    async def tallies(self) -> tuple[QueueCounts, ...]:
        """Counts of workloads that are not Finished, by LocalQueue, ClusterQueue, state and reason."""

    async def waiting(
        self,
        cluster_queue: str | None = None,
        namespaces: Collection[str] | None = None,
        *,
        queue: str | None = None,
        order: WaitingOrder = WaitingOrder.TURN,
        skip: int = 0,
        limit: int = 100,
    ) -> tuple[Entry, ...]:
        """Pending and Reserved workloads, of one ClusterQueue and LocalQueue or of all, in these namespaces or in all; at most 500."""

    async def evictions(
        self,
        namespaces: Collection[str] | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[HistoryLine, ...]:
        """The latest evictions, newest first, with ids below ``before``; at most 500."""
