"""The state from which a plan is made: the ledger, the use of nodes and devices, and the sums that limit starts.

A leader, a standby, a simulation and a plan of files each hold one. They differ in where its parts come from, and not in the snapshot
that follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.pastuse import Used, past_use
from queuectl.domain.queries import UnmanagedPod
from queuectl.domain.queues import QueueConfig, in_force, next_boundary
from queuectl.domain.reservations import ReservationState, next_turn, occurrences
from queuectl.domain.snapshot import Admitted, PastUse, Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse
from queuectl.state.durations import LearnedDurations
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.holding_gangs import IdleSince, never_idle
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import BudgetSums, MigrationBudget
from queuectl.state.usage import OtherPodUsage, SentPins


class PastUseSource(Protocol):
    """Past use of users and queues."""

    def past_use(self, now: float) -> PastUse:
        """As of ``now``, in unix seconds."""

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Apply committed changes."""


@dataclass(frozen=True, slots=True)
class StoredUse:
    """Past use as it was sampled last: of a process that does not measure it."""

    used: Collection[Used] = ()
    config: QueueConfig = QueueConfig()

    def past_use(self, now: float) -> PastUse:
        """The same at each time."""
        del now
        return past_use(self.used, self.config)

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Nothing: the leader measures it."""


class PlanningState:
    """The state from which one process makes snapshots.

    Attributes:
        ledger: all workloads that are not Finished.
        usage: the use of nodes and devices by pods that fill no slot.
        builder: of its snapshots.
        config: the configuration in use now, with the overrides in force.
        budgets: what budgets have spent.
        moves: the cost of migrations in the last day.
        past_use: of users and queues.
        reserved: the placements of Reservations.
        pins: those that were sent to pods of gangs.
    """

    def __init__(
        self,
        mirror: Mirror,
        *,
        past_use: PastUseSource | None = None,
        durations: LearnedDurations | None = None,
        uses: Callable[[], Mapping[str, GangUse]] = dict,
        idle_since: IdleSince = never_idle,
        quota_free: bool = False,
    ) -> None:
        """An empty ledger and no configuration.

        Args:
            mirror: the copy of the cluster.
            past_use: None = none is known yet.
            durations: of gangs; None in a process that learns none.
            uses: the last measured GPU utilization of gangs, by uid.
            idle_since: finds gangs that can be evicted as idle.
            quota_free: see :class:`~queuectl.state.freeze.SnapshotBuilder`.
        """
        self._mirror = mirror
        self._durations = durations
        self._uses = uses
        self._idle_since = idle_since
        self._quota_free = quota_free
        self._stated = self.config = QueueConfig()
        self._in_force_at = -inf  # when the configuration in use was derived
        self._turns_at: float | None = None  # when an override or a Reservation begins or ends next
        self.pins = SentPins()
        self.budgets = BudgetSums()
        self.moves = MigrationBudget()
        self.past_use: PastUseSource = past_use if past_use is not None else StoredUse()
        self.reserved: tuple[ReservationState, ...] = ()
        self._begin_with(())
        self._counted = False  # all pods, with these workloads

    def _begin_with(self, entries: Iterable[Entry]) -> None:
        self.ledger = Ledger(entries)
        self.usage = OtherPodUsage(self._mirror, self.ledger, self.pins)
        self.builder = SnapshotBuilder(
            self._mirror,
            self.ledger,
            self.usage,
            self._uses,
            self._idle_since,
            self._durations,
            quota_free=self._quota_free,
        )

    # The configuration.

    def configure(self, stated: QueueConfig, now: float) -> None:
        """Continue with a configuration, as its documents state it. ``now``: unix seconds."""
        self._stated = stated
        self._mirror.declare(stated.rules.admission_plugins)
        self._work_in_overrides(now)

    def renumber(self, revision: int, now: float) -> None:
        """Continue with the configuration in use, where that of a later revision cannot be read."""
        self.configure(replace(self._stated, revision=revision), now)

    def turns(self, now: float) -> bool:
        """Whether an override or a Reservation has begun or ended by ``now``, so that plans can differ.

        A clock that was set back also counts: a standby that becomes the leader takes the time of the database.
        """
        begun = self._turns_at is not None and now >= self._turns_at
        if not begun and now >= self._in_force_at:
            return False
        self._work_in_overrides(now)
        return True

    def _work_in_overrides(self, now: float) -> None:
        self.config, self._in_force_at = in_force(self._stated, now), now
        reservations, notice = self.config.reservations.values(), self.config.rules.eviction_grace
        turns = (next_boundary(self._stated, now), next_turn(reservations, notice, now))
        self._turns_at = min((at for at in turns if at is not None), default=None)

    # The ledger.

    def load(self, entries: Iterable[Entry]) -> None:
        """Begin again with these workloads, which are all of them: sums of before can be wrong."""
        known = tuple(entries)
        self._mirror.recognize(known, read=True, all_of_them=True)
        self._begin_with(known)
        self._count_all()

    def replace(self, entries: Collection[Entry], *, read: bool = False) -> None:
        """Continue with these workloads, which are all of them, from what was computed for equal ones.

        ``read``: recognize all of them as workloads that another process started, not only those that differ.
        """
        if not self._counted:
            self.load(entries)
            return
        get = self.ledger.get
        now = [old if (old := get(entry.uid)) and old == entry else entry for entry in entries]
        uids = {entry.uid for entry in now}
        gone = [entry for entry in self.ledger if entry.uid not in uids]
        changed = [entry for entry in now if get(entry.uid) is not entry]
        for entry in gone:
            self.builder.forget(entry.uid)
        self._mirror.recognize(now if read else changed, read=True)
        self._mirror.recognize(now, all_of_them=True)
        self.ledger.replace(now)
        self.usage.follow((*changed, *gone), self._moved())

    def count_moved(self) -> None:
        """Count the pods again that changed since the last count, for a process that observes no workloads."""
        if self._counted:
            self.usage.follow((), self._moved())

    def _count_all(self) -> None:
        self._mirror.moved_pods.clear()
        self.usage.refresh_all()
        self._counted = True

    def _moved(self) -> set[str]:
        """The pods that changed; the mark is cleared."""
        moved, self._mirror.moved_pods = self._mirror.moved_pods, set()
        return moved

    def take_in(self, changes: Sequence[EntryChange]) -> None:
        """Apply changes to the state from which plans are made."""
        self.ledger.apply(changes)
        self._mirror.recognize(change.after for change in changes)
        self.usage.refresh_owned(change.after for change in changes)
        for change in changes:
            if change.after.state is State.FINISHED:
                self.builder.forget(change.after.uid)

    def follow(self, changes: Sequence[EntryChange]) -> None:
        """Apply changes to the sums that count committed changes only."""
        self.moves.note(changes)
        self.past_use.note(changes)
        self.budgets.note(changes)

    # Results.

    def running(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Admitted | None:
        """One gang for a snapshot, without its idle time; None if it holds nothing."""
        return self.builder.running(entry, job, config, now)

    def snapshot(self, now: float, limits: SolverLimits, *, seek_room: bool = True) -> Snapshot:
        """The snapshot for a plan at ``now`` (unix seconds). ``seek_room``: whether the plan can move gangs."""
        frozen = self.builder.freeze(self.config, now, limits)
        waiting = self.ledger.entries(State.PENDING)
        return replace(
            self.budgets.applied(frozen, (e.uid for e in waiting if e.reason.never_fits)),
            moved_work=self.moves.by_queue(now),
            past_use=self.past_use.past_use(now),
            seek_room=seek_room,
            reservations=occurrences(self.config.reservations.values(), self.reserved, now),
        )

    def unmanaged(self) -> tuple[UnmanagedPod, ...]:
        """Pods of no job in a queue that hold GPUs, by namespace and name."""
        return self.usage.unmanaged(self.config)
