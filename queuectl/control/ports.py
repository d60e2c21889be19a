"""The interfaces between the control loop and the adapters.

A real adapter and its in-memory double satisfy the same Protocol and pass the same conformance tests
(tests/cluster/conformance.py, tests/db/conformance.py). Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from queuectl.domain.accounting import Free, Mark, UsageProgress
from queuectl.domain.broadcast import LeaderFindings
from queuectl.domain.budgets import Budget, SpentUnits
from queuectl.domain.commands import Answer, Command
from queuectl.domain.containment import Suspect
from queuectl.domain.decisions import CycleDecision, RefusedPlan
from queuectl.domain.folding import Fold
from queuectl.domain.jobs import JobRecord, PriorAdmission
from queuectl.domain.ledger import Document, Entry, EntryChange, Loaded
from queuectl.domain.node_health import GpuClock, GpuFault, NodeHealthRules
from queuectl.domain.past_jobs import FinishedRun
from queuectl.domain.pastuse import Used
from queuectl.domain.process_runs import ProcessEnd
from queuectl.domain.queries import ConfigChanges, ConfigDocument, DocumentKey, Tolerance
from queuectl.domain.records import Delta, LeaderRecord
from queuectl.domain.reservations import ReservationState
from queuectl.domain.rules import Retention
from queuectl.domain.set_aside_objects import SetAsideObject
from queuectl.domain.utilization import PodKey, UtilizationSample

Sink = Callable[[Sequence[Delta]], None]


class UsageStore(Protocol):
    """The usage ledger. Each method can raise StoreUnavailable."""

    async def progress(self) -> UsageProgress:
        """The time up to which everything is accounted for, and the next mark."""

    async def marks(self, limit: int) -> tuple[tuple[int, Mark], ...]:
        """Marks that are not folded yet, with their ids, oldest first."""

    async def accounted(self, uids: Iterable[str]) -> frozenset[str]:
        """The workloads among these that have hours."""

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
            fold: the hours, with their subjects.
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

    async def spent(self, budgets: Iterable[Budget], at: float) -> SpentUnits:
        """The use of budgets in the month of ``at`` (unix seconds)."""

    async def past_runs(self, most: int) -> tuple[FinishedRun, ...]:
        """The run times of the workloads that have finished last, at most so many, oldest first."""

    async def prune(self, before: float, *, epoch: int) -> int:
        """Delete some hours that began before ``before`` (unix seconds). Returns their number; 0 = none is left.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """


class HealthSource(Protocol):
    """A source of faults of GPUs (telemetry/signal)."""

    async def faults(self, rules: NodeHealthRules, at: float) -> Sequence[GpuFault]:
        """The faults that count by the rules, as of ``at``, unix seconds.

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """

    async def clocks(self, window: float, at: float) -> Sequence[GpuClock]:
        """The clocks of GPUs of pods over the ``window`` seconds before ``at``, unix seconds.

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """

    async def close(self) -> None:
        """Close the connections."""


class UseSource(Protocol):
    """A source of GPU utilization (telemetry/signal).

    Attributes:
        trusts: a description of the trusted series, for users.
    """

    trusts: str

    async def sample(self, window: float, at: float, pods: Collection[PodKey]) -> UtilizationSample:
        """The samples of all pods over the ``window`` seconds before ``at``.

        ``pods``: pods that hold GPUs, from which a source can derive the labels that name pods.

        Raises:
            SourceUnavailable: no usable response.
        """

    async def close(self) -> None:
        """Give back all connections."""


class Store(Protocol):
    """The durable ledger. Each method can raise StoreUnavailable."""

    @property
    def usage(self) -> UsageStore:
        """The usage ledger."""

    async def now(self) -> float:
        """The database's time, unix seconds."""

    async def take_over(self, holder: str, floor: int) -> int:
        """Become the leader that can commit: set the epoch to ``max(stored, floor) + 1`` and return it."""

    async def begin_run(self, holder: str) -> None:
        """Add the run of a process, at its start or when it is a standby again.

        Its earlier runs have ended, and so have those of processes without a heartbeat: for an unknown reason, unless their end
        was noted.
        """

    async def end_run(self, holder: str, how: ProcessEnd) -> None:
        """Note how the last run of a process ended."""

    async def unknown_ends(self, since: float) -> tuple[float, ...]:
        """When runs of this release ended for an unknown reason, after ``since`` and the last careful start, the oldest first.

        A process that runs has not ended. A take-over ends the leaderships of all other processes.
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

    async def commit(
        self,
        changes: Sequence[EntryChange],
        *,
        epoch: int,
        revision: int | None,
        cycle: int,
        answers: Sequence[Answer] = (),
        decision: CycleDecision | None = None,
        tolerance: Tolerance | None = None,
        reserved: Sequence[ReservationState] | None = None,
    ) -> None:
        """Write rows, placements, leases, outbox and history in one transaction.

        Args:
            changes: at most one for each workload. A row is written only over the version that was read.
            epoch: of the caller.
            revision: configuration revision of the plan; None = the changes do not depend on it.
            cycle: number of the cycle, stored in the history.
            answers: results of commands; each command gets one result.
            decision: record of the cycle, stored beside the history.
            reserved: the placements of all Reservations, which replace the stored ones; None = these stay.
            tolerance: accepts changes of the configuration after ``revision``; None = accepts none.

        Raises:
            Fenced: the epoch is no longer the caller's.
            ValueError: a workload has two changes; nothing was written.
            StaleConfiguration: the configuration is no longer at ``revision``, and its changes are not accepted; nothing was
                written.
            StaleSnapshot: a row changed, or a command has a result already; nothing was written.
            StoreUnavailable: the outcome is unknown: wait for :meth:`commits_ended`, then load again.
        """

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Current revision and all configuration documents."""

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        """The documents that were written after revision ``since``, and the ``known`` documents that were deleted, at one moment.

        If the revision is lower than ``since``, it is another database, and all documents count as written.
        """

    async def config_changed(self, since: int) -> int:
        """Wait until the revision of the configuration differs from ``since``, and return it."""

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One configuration document with its version, or None."""

    async def get_workload(self, uid: str) -> Entry | None:
        """The workload with this uid, Finished or not; or None."""

    async def commands(self) -> tuple[Command, ...]:
        """Commands without a result, oldest first; not necessarily all of them."""

    async def commands_waiting(self) -> None:
        """Wait until there is a command without a result."""

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

    async def past_use(self) -> tuple[Used, ...]:
        """The last sample of past use, or imported past use."""

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        """Store the file of a plan that the verifier refused, and delete the oldest beyond the limit.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_set_aside(self, one: SetAsideObject, content: bytes) -> None:
        """Store the file of a unit that is set aside instead of an earlier one, and delete the oldest beyond the limit.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_findings(self, found: LeaderFindings, *, epoch: int) -> None:
        """Replace the results of this leader or an earlier one.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def findings(self, known: float) -> LeaderFindings | None:
        """The last results of the leader; None if they are of the time ``known``, unix seconds."""

    async def close(self) -> None:
        """Give back all connections."""


class Cluster(Protocol):
    """The Kubernetes API for the loop. Writes are compare-and-swap: the body contains uid and resourceVersion.

    Writes raise ClusterUnavailable, WriteConflict, ObjectGone or WriteRefused.
    """

    async def watch(self, sink: Sink, synced: Callable[[str], None], *, kueue: bool = True) -> None:
        """Pass batches of deltas of all resources to ``sink`` until canceled. It reconnects itself.

        ``synced(resource)`` is called after the first complete list of each resource. ``kueue``: labels and annotations
        with Kueue's prefix count, too.
        """

    async def catch_up(self) -> None:
        """Return when the running watch has delivered the state of the cluster at the time of this call, or a newer one.

        It waits for the API server as long as necessary. A watch that is behind, such as one with a dead connection, lists again.
        """

    async def patch_job(self, kind: str, namespace: str, name: str, patch: Document) -> int:
        """Merge-patch one job; returns the new resourceVersion."""

    async def patch_pod(self, namespace: str, name: str, patch: Document) -> int:
        """Merge-patch one pod; returns the new resourceVersion."""

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """Delete this pod at once, without its node. Only for pods of dead nodes: its containers can continue to run."""

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this pod, with its grace period. Only for pods that are workloads, or parts of one."""

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """Evict this pod, with its grace period and the condition DisruptionTarget."""

    async def patch_namespace(self, name: str, patch: Document) -> None:
        """Merge-patch one namespace. The patch can change only the label of queuectl."""

    async def patch_node(self, name: str, patch: Document) -> int:
        """Merge-patch one node; returns the new resourceVersion. It needs the right of deploy/optional/mig-reconfiguration.yaml."""

    async def create_object(self, resource: str, document: Document) -> None:
        """Create a ProvisioningRequest or a PodTemplate (``resource``: the plural name). One that exists for the same gang stays as it is.

        WriteRefused also if the object with its name is of another gang, or not of queuectl.
        It needs the right of deploy/optional/provisioning.yaml.
        """

    async def delete_object(self, resource: str, namespace: str, name: str) -> None:
        """Delete a ProvisioningRequest or a PodTemplate. One that does not exist is deleted. It needs the same right."""

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        """Write one Event on the job, which has an object (``JobRecord.has_object``). ``kind`` is Normal or Warning."""

    async def read_leader(self) -> LeaderRecord | None:
        """The LeaderLease; None if it does not exist yet."""

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        """Acquire or renew the LeaderLease by compare-and-swap with the version that was read (None = create)."""

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        """The missing admission policies of queuectl, by dry run; empty if all are in force.

        ``kueue``: they must act on Kueue's label, too; otherwise they must not.
        """

    async def kueue_runs(self) -> bool:
        """Whether a Kueue is installed in this cluster."""

    async def kueue_keys_act(self) -> bool:
        """Whether the admission policies act on jobs with Kueue's label."""

    async def read_admissions(self) -> Sequence[PriorAdmission]:
        """The admissions of a Kueue that was stopped; empty if none was installed."""

    async def close(self) -> None:
        """Give back all connections."""


Clock = Callable[[], float]
