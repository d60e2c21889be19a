"""The state of a standby: a copy of the ledger, which gives with its watch the snapshot that a leader would plan on.

Each update reads only the changes of the ledger since the last one. An entry without a change stays the same object, and so do the
objects that are derived from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queuectl.control.ports import Clock, Store
from queuectl.domain.ledger import Loaded
from queuectl.domain.overrides import in_force, next_boundary
from queuectl.domain.pastuse import past_use
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reservations import occurrences
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.unmanaged import UnmanagedPod
from queuectl.objects.configuration.queue_config import build
from queuectl.state.budgets import BudgetSums
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.migration_budget import MigrationBudget
from queuectl.state.mirror import Mirror
from queuectl.state.usage import Usage

BUDGETS_SECONDS: Final = 30.0
"""The time for which a sum of the usage ledger is valid."""


class Standby:
    """The state of one process while it is a standby.

    Attributes:
        ledger: the copy, as of the last update.
    """

    def __init__(self, store: Store, mirror: Mirror, limits: SolverLimits, clock: Clock) -> None:
        """``limits``: of plans on its snapshots."""
        self._store = store
        self._limits = limits
        self._clock = clock
        self._mirror = mirror
        self.ledger = Ledger()
        self._usage = Usage(mirror, self.ledger)
        self._snapshot_builder = SnapshotBuilder(mirror, self.ledger, self._usage)
        self._budgets = BudgetSums()
        self._budgets_due = 0.0
        self._loaded: Loaded | None = None
        self._stated = self._config = QueueConfig()
        self._turns_at: float | None = None  # when an override begins or ends next

    async def snapshot(self) -> Snapshot:
        """The snapshot of a leader that begins now.

        Raises:
            BadInput: the configuration is invalid after a manual change in the database.
            StoreUnavailable: no response from the database.
        """
        before = self._loaded
        loaded = await (self._store.load() if before is None else self._store.follow(before))
        now = self._clock()
        if before is None or loaded.documents is not before.documents:
            self._stated = build(loaded.documents, loaded.revision)
            self._turns_at = now
        if self._turns_at is not None and now >= self._turns_at:
            self._config = in_force(self._stated, now)
            self._turns_at = next_boundary(self._stated, now)
        self._adopt(loaded)
        await self._read_budgets(now)
        return replace(
            self._budgets.applied(self._snapshot_builder.freeze(self._config, now, self._limits)),
            moved_work=MigrationBudget(loaded.spent).by_queue(now),
            past_use=past_use(loaded.used, self._config),
            reservations=occurrences(self._config.reservations.values(), loaded.reserved, now),
        )

    def unmanaged(self) -> tuple[UnmanagedPod, ...]:
        """Unmanaged pods that hold GPUs, by namespace and name, as of the last update."""
        return self._usage.unmanaged(self._config)

    async def _read_budgets(self, now: float) -> None:
        """Read what budgets have spent. The leader writes it each minute."""
        known = self._budgets.knows(self._config) and now < self._budgets_due
        if self._config.budgets and not known:
            spent = await self._store.usage.spent(self._config.budgets.values(), now)
            self._budgets.learn(self._config.budgets, spent)
            self._budgets_due = now + BUDGETS_SECONDS

    def _adopt(self, loaded: Loaded) -> None:
        gone = {entry.uid for entry in self.ledger} - {entry.uid for entry in loaded.entries}
        for uid in gone:
            self._snapshot_builder.forget(uid)
        self._mirror.recognize(loaded.entries, read=self._loaded is None, all_of_them=True)
        self.ledger.replace(loaded.entries)
        self._usage.refresh_all()
        self._loaded = loaded
