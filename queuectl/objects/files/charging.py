"""Which queue a running gang of a file is charged to: the ClusterQueue its admission names, whatever its LocalQueue says now.

A LocalQueue may be missing from the input, may have been pointed elsewhere since, or the Workload may name none. The
planner knows ClusterQueues by their LocalQueues only, so one is made up where the namespace has none of that ClusterQueue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.objects.files.gangs import Gang


def charge(gangs: Iterable[Gang], queues: QueueConfig) -> tuple[list[Gang], QueueConfig]:
    """The gangs, each running one in a LocalQueue of the ClusterQueue that its admission names, and the queues with those."""
    charged = []
    made: dict[tuple[str, str], LocalQueue] = {}
    for gang in gangs:
        target = gang.charged_to if gang.running else None
        if target is None or target not in queues.cluster_queues or _leads(gang, target, queues):
            charged.append(gang)
            continue
        local = _local(gang.namespace, target, queues)
        made[local.namespace, local.name] = local
        charged.append(replace(gang, queue=local.name))
    if not made:
        return charged, queues
    return charged, replace(queues, local_queues={**queues.local_queues, **made})


def _leads(gang: Gang, target: str, queues: QueueConfig) -> bool:
    queue = queues.cluster_queue_of(gang.namespace, gang.queue)
    return queue is not None and queue.name == target


def _local(namespace: str, target: str, queues: QueueConfig) -> LocalQueue:
    of_target = (
        local
        for key, local in sorted(queues.local_queues.items())
        if key[0] == namespace and local.cluster_queue == target
    )
    made_up = LocalQueue(namespace, f"clusterqueue/{target}", target)  # no object can be named so
    return next(of_target, made_up)
