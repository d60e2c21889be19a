"""What the API needs of the house, and no more: a store it may read, configuration it may write, and how we are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from queuectl.domain.audit import AuditFilter, AuditLine, Outcome
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action, Command, CommandFilter
from queuectl.domain.decisions import StoredDecision
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.identity import Session
from queuectl.domain.invariants import Checked
from queuectl.domain.ledger import Document, Entry
from queuectl.domain.pastuse import Used
from queuectl.domain.preview import DrainCost, Preview
from queuectl.domain.queries import (
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    QueuePosition,
    WorkloadFilter,
    WorkloadPage,
)
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import PodRecord
from queuectl.domain.refused import RefusedPlan
from queuectl.domain.reports import Grouping, Period, Report
from queuectl.domain.unmanaged import UnmanagedPod
from queuectl.domain.usage_history import UsageHours
from queuectl.domain.utilization import GangUse
from queuectl.domain.what_if import WhatIfResult
from queuectl.domain.workload_order import BY_NAME, WorkloadOrder
from queuectl.objects.files.what_if import WhatIf


class Reports(Protocol):
    """The usage ledger, read only."""

    async def report(
        self, period: Period, grouping: Grouping, namespaces: frozenset[str] | None = None
    ) -> Report:
        """Sums of a period by group, in the order of the groups' names. May raise StoreUnavailable.

        ``namespaces``: of these alone, and nothing of the fleet; None = all.

        Raises:
            BadInput: it would have too many rows.
        """

    async def hours(self, period: Period) -> UsageHours:
        """What each LocalQueue held and requested in each hour of a period. May raise StoreUnavailable."""


class AuditStore(Protocol):
    """Who changed what. Every method may raise StoreUnavailable."""

    async def begin(self, line: AuditLine) -> int:
        """Write a line whose outcome is not known yet; its id is given here."""

    async def end(self, number: int, outcome: Outcome) -> None:
        """Complete a line."""

    async def lines(self, wanted: AuditFilter, limit: int) -> tuple[AuditLine, ...]:
        """The newest of these lines, newest first."""

    async def prune(self, before: float) -> int:
        """Delete some lines older than ``before`` (unix seconds); how many."""


class Sessions(Protocol):
    """Browsers that showed a token, under hashes of their ids. Every method may raise StoreUnavailable."""

    async def open(self, key: str, session: Session) -> None:
        """Keep a session; those that are over by its beginning go."""

    async def find(self, key: str, now: float) -> Session | None:
        """The session, unless it is over; or None."""

    async def close(self, key: str) -> None:
        """End a session, if there is one."""


class ApiStore(Protocol):
    """Every method may raise StoreUnavailable."""

    @property
    def audit(self) -> AuditStore:
        """Who changed what."""

    @property
    def sessions(self) -> Sessions:
        """Browsers that showed a token."""

    @property
    def usage(self) -> Reports:
        """The usage ledger."""

    async def list_config(
        self, kind: str, namespace: str | None = None
    ) -> tuple[ConfigDocument, ...]:
        """Documents of one kind by (namespace, name); of one namespace, or of all when None."""

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One document, or None."""

    async def get_configs(self, keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        """Those of these documents that exist, in the order of their keys."""

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Revision and all documents, of one moment."""

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        """What was written after a revision, and which of these documents are gone."""

    async def put_config(self, document: Document, if_match: int | None = None) -> int:
        """Create or replace; the new version, or the present one when nothing changes.

        Raises:
            Conflict: it is not at version ``if_match`` (0 = it must not exist, None = over anything).
        """

    async def delete_config(self, key: DocumentKey, if_match: int | None = None) -> None:
        """Delete.

        Raises:
            NotFound: there is none.
            Conflict: it is not at version ``if_match``.
        """

    async def past_use(self) -> tuple[Used, ...]:
        """Past use of all accounts, as last sampled."""

    async def start_use(self, used: Sequence[Used]) -> None:
        """Take over past use of accounts of which nothing is known yet; the others stay as they are."""

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
        """Those that have a LocalQueue or a workload."""

    async def get_workload(self, uid: str) -> Entry | None:
        """One workload, finished or not; or None."""

    async def find_workload(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The workload of this name: the live one, else the newest finished one, else None."""

    async def positions(self, uids: Iterable[str]) -> Mapping[str, QueuePosition]:
        """Where these workloads stand in line; those that are in no line are left out."""

    async def add_command(self, command: Command) -> Command:
        """Keep a command for the leader; its ``id`` is given here. The same request again gives the first one.

        Raises:
            Conflict: the request id was used for something else.
        """

    async def get_command(self, request_id: str) -> Command | None:
        """The command of this request, answered or not; or None."""

    async def command(self, number: int) -> Command | None:
        """The command with this id, answered or not; or None."""

    async def commands_of(self, uid: str, after: int = 0, limit: int = 100) -> tuple[Command, ...]:
        """Commands for one workload with ids above ``after``, oldest first."""

    async def newest_commands(self, wanted: CommandFilter, limit: int = 100) -> tuple[Command, ...]:
        """The newest of these commands, answered or not, newest first."""

    async def commands(self) -> tuple[Command, ...]:
        """Commands that are not answered yet, oldest first; not necessarily all of them."""

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        """``namespace/name`` of those of these workloads that are known, finished or not."""

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

    async def newest_line(self) -> int:
        """The id of the last history line of all; 0 when there is none."""

    async def history_grown(self, after: int) -> None:
        """Wait until there is a history line with an id above ``after``."""


class ClusterReader(Protocol):
    """Who can look at the cluster: each process that watches it."""

    async def cluster_map(self) -> ClusterMap | None:
        """What stands where, about a second old at most; None while this process does not know yet.

        May raise StoreUnavailable.
        """

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Pods outside the queues that hold GPUs, by namespace and name, about a second old at most.

        None while this process does not know yet. May raise StoreUnavailable.
        """

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods, of all its attempts, in no order; None while this process does not know yet."""

    async def try_out(self, asked: WhatIf) -> WhatIfResult | None:
        """What would be after a change; None while this process does not know yet what there is.

        Raises:
            BadInput: it cannot be done as asked.
            TookTooLong: the planner had not enough time, or too many ask.
            StoreUnavailable: no answer from the database.
        """


class Diagnoser(Protocol):
    """Who can look at what the planner sees. What GPUs do, and estimates, only the process that leads knows."""

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a waiting workload does not start, by solving; None when this process cannot tell now."""

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """What taking a gang down by hand would cost and bring now; None when this process cannot tell.

        May raise StoreUnavailable.
        """

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """The cost of draining a ClusterQueue or a LocalQueue now; None while this process does not know the cluster.

        May raise StoreUnavailable.
        """

    async def over_quota(self, config: QueueConfig) -> Sequence[Excess] | None:
        """What runs and would be over quota under another configuration; None when this process cannot tell now."""

    async def check(self) -> Checked | None:
        """What a complete check of the invariants finds; None while this process does not lead.

        May raise StoreUnavailable.
        """

    async def leader(self) -> str:
        """Which process leads; empty when none does. May raise ClusterUnavailable."""

    def gang_use(self, uid: str) -> GangUse | None:
        """What a gang did with its GPUs at the last look; None where nobody looks."""

    def estimated_start(self, uid: str) -> float | None:
        """When a waiting gang may start, unix seconds; None where nobody knows."""


class Health(Protocol):
    """How the process is. Each sentence names one thing, as ``watch: pods not listed yet``; none = all is well."""

    async def live(self) -> Sequence[str]:
        """What only a restart mends."""

    async def ready(self) -> Sequence[str]:
        """What keeps it from doing its work just now."""
