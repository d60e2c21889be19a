"""The state of a leader that it reads from the database: ledger, configuration, past use, and what Budgets have spent."""

from __future__ import annotations

import asyncio

import structlog

from queuectl.control.leader.accounting import Follower
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.ledger_writer import LedgerWriter
from queuectl.control.ports import Clock
from queuectl.db.ports import LeaderStore
from queuectl.domain.budgets import SpentUnits
from queuectl.domain.errors import StoreUnavailable
from queuectl.telemetry.metrics import MetricsRecorder

log = structlog.get_logger()


class StoredState:
    """Reads the state of a leader from the database."""

    def __init__(
        self, store: LeaderStore, leader_state: LeaderState, metrics: MetricsRecorder, clock: Clock
    ) -> None:
        self._store = store
        self._leader_state = leader_state
        self._metrics = metrics
        self._clock = clock
        # A read must not replace the result of a later read: a change is announced only once.
        self._reading = asyncio.Lock()
        self._folding = asyncio.Lock()  # held while hours are written or summed up

    async def reload(self, writer: LedgerWriter) -> None:
        """Read everything, and wait for the database as long as necessary."""
        async with self._reading:
            await writer.reload()
            await writer.persistently(self._read_budgets)

    async def know_budgets(self, writer: LedgerWriter) -> None:
        """Read what Budgets have spent if they are new. No plan is made before. It waits for the database as long as necessary."""
        state = self._leader_state
        while not state.planning.budgets.knows(state.config):
            await writer.persistently(self._read_budgets)

    async def read_configuration(self) -> None:
        """Read the configuration that the API wrote, and past use. Can raise StoreUnavailable."""
        state = self._leader_state
        async with self._reading:
            changes = await self._store.config_changes(state.config.revision, state.documents)
            # Read after them, it has the past use that these documents state.
            state.past_use_sums.learn(await self._store.past_use())
            state.configure(changes)
        self._show_use(self._clock())

    def follower(self) -> Follower:
        """Counts in the sums of Budgets what is written to the usage ledger."""
        return Follower(self._folding, self._leader_state.planning.budgets.add, self._read_budgets)

    async def keep_past_use(self, now: float, epoch: int) -> None:
        """Write past use."""
        sums = self._leader_state.past_use_sums
        used = sums.current(now)
        try:
            await self._store.keep_use(used, sums.forget(now), epoch=epoch)
        except StoreUnavailable as error:
            log.info("past_use_not_stored", error=str(error))
        else:
            sums.written(used)
        self._show_use(now)

    async def _read_budgets(self) -> None:
        """Read what Budgets have spent."""
        async with self._folding:
            budgets = self._leader_state.config.budgets
            spent = SpentUnits()
            if budgets:
                spent = await self._store.usage.spent(budgets.values(), self._clock())
            self._leader_state.planning.budgets.learn(budgets, spent)

    def _show_use(self, now: float) -> None:
        past = self._leader_state.past_use_sums.past_use(now)
        self._metrics.used_lately(past.local_queues, self._leader_state.config.local_queues)
