"""Gangs on nodes and devices whose hardware fails: which to requeue, by the policy of their ClusterQueue or by need."""

from __future__ import annotations

from collections.abc import Container

from queuectl.domain.events import Evict
from queuectl.domain.job_records import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.lifecycle.lost_devices import LostDevices
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.tainted_devices import TaintedDevices
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


def requeued(
    mirror: Mirror, ledger: Ledger, config: QueueConfig, now: float, busy: Container[str]
) -> list[EntryChange]:
    """The evictions of gangs that lose devices, and of running gangs on unhealthy nodes where their ClusterQueue drains these.

    Args:
        mirror: what the watch shows.
        ledger: the workloads.
        config: in use.
        now: unix seconds.
        busy: uids of gangs that change for other reasons.
    """
    tainted, lost = TaintedDevices(mirror, config.rules.node_health), LostDevices(mirror)
    if not mirror.nodes.closed and not lost.nodes:
        return []
    changes = []
    for entry in ledger.entries(State.STARTING, State.RUNNING):
        job, queue = mirror.jobs.get(entry.uid), config.cluster_queues.get(entry.cluster_queue)
        if entry.uid in busy or job is None or job.outcome is not None or job.deleting:
            continue
        event = lost.eviction(entry, job)
        drains = queue is not None and queue.unhealthy_nodes is UnhealthyNodes.DRAIN
        if event is None and drains and entry.state is State.RUNNING:
            event = _drained(entry, job, mirror, tainted)
        change = handle(entry, event, now, config.rules) if event is not None else None
        if change is not None:
            changes.append(change)
    return changes


def _drained(entry: Entry, job: JobRecord, mirror: Mirror, tainted: TaintedDevices) -> Evict | None:
    """The eviction with notice; None if neither its nodes nor its devices fail."""
    evidence = tainted.of(job) | {
        name: mirror.nodes.closed[name] for name in _unhealthy(entry, mirror)
    }
    if not evidence:
        return None
    nodes = sorted(evidence)
    listed = "; ".join(f"{name}: {evidence[name]}" for name in nodes)
    text = f"requeued from unhealthy nodes: {listed}"
    return Evict(Reason(Code.NODE_UNHEALTHY, text, {"nodes": nodes}))


def _unhealthy(entry: Entry, mirror: Mirror) -> list[str]:
    """The unhealthy nodes of a gang's placement."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    names = {name for podset in placed for name, _ in podset.nodes}
    return sorted(names & mirror.nodes.closed.keys())
