"""Gangs on nodes that a cloud is about to take away: evicted with notice, so that they save their work and start elsewhere."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from queuectl.domain.events import Evict
from queuectl.domain.fleet import Effect, Fleet
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NodeRecord
from queuectl.domain.rules import Rules
from queuectl.lifecycle.machine import handle
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.node_health import in_words


class Interruptions:
    """Finds them again only if a node or the rules change."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._seen: tuple[Fleet, int, Rules] | None = None
        self._nodes: dict[str, str] = {}

    def evictions(
        self, ledger: Ledger, config: QueueConfig, now: float, busy: Container[str]
    ) -> list[EntryChange]:
        """The evictions of running gangs with pods on such nodes. ``busy``: uids of gangs that change for other reasons."""
        nodes = self._interrupted(config.rules)
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
            change = handle(entry, Evict(reason), now, config.rules)
            if change is not None:
                changes.append(change)
        return changes

    def _interrupted(self, rules: Rules) -> dict[str, str]:
        """The nodes of which a taint or a condition announces the end, with it.

        Such a taint keeps new pods away. A condition does not, so that the node is taken out of placement here. Gangs that tolerate
        everything do not start there either, while the announcement lasts (:class:`queuectl.state.freeze.SnapshotBuilder`).
        """
        seen, mirror = self._seen, self._mirror
        if (
            seen is None
            or seen[0] is not mirror.fleet
            or seen[1] != mirror.nodes.conditions_seen
            or seen[2] is not rules
        ):
            conditions = dict(_by_conditions(mirror.nodes, rules.interruption_conditions))
            taints = dict(_by_taints(mirror.fleet, rules.interruption_taints))
            mirror.mark_interrupted(conditions, taints)
            self._nodes = {**taints, **conditions}
            self._seen = mirror.fleet, mirror.nodes.conditions_seen, rules
        return self._nodes


def _by_taints(fleet: Fleet, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in fleet.nodes:
        for taint in node.taints:
            if taint.key in keys and taint.effect is not Effect.PREFER_NO_SCHEDULE:
                yield node.name, f"taint {taint.key}"


def _by_conditions(
    nodes: Mapping[str, NodeRecord], announcing: tuple[tuple[str, str], ...]
) -> Iterator[tuple[str, str]]:
    for name, record in nodes.items() if announcing else ():
        for kind, status, reason in record.conditions:
            if (kind, status) in announcing:
                yield name, in_words(kind, status, reason)
