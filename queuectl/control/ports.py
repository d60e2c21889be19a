"""What the control loop needs of the world: the only interfaces between it and the adapters.

A real adapter and its in-memory double satisfy the same Protocol and pass the same conformance tests
(tests/cluster/conformance.py, tests/db/conformance.py). Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from queuectl.domain.accounting import Free, Mark, UsageProgress
from queuectl.domain.broadcast import LeaderFindings
from queuectl.domain.commands import Answer, Command
from queuectl.domain.decisions import Decision
from queuectl.domain.estimates import Run
from queuectl.domain.folding import Fold
from queuectl.domain.ledger import Document, Entry, EntryChange, Loaded
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import ConfigChanges, ConfigDocument, DocumentKey, Tolerance
from queuectl.domain.records import Delta, JobRecord, LeaderRecord, PriorAdmission
from queuectl.domain.refused import RefusedPlan
from queuectl.domain.rules import Retention
from queuectl.domain.utilization import PodKey, Sample

Sink = Callable[[Sequence[Delta]], None]


class UsageStore(Protocol):
    """The usage ledger. Every method may raise StoreUnavailable."""

    async def progress(self) -> UsageProgress:
        """Where it stands."""

    async def marks(self, limit: int) -> tuple[tuple[int, Mark], ...]:
        """Marks that are not folded yet, with their ids, oldest first."""

    async def accounted(self, uids: Iterable[str]) -> frozenset[str]:
        """Those of these workloads that have hours."""

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
        """Add the hours of one fold, in one transaction.

        Args:
            fold: the hours, and what they are made for.
            over: where the books stood when the folding began.
            until: where they stand after it.
            marks: ids of the marks that are in it: all up to the last of them. They are dropped.
            epoch: of the caller.
            free: GPUs by flavor, for the time from ``over`` to ``until``.

        Raises:
            Fenced: the epoch is no longer the caller's.
            StaleSnapshot: the books do not stand at ``over`` any more, or these marks are folded already; nothing was
                written.
            StoreUnavailable: the outcome is unknown: read the books again. It may still happen after that, so it is the
                marks that tell.
        """

    async def past_runs(self, most: int) -> tuple[Run, ...]:
        """How long the workloads held their places that have finished last, at most so many, oldest first."""

    async def prune(self, before: float, *, epoch: int) -> int:
        """Delete some hours that began before ``before`` (unix seconds); how many. 0 = none is left to delete.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """


class UseSource(Protocol):
    """Where GPU utilization comes from (telemetry/signal).

    Attributes:
        trusts: whose measurements count, for people.
    """

    trusts: str

    async def sample(self, window: float, at: float, known: Collection[PodKey]) -> Sample:
        """What is known of all pods over the ``window`` seconds before ``at``.

        ``known``: pods that hold GPUs, by which a source may recognize how pods are named.

        Raises:
            SourceUnavailable: no answer that can be used.
        """

    async def close(self) -> None:
        """Give back all connections."""


class Store(Protocol):
    """The ledger's durable form. Every method may raise StoreUnavailable."""

    @property
    def usage(self) -> UsageStore:
        """The usage ledger."""

    async def now(self) -> float:
        """The database's time, unix seconds."""

    async def take_over(self, holder: str, floor: int) -> int:
        """Become the one who may commit: raise the epoch to ``max(stored, floor) + 1`` and return it."""

    async def commits_ended(self, *, epoch: int) -> None:
        """Wait until no commit under this epoch is under way, those included that the caller has given up.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def load(self) -> Loaded:
        """Read everything the leader works on, in one consistent snapshot."""

    async def follow(self, before: Loaded) -> Loaded:
        """The same as :meth:`load`, having read of it before: what has not changed since is the very same object."""

    async def commit(
        self,
        changes: Sequence[EntryChange],
        *,
        epoch: int,
        revision: int | None,
        cycle: int,
        answers: Sequence[Answer] = (),
        decision: Decision | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        """Write rows, placements, leases, outbox and history in one transaction.

        Args:
            changes: at most one per workload. A row is written only over the version it was read at.
            epoch: of the caller.
            revision: configuration revision the plan was made with; None = the changes do not depend on it.
            cycle: number of the cycle, kept in the history.
            answers: commands that are carried out with this, or came to nothing: each is answered once.
            decision: record of the cycle, kept beside the history.
            tolerance: with what became of the configuration after ``revision`` the changes may be written all the same;
                None = with nothing.

        Raises:
            Fenced: the epoch is no longer the caller's.
            StaleConfiguration: the configuration is no longer at ``revision``, which is not tolerated; nothing was written.
            StaleSnapshot: a row changed, or a command was answered before; nothing was written.
            StoreUnavailable: the outcome is unknown: wait for :meth:`commits_ended`, then load again.
        """

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Current revision and all configuration documents."""

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        """What was written after revision ``since``, and which of the ``known`` documents are gone, of one moment.

        All that there is counts as written where the revision is lower than ``since``: that is another database.
        """

    async def config_changed(self, since: int) -> int:
        """Wait until the configuration's revision differs from ``since``; the new one."""

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One configuration document with its version, or None."""

    async def get_workload(self, uid: str) -> Entry | None:
        """The workload with this uid, Finished or not; or None."""

    async def commands(self) -> tuple[Command, ...]:
        """Commands that are not answered yet, oldest first; not necessarily all of them."""

    async def commands_waiting(self) -> None:
        """Wait until there is a command that is not answered."""

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        """Delete some rows that are kept long enough; how many. 0 = none is left to delete.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_use(self, used: Sequence[Used], forget: float, *, epoch: int) -> None:
        """Write a sample of past use over what is known of these accounts, and forget all that is older than ``forget``.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def past_use(self) -> tuple[Used, ...]:
        """Past use as last sampled, or taken over from elsewhere."""

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        """Keep the file of a plan that the verifier refused; the oldest go beyond what is kept.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def keep_findings(self, found: LeaderFindings, *, epoch: int) -> None:
        """Write what the leader found out over what it, or another before it, found.

        Raises:
            Fenced: the epoch is no longer the caller's.
        """

    async def findings(self, known: float) -> LeaderFindings | None:
        """What the leader found out last; None where that is as of ``known``, unix seconds."""

    async def close(self) -> None:
        """Give back all connections."""


class Cluster(Protocol):
    """The Kubernetes API as the loop uses it. Writes are compare-and-swap: the body carries uid and resourceVersion.

    Writes raise ClusterUnavailable, WriteConflict, ObjectGone or WriteRefused.
    """

    async def watch(self, sink: Sink, synced: Callable[[str], None], *, kueue: bool = True) -> None:
        """Feed ``sink`` with batches of deltas of all resources until cancelled; reconnects by itself.

        ``synced(resource)`` is called after the first complete list of each resource. ``kueue``: labels and annotations
        with Kueue's prefix count beside ours.
        """

    async def patch_job(self, kind: str, namespace: str, name: str, patch: Document) -> int:
        """Merge-patch one job; returns the new resourceVersion."""

    async def patch_pod(self, namespace: str, name: str, patch: Document) -> int:
        """Merge-patch one pod; returns the new resourceVersion."""

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """Remove this pod at once, without its node's answer. Only for pods of dead nodes: its containers may run on."""

    async def patch_namespace(self, name: str, patch: Document) -> None:
        """Merge-patch one namespace; nothing but our own label may be in it."""

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        """Tell the user: one Event on the job. ``kind`` is Normal or Warning."""

    async def read_leader(self) -> LeaderRecord | None:
        """The LeaderLease, or None when there is none yet."""

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        """Take or renew the LeaderLease by compare-and-swap over what was read (None = create)."""

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        """By dry-run: what is missing of the admission policies queuectl relies on; empty when all are in force.

        ``kueue``: they must act on Kueue's label, too; else they must not.
        """

    async def kueue_runs(self) -> bool:
        """Whether a Kueue is installed in this cluster."""

    async def kueue_keys_act(self) -> bool:
        """Whether the admission policies act on jobs with Kueue's label."""

    async def read_admissions(self) -> Sequence[PriorAdmission]:
        """What a Kueue that was shut down left of its decisions; nothing where none was installed."""

    async def close(self) -> None:
        """Give back all connections."""


Clock = Callable[[], float]
