"""Charges a running gang of a file to the ClusterQueue of its admission, not to the present one of its LocalQueue.

The LocalQueue can be missing from the input or point to another ClusterQueue now, or the Workload names none. The planner finds
ClusterQueues through LocalQueues, so this module adds a LocalQueue if the namespace has none for the ClusterQueue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.objects.files.gangs import Gang


def charge(gangs: Iterable[Gang], queues: QueueConfig) -> tuple[list[Gang], QueueConfig]:
    """The gangs, each running one in a LocalQueue of the ClusterQueue of its admission, and the queues with added ones."""
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
    made_up = LocalQueue(
        namespace, f"clusterqueue/{target}", target
    )  # not a valid name of an object
    return next(of_target, made_up)
