"""The interfaces of the API: reads of the ledger, writes of the configuration and of commands, and the health of the process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action, Command, CommandFilter
from queuectl.domain.decisions import RefusedPlan, StoredDecision
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.estimates import ExpectedStarts
from queuectl.domain.identity import Session
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Checked, Document, Entry
from queuectl.domain.past_jobs import RecordedWorkload
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import (
    BY_NAME,
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    QueuePosition,
    UnmanagedPod,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reservations import ReservationState
from queuectl.domain.set_aside_objects import SetAsideObject
from queuectl.domain.spending import BudgetReport
from queuectl.domain.usage_reports import Grouping, Period, Report, UsageHours
from queuectl.domain.utilization import GangUse
from queuectl.domain.what_if import DrainCost, Preview, WhatIf, WhatIfResult
from queuectl.objects.kinds import JobKinds


class Reports(Protocol):
    """The usage ledger, read only."""

    async def report(
        self, period: Period, grouping: Grouping, namespaces: frozenset[str] | None = None
    ) -> Report:
        """Sums of a period by group, in the order of the groups' names. Can raise StoreUnavailable.

        ``namespaces``: only these, without the sums of nodes; None = all.

        Raises:
            BadInput: the report has too many rows.
        """

    async def recorded(
        self, period: Period, after: str, limit: int
    ) -> tuple[RecordedWorkload, ...]:
        """Workloads that were started, and were there in a period: by uid, those after one. Can raise StoreUnavailable."""

    async def hours(self, period: Period) -> UsageHours:
        """The use and the requests of each LocalQueue in each hour of a period. Can raise StoreUnavailable."""


class AuditStore(Protocol):
    """The audit log. Each method can raise StoreUnavailable."""

    async def begin(self, line: AuditLine) -> int:
        """Write a line without an outcome. This method assigns its id."""

    async def end(self, number: int, outcome: RequestOutcome) -> None:
        """Complete a line."""

    async def lines(self, wanted: AuditFilter, limit: int) -> tuple[AuditLine, ...]:
        """The newest of these lines, newest first."""

    async def prune(self, before: float) -> int:
        """Delete some lines older than ``before`` (unix seconds). Returns their number."""


class Sessions(Protocol):
    """Browser sessions, under hashes of their ids. Each method can raise StoreUnavailable."""

    async def open(self, key: str, session: Session) -> None:
        """Store a session, and delete sessions that have expired before its start."""

    async def find(self, key: str, now: float) -> Session | None:
        """The session; None without one, or if it has expired."""

    async def close(self, key: str) -> None:
        """End a session, if there is one."""


class ApiStore(Protocol):
    """The ledger and the configuration for the API. Each method can raise StoreUnavailable."""

    @property
    def audit(self) -> AuditStore:
        """The audit log."""

    @property
    def sessions(self) -> Sessions:
        """Browser sessions."""

    @property
    def usage(self) -> Reports:
        """The usage ledger."""

    async def list_config(
        self, kind: str, namespace: str | None = None
    ) -> tuple[ConfigDocument, ...]:
        """Documents of one kind by (namespace, name); of one namespace, or of all when None."""

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One document, or None."""

    async def reservations(self) -> tuple[ReservationState, ...]:
        """The placements of Reservations by the last plan of the leader."""

    async def get_configs(self, keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        """The documents with these keys that exist, in the order of their keys."""

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Revision and all documents, of one moment."""

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        """The documents that were written after a revision, and those that were deleted."""

    async def put_config(self, document: Document, if_match: int | None = None) -> int:
        """Create or replace a document. Returns the new version, or the current one if nothing changes.

        Raises:
            Conflict: its version is not ``if_match`` (0 = it must not exist, None = any).
        """

    async def delete_config(self, key: DocumentKey, if_match: int | None = None) -> None:
        """Delete.

        Raises:
            NotFound: there is none.
            Conflict: its version is not ``if_match``.
        """

    async def past_use(self) -> tuple[Used, ...]:
        """The last sample of the past use of all accounts."""

    async def start_use(self, used: Sequence[Used]) -> None:
        """Import the past use of accounts without any. Other accounts do not change."""

    async def list_workloads(
        self,
        wanted: WorkloadFilter,
        cursor: str | None = None,
        limit: int = 100,
        order: WorkloadOrder = BY_NAME,
    ) -> WorkloadPage:
        """A page of workloads in this order, each as :class:`WorkloadPage` has it.

        Raises:
            BadInput: ``cursor`` is not one of the store's, or of a list in another order.
        """

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with a LocalQueue or a workload."""

    async def get_workload(self, uid: str) -> Entry | None:
        """One workload, finished or not; or None."""

    async def find_workload(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The workload of this name: the live one, else the newest finished one, else None."""

    async def find_workloads(self, namespace: str, name: str) -> tuple[Entry, ...]:
        """The workload of this name of each kind, by kind: the live one, else the newest finished one."""

    async def positions(self, uids: Iterable[str]) -> Mapping[str, QueuePosition]:
        """The positions of these workloads in queue order. Workloads that are not pending are left out."""

    async def add_command(self, command: Command) -> Command:
        """Add a command for the leader. This method assigns its ``id``. A repeated request returns the first command.

        Raises:
            Conflict: the request id was used for something else.
        """

    async def get_command(self, request_id: str) -> Command | None:
        """The command of this request, with or without a result; or None."""

    async def command(self, number: int) -> Command | None:
        """The command with this id, with or without a result; or None."""

    async def commands_of(self, uid: str, after: int = 0, limit: int = 100) -> tuple[Command, ...]:
        """Commands for one workload with ids above ``after``, oldest first."""

    async def newest_commands(self, wanted: CommandFilter, limit: int = 100) -> tuple[Command, ...]:
        """The newest of these commands, with or without a result, newest first."""

    async def commands(self) -> tuple[Command, ...]:
        """Commands without a result, oldest first; not necessarily all of them."""

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        """``namespace/name`` of the known workloads among these, finished or not."""

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

    async def newest_line(self) -> int:
        """The id of the last history line; 0 without any."""

    async def history_grown(self, after: int) -> None:
        """Wait until there is a history line with an id above ``after``."""


class ClusterReader(Protocol):
    """Views of the cluster, in each process that watches it."""

    async def cluster_map(self) -> ClusterMap | None:
        """The cluster map, at most about a second old; None until this process has one.

        Can raise StoreUnavailable.
        """

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Unmanaged pods that hold GPUs, by namespace and name, at most about a second old.

        None until this process has a view of the cluster. Can raise StoreUnavailable.
        """

    async def budgets(self) -> BudgetReport | None:
        """The use of budgets and its forecast, at most about a second old.

        None until this process has a view of the cluster. Can raise StoreUnavailable.
        """

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods of all its attempts, in no order; None until this process has a view of the cluster."""

    @property
    def kinds(self) -> JobKinds:
        """The job kinds that it watches."""

    async def try_out(self, question: WhatIf) -> WhatIfResult | None:
        """The plans with and without the changes; None until this process has a view of the cluster.

        Raises:
            BadInput: a change is invalid.
            TookTooLong: the time of the planner was too short, or too many requests wait.
            StoreUnavailable: no response from the database.
        """


class Diagnoser(Protocol):
    """Diagnoses and previews by the planner. Only the leader has GPU utilization and estimates."""

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a pending workload does not start, from the solver; None if this process has no answer now."""

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """The cost and the effect of an action on a running gang now; None if this process has no answer.

        Can raise StoreUnavailable.
        """

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """The cost of draining a ClusterQueue or a LocalQueue now; None while this process does not know the cluster.

        May raise StoreUnavailable.
        """

    async def over_quota(self, config: QueueConfig) -> Sequence[Excess] | None:
        """Running gangs that exceed the quota of another configuration; None if this process has no answer now."""

    async def device_resources(self) -> Collection[str]:
        """The resources that only devices of ResourceSlices provide; none while this process does not know the cluster.

        Can raise StoreUnavailable.
        """

    async def check(self) -> Checked | None:
        """The violations in a complete check of the invariants; None if this process is not the leader.

        Can raise StoreUnavailable.
        """

    async def leader(self) -> str:
        """The name of the leader; empty without one. Can raise ClusterUnavailable."""

    def gang_use(self, uid: str) -> GangUse | None:
        """The GPU utilization of a gang in the last evaluation; None without a source."""

    def expected_starts(self) -> ExpectedStarts:
        """The expected starts of pending gangs, by the leader's last estimate."""


class HealthChecks(Protocol):
    """The health of the process. Each sentence names one fault, as ``watch: pods not listed yet``; none = healthy."""

    async def live(self) -> Sequence[str]:
        """Faults that need a restart."""

    async def ready(self) -> Sequence[str]:
        """Reasons why the process is not ready."""
