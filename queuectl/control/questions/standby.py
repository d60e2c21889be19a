"""The state of a standby: a copy of the ledger, which gives with its watch the snapshot that a leader would plan on.

Each update reads only the changes of the ledger since the last one. An entry without a change stays the same object, and so do the
objects that are derived from it. If the process becomes the leader, the leader continues with this state.
"""

from __future__ import annotations

from typing import Final

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock
from queuectl.db.ports import LeaderStore
from queuectl.domain.ledger import Loaded
from queuectl.domain.queries import UnmanagedPod
from queuectl.domain.snapshot import Snapshot
from queuectl.state.ledger import Ledger

BUDGETS_SECONDS: Final = 30.0
"""The time for which a sum of the usage ledger is valid."""


class Standby:
    """The state of one process while it is a standby."""

    def __init__(self, store: LeaderStore, state: LeaderState, clock: Clock) -> None:
        """``state``: empty."""
        self._store = store
        self._state = state
        self._clock = clock
        self._budgets_due = 0.0
        self._loaded: Loaded | None = None
        self._handed_over = False

    @property
    def ledger(self) -> Ledger:
        """The copy, as of the last update."""
        return self._state.ledger

    async def snapshot(self) -> Snapshot | None:
        """The snapshot of a leader that begins now; None after :meth:`hand_over`, and while the configuration cannot be read.

        Raises:
            StoreUnavailable: no response from the database.
        """
        state = self._state
        if self._ended():
            return None
        state.clear_marks()
        before = self._loaded if state.followed else None
        loaded = await (self._store.load() if before is None else self._store.follow(before))
        if self._ended():
            return None
        state.follow_database(loaded)
        self._loaded = loaded
        await self._read_budgets()
        if self._ended() or not state.readable:
            return None
        return state.snapshot(seek_room=True)

    def _ended(self) -> bool:
        """Whether a leader changes the state now. That can begin during each await."""
        return self._handed_over

    def hand_over(self) -> LeaderState:
        """The state, for the leader that this process becomes. From now on only the leader changes it."""
        self._handed_over = True
        return self._state

    def unmanaged(self) -> tuple[UnmanagedPod, ...]:
        """Unmanaged pods that hold GPUs, by namespace and name, as of the last update."""
        return self._state.unmanaged()

    async def _read_budgets(self) -> None:
        """Read what budgets have spent. The leader writes it each minute."""
        config, sums, now = self._state.config, self._state.planning.budgets, self._clock()
        known = sums.knows(config) and now < self._budgets_due
        if config.budgets and not known:
            spent = await self._store.usage.spent(config.budgets.values(), now)
            if not self._ended():
                sums.learn(config.budgets, spent)
                self._budgets_due = now + BUDGETS_SECONDS
