"""The state of a standby: a copy of the ledger, which gives with its watch the snapshot that a leader would plan on.

Each update reads only the changes of the ledger since the last one. An entry without a change stays the same object, and so do the
objects that are derived from it.
"""

from __future__ import annotations

from typing import Final

from queuectl.control.ports import Clock
from queuectl.db.ports import LeaderStore
from queuectl.domain.ledger import Loaded
from queuectl.domain.queries import UnmanagedPod
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.objects.configuration.queue_config import build
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import MigrationBudget
from queuectl.state.planning_state import PlanningState, StoredUse

BUDGETS_SECONDS: Final = 30.0
"""The time for which a sum of the usage ledger is valid."""


class Standby:
    """The state of one process while it is a standby."""

    def __init__(
        self, store: LeaderStore, mirror: Mirror, limits: SolverLimits, clock: Clock
    ) -> None:
        """``limits``: of plans on its snapshots."""
        self._store = store
        self._limits = limits
        self._clock = clock
        self._planning = PlanningState(mirror)
        self._budgets_due = 0.0
        self._loaded: Loaded | None = None

    @property
    def ledger(self) -> Ledger:
        """The copy, as of the last update."""
        return self._planning.ledger

    async def snapshot(self) -> Snapshot:
        """The snapshot of a leader that begins now.

        Raises:
            BadInput: the configuration is invalid after a manual change in the database.
            StoreUnavailable: no response from the database.
        """
        before, planning = self._loaded, self._planning
        loaded = await (self._store.load() if before is None else self._store.follow(before))
        now = self._clock()
        if before is None or loaded.documents is not before.documents:
            planning.configure(build(loaded.documents, loaded.revision), now)
        else:
            planning.turns(now)
        planning.replace(loaded.entries, read=before is None)
        planning.moves = MigrationBudget(loaded.spent)
        planning.past_use = StoredUse(loaded.used, planning.config)
        planning.reserved = loaded.reserved
        self._loaded = loaded
        await self._read_budgets(now)
        return planning.snapshot(now, self._limits)

    def unmanaged(self) -> tuple[UnmanagedPod, ...]:
        """Unmanaged pods that hold GPUs, by namespace and name, as of the last update."""
        return self._planning.unmanaged()

    async def _read_budgets(self, now: float) -> None:
        """Read what budgets have spent. The leader writes it each minute."""
        config, sums = self._planning.config, self._planning.budgets
        known = sums.knows(config) and now < self._budgets_due
        if config.budgets and not known:
            spent = await self._store.usage.spent(config.budgets.values(), now)
            sums.learn(config.budgets, spent)
            self._budgets_due = now + BUDGETS_SECONDS
