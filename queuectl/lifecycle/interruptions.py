"""Gangs on nodes that a cloud is about to take away: evicted with notice, so that they save their work and start elsewhere."""

from __future__ import annotations

from collections.abc import Container

from queuectl.domain.events import Evict
from queuectl.domain.fleet import Effect, Fleet
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.lifecycle.machine import handle
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


class Interruptions:
    """Finds them again only if a node or the list of taints changes."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._seen: tuple[Fleet, tuple[str, ...]] | None = None
        self._nodes: dict[str, str] = {}

    def evictions(
        self, ledger: Ledger, config: QueueConfig, now: float, busy: Container[str]
    ) -> list[EntryChange]:
        """The evictions of running gangs with pods on such nodes. ``busy``: uids of gangs that change for other reasons."""
        nodes = self._interrupted(config.rules.interruption_taints)
        if not nodes:
            return []
        changes = []
        for entry in ledger.entries(State.STARTING, State.RUNNING):
            job = self._mirror.jobs.get(entry.uid)
            if entry.uid in busy or job is None or job.outcome is not None or job.deleting:
                continue
            podsets = entry.placement.podsets if entry.placement is not None else ()
            found = sorted({n for podset in podsets for n, _ in podset.nodes} & nodes.keys())
            if not found:
                continue
            listed = "; ".join(f"{name}: {nodes[name]}" for name in found)
            text = f"evicted before its nodes are taken away: {listed}"
            reason = Reason(Code.NODE_INTERRUPTED, text, {"nodes": found})
            change = handle(entry, Evict(reason, tuple(found)), now, config.rules)
            if change is not None:
                changes.append(change)
        return changes

    def _interrupted(self, taints: tuple[str, ...]) -> dict[str, str]:
        """The nodes that take no new pods because of such a taint, with the taint."""
        fleet = self._mirror.fleet
        if self._seen is None or self._seen[0] is not fleet or self._seen[1] != taints:
            self._seen = fleet, taints
            self._nodes = {
                node.name: f"taint {taint.key}"
                for node in fleet.nodes
                for taint in node.taints
                if taint.key in taints and taint.effect is not Effect.PREFER_NO_SCHEDULE
            }
        return self._nodes
