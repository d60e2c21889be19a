"""Gangs on nodes and devices whose hardware fails: which to requeue, by the policy of their ClusterQueue."""

from __future__ import annotations

from collections.abc import Container

from queuectl.domain.events import Evict
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.tainted_devices import TaintedDevices
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


def requeued(
    mirror: Mirror, ledger: Ledger, config: QueueConfig, now: float, busy: Container[str]
) -> list[EntryChange]:
    """The evictions of running gangs on unhealthy nodes and on devices with taints, where their ClusterQueue drains such nodes.

    Args:
        mirror: what the watch shows.
        ledger: the workloads.
        config: in use.
        now: unix seconds.
        busy: uids of gangs that change for other reasons.
    """
    tainted = TaintedDevices(mirror, config.rules.node_health)
    if not mirror.unhealthy and not tainted.nodes:
        return []
    changes = []
    for entry in ledger.entries(State.RUNNING):
        job, queue = mirror.jobs.get(entry.uid), config.cluster_queues.get(entry.cluster_queue)
        if entry.uid in busy or queue is None or queue.unhealthy_nodes is UnhealthyNodes.STAY:
            continue
        if job is None or job.outcome is not None or job.deleting:
            continue
        evidence = tainted.of(job) | {
            name: mirror.unhealthy[name] for name in _unhealthy(entry, mirror)
        }
        if not evidence:
            continue
        nodes = sorted(evidence)
        listed = "; ".join(f"{name}: {evidence[name]}" for name in nodes)
        reason = Reason(
            Code.NODE_UNHEALTHY, f"requeued from unhealthy nodes: {listed}", {"nodes": nodes}
        )
        change = handle(entry, Evict(reason), now, config.rules)
        if change is not None:
            changes.append(change)
    return changes


def _unhealthy(entry: Entry, mirror: Mirror) -> list[str]:
    """The unhealthy nodes of a gang's placement."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    names = {name for podset in placed for name, _ in podset.nodes}
    return sorted(names & mirror.unhealthy.keys())
