"""Changes MIG configurations of nodes for pending gangs, where flavors permit it.

A change begins after a plan, in the same cycle. From then on the Node holds its state, and each step is one write to the Node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from queuectl.domain.errors import ClusterError, WriteConflict
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import State
from queuectl.domain.mig import CONFIG, STATE, MigMode, MigPhase, MigReconfiguration, MigResult
from queuectl.domain.plan import Move
from queuectl.domain.records import NodeRecord, Upserted
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import format_time
from queuectl.mig.changes import (
    ChangeKey,
    GpuHolders,
    GpuUse,
    MigChange,
    MigGroup,
    MigStep,
    active_changes,
    changeable,
    gpu_holders,
    step,
    waited,
)
from queuectl.mig.configurations import applied, choices, geometry_of
from queuectl.mig.fixes import MigScope
from queuectl.mig.search import Emptied, MigFound, MigSearch
from queuectl.mig.settings import MigSettings
from queuectl.objects.kubernetes.mig_reconfiguration import mig_patch
from queuectl.state.mirror import Mirror
from queuectl.state.planning_state import PlanningState
from queuectl.telemetry.metrics import MigMetrics

log = structlog.get_logger()

POLL_SECONDS: Final = 0.5
EVENT: Final = "MIGReconfiguration"
_TEXTS: Final = {
    MigResult.SUCCEEDED: "the MIG configuration of node {node} is {target}",
    MigResult.ROLLED_BACK: "the MIG manager did not apply {target} on node {node}, which has {source} again",
    MigResult.NOT_EMPTIED: "pods keep GPUs of node {node}, so its MIG configuration is not changed to {target}",
    MigResult.WITHDRAWN: "the MIG configuration of node {node} is not changed: the change is no longer needed",
    MigResult.TAKEN_OVER: "another user changed node {node} during the change of its MIG configuration to {target}",
}


class NodeWriter(Protocol):
    """The writes of a change: part of the interface of the cluster."""

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> int:
        """Merge-patch one Node; returns the new resourceVersion."""

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        """Write one Event on the job. ``kind`` is Normal or Warning."""


class MigReconfigurer:
    """Reconfigures MIG for the loop and the plans of one leadership.

    A plan asks :meth:`question` before it, and commits :meth:`moves` with it. Then it calls :meth:`begin`.
    """

    def __init__(
        self,
        cluster: NodeWriter,
        mirror: Mirror,
        planning: PlanningState,
        metrics: MigMetrics,
        settings: MigSettings,
        clock: Callable[[], float],
        *,
        search_seconds: float,
        wake: Callable[[], None],
    ) -> None:
        """``search_seconds``: between two searches for nodes to change. ``wake``: begins a cycle."""
        self._cluster = cluster
        self._mirror = mirror
        self._planning = planning
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._search_seconds = search_seconds
        self._wake = wake
        self._search_at = 0.0
        self._stuck: set[ChangeKey] = set()  # changes whose gangs find no other place

    # ---- in a cycle

    def due(self, now: float) -> bool:
        """Whether the next plan can begin a change."""
        return self._scope(now) is not None

    def _scope(self, now: float) -> MigScope | None:
        flavors = self._planning.config.flavors.values()
        if now < self._search_at or all(f.mig_reconfiguration is MigMode.PLAN for f in flavors):
            return None
        nodes, rule = self._mirror.nodes, self._settings
        active = active_changes(nodes.reconfigured)
        if not all(change.abandoned(now, rule.timeout_seconds) for change in active):
            return None  # one gang at a time
        wait, backoff = rule.wait_seconds, rule.backoff_seconds
        gangs = waited(self._planning.ledger, nodes.reconfigured, now, wait, backoff)
        able = frozenset(changeable(nodes.values(), now, backoff)) if gangs else frozenset()
        return MigScope(gangs, able, rule.max_nodes) if able else None

    def question(self, snapshot: Snapshot) -> MigSearch:
        """What to search alongside the plan for a snapshot."""
        now = self._clock()
        scope = self._scope(now)
        if scope is not None:
            self._search_at = now + self._search_seconds
        return MigSearch(tuple(self._emptied(snapshot)), scope)

    def _emptied(self, snapshot: Snapshot) -> Iterator[Emptied]:
        """Changes that wait for gangs which were not asked to leave yet."""
        known = snapshot.fleet.by_name
        for change in active_changes(self._mirror.nodes.reconfigured):
            names = tuple(r.node.name for r in change.in_phase(MigPhase.EMPTYING))
            seen = all(
                name in known and known[name].reconfigured_for == change.gang for name in names
            )
            asked = names and seen and change.complete and change.key not in self._stuck
            if asked and self._wanted(change) and self._holders(names).gangs:
                yield Emptied(change.key, change.gang, names)

    def moves(self, mig: MigFound) -> Iterator[tuple[Move, ...]]:
        """The migrations of each change, to commit with the plan. A change whose gangs find no place is abandoned."""
        for emptied, moves in mig.moves:
            staying = self._holders(emptied.nodes).gangs
            if moves is not None and staying <= {move.uid for move in moves}:
                yield moves
            else:
                self._stuck.add(emptied.change)

    async def begin(self, mig: MigFound, planned: Snapshot) -> None:
        """Cordon the nodes for which a change was found, unless anything has changed since the snapshot ``planned``."""
        if mig.begins is None:
            return
        gang, configs = mig.begins
        entry = self._planning.ledger.get(gang)
        records = [self._mirror.nodes.get(name) for name in configs]
        nodes = [record for record in records if record is not None]
        known = planned.fleet.by_name
        same = all(known.get(r.node.name) == r.node for r in nodes) and len(nodes) == len(configs)
        if not same or entry is None or entry.state is not State.PENDING:
            return
        now = float(int(self._clock()))
        for record in nodes:
            change = self._first(record, configs[record.node.name], gang, len(nodes), now)
            if change is None or not await self._begin(record, change, entry.ref):
                return  # the nodes that have begun are given back, because the change is not complete

    def _first(
        self, record: NodeRecord, config: str, gang: str, nodes: int, now: float
    ) -> MigReconfiguration | None:
        pools = self._planning.config.mig_pools
        after = next((n for c, n in choices(record.node, pools) if c.name == config), None)
        if after is None:
            return None
        source, target = geometry_of(record.node), geometry_of(after)
        last = record.node.mig
        failures = last.failures if last is not None else 0
        return MigReconfiguration(
            source, target, gang, nodes, now, MigPhase.EMPTYING, now, failures
        )

    async def _begin(self, record: NodeRecord, change: MigReconfiguration, workload: str) -> bool:
        name, target = record.node.name, change.target.config
        if not await self._patched(record, change, cordon=True):
            return False
        log.info(
            "mig_reconfiguration_begun",
            node=name,
            source=change.source.config,
            target=target,
            workload=workload,
        )
        text = f"the MIG configuration of node {name} is being changed to {target} for this gang"
        await self._tell(change, "Normal", text)
        return True

    # ---- alongside the cycles

    async def run(self) -> None:
        """Take the next step of each change until canceled."""
        try:
            while True:
                await self.follow()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._metrics.forget()

    async def follow(self) -> None:
        """Take the next step of each change that has one now."""
        changes = active_changes(self._mirror.nodes.reconfigured)
        self._stuck &= {change.key for change in changes}
        active = [r.node.mig.phase for c in changes for r in c.active if r.node.mig is not None]
        self._metrics.active(active)
        for change in changes:
            group = self._group(change)
            for record in change.active:
                following = step(record, group, self._clock(), self._settings.timeout_seconds)
                if following is not None:
                    await self._take(record, following)

    def _group(self, change: MigChange) -> MigGroup:
        emptying = change.in_phase(MigPhase.EMPTYING)
        changed = change.in_phase(MigPhase.APPLYING)
        use = GpuUse.FREE
        if emptying and self._holders(tuple(r.node.name for r in emptying)).pods:
            use = GpuUse.STAYS if change.key in self._stuck else GpuUse.USED
        return MigGroup(
            needed=self._wanted(change),
            complete=change.complete,
            use=use,
            applied=not emptying and all(map(_applied, changed)),
        )

    def _wanted(self, change: MigChange) -> bool:
        entry = self._planning.ledger.get(change.gang)
        return entry is not None and entry.state is State.PENDING and not change.failed

    def _holders(self, nodes: tuple[str, ...]) -> GpuHolders:
        planning = self._planning
        return gpu_holders(frozenset(nodes), self._mirror, planning.ledger, planning.usage.names)

    async def _take(self, record: NodeRecord, following: MigStep) -> None:
        before = record.node.mig
        cordon = False if following.uncordon and record.cordoned else None
        if before is not None and await self._patched(
            record, following.after, cordon=cordon, config=following.config
        ):
            await self._report(record.node.name, before, following)

    async def _report(self, node: str, before: MigReconfiguration, following: MigStep) -> None:
        source, target = before.source.config, before.target.config
        outcome, after = following.outcome, following.after
        if outcome is not None:
            good = outcome in (MigResult.SUCCEEDED, MigResult.WITHDRAWN)
            failures = after.failures
            log.info(
                "mig_reconfiguration_ended",
                node=node,
                source=source,
                target=target,
                result=outcome,
                failures=failures,
            )
            self._metrics.ended(outcome)
            text = _TEXTS[outcome].format(node=node, source=source, target=target)
            if failures > 1 and outcome is not MigResult.WITHDRAWN:
                again = format_time(after.next_at(self._settings.backoff_seconds))
                text += f"; {failures} changes in succession failed, the next one begins after {again} at the earliest"
            await self._tell(before, "Normal" if good else "Warning", text)
        elif before.phase is MigPhase.APPLYING:
            log.warning("mig_rollback_begun", node=node, source=source, target=target)
        else:
            log.info("mig_configuration_set", node=node, source=source, target=target)

    # ---- writes

    async def _patched(
        self,
        record: NodeRecord,
        change: MigReconfiguration,
        *,
        cordon: bool | None = None,
        config: str | None = None,
    ) -> bool:
        """Write to the Node, and show the cordon to the next plan. If the Node has changed, the next poll decides again."""
        name = record.node.name
        patch = mig_patch(record, change, cordon=cordon, config=config)
        try:
            version = await self._cluster.patch_node(name, patch)
        except WriteConflict:
            return False
        except ClusterError as error:
            log.warning("mig_reconfiguration_not_written", node=name, error=str(error))
            return False
        closed = record.cordoned if cordon is None else cordon
        labels = dict(record.node.labels)
        if config is not None:
            labels[CONFIG] = config
            labels.pop(STATE, None)
        node = replace(
            record.node,
            labels=labels,
            mig=change,
            unschedulable=closed or bool(record.node.unhealthy),
        )
        self._mirror.apply([Upserted(replace(record, node=node, version=version, cordoned=closed))])
        self._wake()
        return True

    async def _tell(self, change: MigReconfiguration, kind: str, text: str) -> None:
        job = self._mirror.jobs.get(change.gang)
        if job is not None:
            try:
                await self._cluster.create_event(job, kind, EVENT, text)
            except ClusterError as error:
                log.info(
                    "event_not_written", workload=f"{job.namespace}/{job.name}", error=str(error)
                )


def _applied(record: NodeRecord) -> bool:
    mig = record.node.mig
    return mig is not None and applied(record.node, mig.target)
