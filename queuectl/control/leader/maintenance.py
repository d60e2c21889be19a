"""The tasks of a leader for which no admission waits, and which no plan waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from queuectl.control.leader.accounting import Accountant, Follower
from queuectl.control.leader.budgets import show_budgets
from queuectl.control.leader.default_queues import keep_labels
from queuectl.control.leader.efficiency import show_efficiency
from queuectl.control.leader.force_delete import ForceDeletion
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.pruning import prune
from queuectl.control.leader.supervised import Job, supervised
from queuectl.control.ports import Clock, Cluster, Store
from queuectl.control.settings import Settings
from queuectl.domain.accounting import Free
from queuectl.domain.containment import Containment
from queuectl.domain.unmanaged import summed
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import Metrics


@dataclass(frozen=True)
class Maintenance:
    """Of one leader."""

    store: Store
    cluster: Cluster
    mirror: Mirror
    leader_state: LeaderState
    metrics: Metrics
    settings: Settings
    clock: Clock
    cache: PlannerCache

    def start(
        self,
        group: asyncio.TaskGroup,
        epoch: int,
        follower: Follower,
        containment: Containment,
    ) -> None:
        """Start the tasks in a group. ``follower``: of the usage ledger."""
        state, seconds = self.leader_state, self.settings.account_seconds
        accountant = Accountant(
            self.store.usage,
            state.facts(),
            self.clock,
            epoch,
            self.cache,
            self._show_gpus,
            follower,
        )
        tasks: dict[str, Job] = {
            "prune": lambda: prune(self.store, lambda: state.config.rules, self.clock, epoch),
            "account": lambda: accountant.run(seconds),
            "efficiency": lambda: show_efficiency(
                state, self.cache, self.metrics.fleet.parts, seconds
            ),
            "budgets": lambda: show_budgets(state, self.metrics.budgets.show, seconds),
            "defaults": lambda: keep_labels(self.cluster, self.mirror, lambda: state.config),
        }
        dead_seconds = self.settings.force_delete_seconds
        if dead_seconds is not None:
            force = ForceDeletion(self.cluster, self.mirror, lambda: state.ledger, dead_seconds)
            tasks["force-delete"] = force.run
        for name, job in tasks.items():
            group.create_task(supervised(name, job, containment), name=name)

    def _show_gpus(self, free: Mapping[str, Free]) -> None:
        self.metrics.fleet.free(free)
        held = summed(self.leader_state.unmanaged())
        self.metrics.fleet.unmanaged({one.namespace: one.gpus for one in held})
