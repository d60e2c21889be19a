"""Gauges of finished jobs that are not deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import Metric

from queuectl.domain.queues import QueueConfig
from queuectl.telemetry.gauges import gauge


def finished(jobs: Mapping[tuple[str, str], int], config: QueueConfig) -> Iterator[Metric]:
    """``jobs``: the number by namespace and LocalQueue. A queue without finished jobs has 0."""
    queues: Counter[tuple[str]] = Counter({(name,): 0 for name in config.cluster_queues})
    locals_: Counter[tuple[str, str]] = Counter(
        {(queue.name, queue.namespace): 0 for queue in config.local_queues.values()}
    )
    for (namespace, name), number in jobs.items():
        locals_[name, namespace] += number
        queue = config.cluster_queue_of(namespace, name)
        if queue is not None:
            queues[(queue.name,)] += number
    text = "Finished jobs that are not deleted."
    yield gauge("finished_workloads", text, ("cluster_queue",), queues.items())
    yield gauge("local_queue_finished_workloads", text, ("name", "namespace"), locals_.items())
