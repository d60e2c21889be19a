"""Whether a workload can be planned: the reasons of its queues and namespace, which do not depend on capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuectl.domain.checks import inactive
from queuectl.domain.fleet import Fleet
from queuectl.domain.gpus import GpuWeights, why_refused
from queuectl.domain.queues import ClusterQueue, LocalQueue, QueueConfig, StopPolicy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import PodSet, fraction_of, too_many_gpus
from queuectl.objects.keys import MAX_EXECUTION


def inadmissible_reason(
    namespace: str, queue: str, config: QueueConfig, labels: Mapping[str, str]
) -> Reason | None:
    """The reason for which no gang of this LocalQueue can start now, or None.

    Args:
        namespace: of the workload and its LocalQueue.
        queue: name of the LocalQueue.
        config: all queues.
        labels: of the namespace.
    """
    local = config.local_queues.get((namespace, queue))
    target = config.cluster_queues.get(local.cluster_queue) if local is not None else None
    if local is not None and target is not None:
        stopped = _stopped(target, local, StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN)
        if stopped is not None:
            return stopped
    return closed(namespace, queue, config, labels)


def refused_gpus(podsets: Sequence[PodSet], fleet: Fleet, weights: GpuWeights) -> Reason | None:
    """The reason for which no gang can have the GPUs that these podsets request, or None."""
    if (excess := too_many_gpus(podsets, weights)) is not None:
        return Reason(Code.MISCONFIGURED, excess)
    if (asked := fraction_of(podsets)) is not None:
        return Reason(Code.UNSUPPORTED, why_refused(asked, fleet, weights))
    return None


def too_long(
    namespace: str, queue: str, config: QueueConfig, stated: float | None
) -> Reason | None:
    """The reason for which its ClusterQueue refuses the maximum execution time that a job states, or None."""
    target = config.cluster_queue_of(namespace, queue)
    if stated is None or target is None or not target.execution.refuses(stated):
        return None
    text = (
        f"{MAX_EXECUTION}: {stated:.0f} s is more than the {target.execution.most:.0f} s that ClusterQueue "
        f"{target.name} permits"
    )
    return Reason(Code.MISCONFIGURED, text)


def closed(
    namespace: str, queue: str, config: QueueConfig, labels: Mapping[str, str]
) -> Reason | None:
    """The same without stop policies: the reason for which the LocalQueue does not accept the namespace, or None."""
    local = config.local_queues.get((namespace, queue))
    if local is None:
        text = f"LocalQueue {queue} does not exist in namespace {namespace}"
        return Reason(Code.MISCONFIGURED, text)
    target = config.cluster_queues.get(local.cluster_queue)
    if target is None:
        text = (
            f"LocalQueue {queue} points to ClusterQueue {local.cluster_queue}, which does not exist"
        )
        return Reason(Code.MISCONFIGURED, text)
    if target.namespace_selector is None or not target.namespace_selector.matches(labels):
        of_queue = f"spec.namespaceSelector of ClusterQueue {target.name}"
        text = f"{of_queue} does not select namespace {namespace}"
        if target.namespace_selector is None:
            text = f"{of_queue} is not set, so it selects no namespace; {{}} selects all"
        return Reason(Code.MISCONFIGURED, text)
    unanswered = inactive(target.admission_checks, config.checks) if target.admission_checks else {}
    if unanswered:
        listed = "; ".join(f"AdmissionCheck {name} {why}" for name, why in unanswered.items())
        text = f"ClusterQueue {target.name} starts no gang: {listed}"
        details = {"clusterQueue": target.name, "admissionChecks": list(unanswered)}
        return Reason(Code.UNSATISFIED_CHECKS, text, details)
    return None


def drain(namespace: str, queue: str, config: QueueConfig) -> Reason | None:
    """The reason for which running gangs of this LocalQueue are evicted (``HoldAndDrain``), or None."""
    local = config.local_queues.get((namespace, queue))
    target = config.cluster_queues.get(local.cluster_queue) if local is not None else None
    if local is None or target is None:
        return None
    return _stopped(target, local, StopPolicy.HOLD_AND_DRAIN)


def _stopped(target: ClusterQueue, local: LocalQueue, *policies: StopPolicy) -> Reason | None:
    if target.stop_policy in policies:
        return Reason(
            Code.QUEUE_STOPPED,
            f"ClusterQueue {target.name} is stopped (stopPolicy {target.stop_policy})",
        )
    if local.stop_policy in policies:
        return Reason(
            Code.LOCAL_QUEUE_STOPPED,
            f"LocalQueue {local.name} is stopped (stopPolicy {local.stop_policy})",
        )
    return None
