"""Claims of a job, as far as the policy of its ClusterQueue accepts them: priority, checkpoints, opt-outs of idle reclaim."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.queues import ClusterQueue, IdleReclaim, QueueConfig
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


def checkpoint_of(
    mirror: Mirror, entry: Entry, job: JobRecord, config: QueueConfig
) -> float | None:
    """The time of a gang's last declared checkpoint (unix seconds); None without one, or if its ClusterQueue does not trust them.

    A gang that would not start again has saved nothing since its start.
    """
    if job.final:
        return entry.started_at
    queue = config.cluster_queues.get(entry.cluster_queue)
    if queue is not None and not queue.trusts_checkpoints:
        return None
    return mirror.checkpoint_of(job, entry.attempt)


def priority_of(job: JobRecord, config: QueueConfig, pod_classes: Mapping[str, int]) -> int:
    """The priority of its WorkloadPriorityClass label, otherwise of the class ``default``, otherwise of the pods' PriorityClass, otherwise 0.

    It is at most the ``maxPriority`` of its ClusterQueue.
    """
    named = config.priority_class_of(job.priority_class)
    if named is not None:
        priority = config.priority_classes.get(named, 0)
    else:
        priority = pod_classes.get(job.pod_priority_class or "", 0)
    queue = config.cluster_queue_of(job.namespace, job.queue)
    return priority if queue is None else queue.capped(priority)


def priority_now(
    ledger: Ledger,
    entry: Entry,
    job: JobRecord,
    config: QueueConfig,
    pod_classes: Mapping[str, int],
) -> int:
    """The priority of its elastic gang, or that a command has set, otherwise :func:`priority_of`."""
    gang = ledger.elastic_gang(job)
    if gang is not None:
        return gang.priority
    if entry.priority_set is not None:
        return entry.priority
    return priority_of(job, config, pod_classes)


MOST_FAILED_STARTS: Final = 1
"""Of a gang for which others can be evicted. If it can never start, each start that evicts a gang loses work for nothing."""


def preempts(entry: Entry, job: JobRecord, config: QueueConfig, never: Collection[str]) -> bool:
    """Whether other gangs can be evicted for it.

    Not if a PriorityClass of pods that never preempts gives its priority, nor after two failed starts in a row.
    """
    if entry.failures > MOST_FAILED_STARTS:
        return False
    named = config.priority_class_of(job.priority_class)
    return named is not None or (job.pod_priority_class or "") not in never


def idle_rule(job: JobRecord | None, queue: ClusterQueue, *, borrowing: bool) -> IdleReclaim:
    """The rule by which a gang is idle. A job can ask for a longer warm-up, up to ``maxWarmupSeconds``.

    ``borrowing``: its ClusterQueue uses more than its nominal quota.
    """
    rule = queue.idle_reclaim
    asked = job.warmup if job is not None else None
    if asked is None or not queue.preemption_opt_out.counts(borrowing=borrowing):
        return rule
    return replace(rule, warmup=max(rule.warmup, min(asked, rule.max_warmup)))


def exempt_from_idle_reclaim(job: JobRecord, queue: ClusterQueue, *, borrowing: bool) -> bool:
    """Whether a job opts out of idle reclaim and its ClusterQueue accepts that; ``borrowing`` as in :func:`idle_rule`."""
    if not job.preemptible and queue.preemption_opt_out.counts(borrowing=False):
        return True  # no rule evicts it as idle
    return not job.idle_reclaim and queue.preemption_opt_out.counts(borrowing=borrowing)
