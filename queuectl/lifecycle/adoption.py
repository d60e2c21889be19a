"""Running gangs without an entry in the ledger: queuectl was installed after their start, or the database was lost.

The cluster is right about running pods. A complete gang continues to run and is charged for the capacity that it holds, with
the flavors with which Kueue admitted it, if Kueue did. An incomplete gang is stopped and queued: its pods cannot complete it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord, PodRecord, PriorAdmission, PriorPodSet
from queuectl.domain.queues import ClusterQueue, QueueConfig, ResourceGroup
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement
from queuectl.state.readiness import by_podset

_NOTHING = PriorPodSet()


def running_placement(
    job: JobRecord,
    pods: Iterable[PodRecord],
    nodes: Mapping[str, Node],
    config: QueueConfig,
    prior: PriorAdmission | None = None,
) -> Placement | None:
    """The slots that the pods of a running gang hold, or None if the gang is incomplete.

    Args:
        job: resumed, with or without an attempt label.
        pods: all pods that it controls.
        nodes: by name.
        config: for the flavors to which it is charged.
        prior: the admission by Kueue, if there is one.
    """
    if job.suspended or job.error is not None:
        return None
    queue = config.cluster_queue_of(job.namespace, job.queue)
    own = [pod for pod in pods if pod.attempt == job.attempt and not pod.terminal]
    if any(pod.gated or pod.node not in nodes for pod in own):
        return None
    placed, there, at_once = [], by_podset(own), job.pods_at_once
    for podset in job.podsets:
        held = Counter(pod.node for pod in there[podset.name] if pod.node is not None)
        if held.total() != at_once[podset.name]:
            return None
        if not held:
            continue  # all its pods have ended
        before = prior.podsets.get(podset.name, _NOTHING) if prior is not None else _NOTHING
        flavors = charged_flavors(podset, nodes[next(iter(held))], queue, config, before.flavors)
        placed.append(PodSetPlacement(podset.name, _in_order(held, before, nodes), flavors))
    return Placement(tuple(placed)) if placed else None


def _in_order(
    held: Counter[str], before: PriorPodSet, nodes: Mapping[str, Node]
) -> tuple[tuple[str, int], ...]:
    """Nodes in the order of ranks, if the pods are on the nodes of the admission."""
    names = {nodes[name].hostname: name for name in held}
    assigned = tuple((names.get(host, ""), count) for host, count in before.hosts if count)
    counted: Counter[str] = Counter()
    for name, count in assigned:
        counted[name] += count
    return assigned if counted == held else tuple(sorted(held.items()))


def charged_flavors(
    podset: PodSet,
    node: Node | None,
    queue: ClusterQueue | None,
    config: QueueConfig,
    before: Mapping[str, str],
) -> dict[str, str]:
    """Resource to flavor, to which a podset that runs is charged.

    Args:
        podset: with its request.
        node: of its first pod; None = not known.
        queue: its ClusterQueue; without one, it is charged to no flavor.
        config: with the flavors.
        before: its flavors by an earlier admission.
    """
    charged = config.rules.charged(podset.shape.requests)
    chosen = {}
    for group in queue.groups if queue is not None else ():
        asked = [resource for resource in group.covered if charged[resource]]
        if asked:
            chosen.update(dict.fromkeys(asked, _flavor_of(group, node, config, before, asked)))
    return chosen


def _flavor_of(
    group: ResourceGroup,
    node: Node | None,
    config: QueueConfig,
    before: Mapping[str, str],
    resources: Iterable[str],
) -> str:
    """The flavor of a group to which the gang is charged.

    The earlier flavor, if the queue still offers it. Otherwise the first flavor of the queue. In both cases, a flavor whose labels
    the node has comes before one whose labels it lacks, because each use needs a charge.
    """
    offered = [quotas.flavor for quotas in group.flavors]
    candidates = [before[one] for one in resources if before.get(one) in offered] + offered
    for name in candidates:
        flavor = config.flavors.get(name)
        if flavor and node is not None and node.has_labels(flavor.node_labels):
            return name
    return candidates[0]
