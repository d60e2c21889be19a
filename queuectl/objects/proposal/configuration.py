"""The proposed configuration objects, with the reason for each, and their YAML with comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from queuectl.domain.fleet import HOSTNAME, Effect, Node, Taint, is_passing
from queuectl.domain.gpus import unit_of, vendor_of
from queuectl.domain.quantity import CPU, MEMORY, PODS, format_quantity, total
from queuectl.domain.queues import DEFAULT_NAME
from queuectl.domain.words import counted
from queuectl.objects.configuration.config_kinds import API_VERSION
from queuectl.objects.configuration.wire import MOST_IN_GROUP, MOST_QUOTAS
from queuectl.objects.keys import NAMESPACE_NAME
from queuectl.objects.proposal.labels import gpu_resources
from queuectl.objects.proposal.pools import Levels, NodePool, find_pools, named, propose_levels

# ---- Proposals

Body = dict[str, Any]
_VOLUMES: Final = "attachable-volumes-"
_GKE_SHARES: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
_ONLY_NODES: Final = "nodes"  # the Topology without other levels
_GPU_TAINT: Final = "sku"  # the key that the pages of Azure use for GPU nodes


@dataclass(frozen=True, slots=True)
class ProposedObject:
    """One proposed object. ``reasons``: sentences that the file has as comments."""

    body: Body
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The configuration for a cluster.

    Attributes:
        entries: in an order in which an object names only earlier ones.
        left_out: sentences about nodes and resources that no object covers.
        nodes: their number.
        gpus: the number of GPU nodes among them.
    """

    entries: tuple[ProposedObject, ...]
    left_out: tuple[str, ...]
    nodes: int
    gpus: int


def propose(
    nodes: Iterable[Node], namespaces: Sequence[str], queue: str, left_out: Sequence[str] = ()
) -> Proposal:
    """Configuration for these nodes.

    Args:
        nodes: all nodes of the cluster.
        namespaces: each gets a LocalQueue.
        queue: name of the ClusterQueue and of the LocalQueues.
        left_out: sentences about other things that the objects do not cover.
    """
    listed = sorted(nodes, key=lambda node: node.name)
    proposed = find_pools(listed)
    topologies = _topologies(proposed.pools)
    resources, dropped = _covered(proposed.pools)
    entries = [
        *(_topology(name, levels, pools) for name, (levels, pools) in topologies.items()),
        *(
            _flavor(pool, name)
            for pool in proposed.pools
            for name, (_, pools) in topologies.items()
            if pool in pools
        ),
    ]
    if proposed.pools:
        entries.append(_cluster_queue(queue, proposed.pools, resources, namespaces))
        entries += [_local_queue(namespace, queue) for namespace in dict.fromkeys(namespaces)]
    gpus = sum(bool(gpu_resources(node)) for node in listed)
    reasons = (*proposed.left_out, *_unusable(listed), *dropped, *left_out)
    return Proposal(tuple(entries), reasons, len(listed), gpus)


def _object(kind: str, name: str, spec: Body, namespace: str | None = None) -> Body:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


# ---- Topologies


def _topologies(pools: Sequence[NodePool]) -> dict[str, tuple[Levels, list[NodePool]]]:
    """By name: pools with the same levels share a Topology."""
    shared: dict[tuple[str, ...], tuple[list[Levels], list[NodePool]]] = {}
    for pool in pools:
        levels = propose_levels(pool.nodes)
        alike = shared.setdefault(levels.labels, ([], []))
        alike[0].append(levels)
        alike[1].append(pool)
    if len(shared) == 1:
        (only,) = shared.values()
        return {DEFAULT_NAME: (only[0][0], only[1])}
    return {
        _ONLY_NODES if labels == (HOSTNAME,) else alike[0].name: (levels[0], alike)
        for labels, (levels, alike) in shared.items()
    }


def _topology(name: str, levels: Levels, pools: Sequence[NodePool]) -> ProposedObject:
    flavors = ", ".join(pool.name for pool in pools)
    reasons = [
        f"Places gangs of {flavors}. Each domain of a level is in one domain of the level before it."
    ]
    if levels.labels == (HOSTNAME,):
        reasons = [f"Places gangs of {flavors} on nodes. No other label of the nodes is a level."]
    measured = [propose_levels(pool.nodes) for pool in pools]
    for at, label in enumerate(levels.labels[:-1]):
        numbers = [each.domains[at] for each in measured]
        reasons.append(f"{label}: {_domains(numbers)}.")
    dropped = dict.fromkeys(reason for each in measured for reason in each.left_out)
    reasons += [f"No level: {reason}." for reason in dropped]
    return ProposedObject(
        _object("Topology", name, {"levels": [{"nodeLabel": label} for label in levels.labels]}),
        tuple(reasons),
    )


def _domains(numbers: Sequence[int]) -> str:
    return " and ".join(counted(number, "domain") for number in numbers)


# ---- Flavors


def _flavor(pool: NodePool, topology: str) -> ProposedObject:
    spec: Body = {}
    if pool.labels:
        spec["nodeLabels"] = dict(pool.labels)
    gpu_taints, other_taints = _taints(pool)
    if gpu_taints:
        spec["tolerations"] = [
            {"key": taint.key, "operator": "Exists", "effect": str(taint.effect)}
            for taint in gpu_taints
        ]
    spec["topologyName"] = topology
    reasons = [f"{counted(len(pool.nodes), 'node')}{_having(pool)}.", *pool.notes]
    if gpu_taints:
        keys = ", ".join(taint.key for taint in gpu_taints)
        reasons.append(
            f"The nodes have the taint {keys}: the controller adds these tolerations to the pods."
        )
    reasons += [
        f"Left out: a toleration of the taint {taint.key}={taint.value}:{taint.effect}. Jobs need it themselves."
        for taint in other_taints
    ]
    return ProposedObject(_object("ResourceFlavor", pool.name, spec), tuple(reasons))


def _having(pool: NodePool) -> str:
    """The GPUs of the nodes, in words."""
    if not pool.gpus:
        return " without GPUs"
    capacity = total(node.allocatable for node in pool.nodes)
    amounts = " and ".join(f"{capacity[name]} {name}" for name in pool.gpus)
    units = [unit for n in pool.nodes for g in pool.gpus if (unit := unit_of(g, n.labels))]
    shares = {unit.replicas for unit in units if unit.shared}
    counts = (node.labels.get(_GKE_SHARES, "") for node in pool.nodes)
    shares |= {
        int(count) for count in counts if count.isascii() and count.isdecimal() and len(count) < 10
    }
    kind = ": MIG instances" if any(unit.instance for unit in units) else ""
    if len(shares) == 1:
        return f" with {amounts}{kind}: {shares.pop()} pods can share each"
    return f" with {amounts}{kind}"


def _taints(pool: NodePool) -> tuple[list[Taint], list[Taint]]:
    """The taints that keep pods off the nodes of a pool: those for GPUs, and others."""
    found = {
        (taint.key, taint.effect): taint
        for node in pool.nodes
        for taint in node.taints
        if taint.effect is not Effect.PREFER_NO_SCHEDULE and not is_passing(taint.key)
    }
    listed = [found[key] for key in sorted(found)]
    gpu = [taint for taint in listed if pool.gpus and _is_of_gpus(taint)]
    return gpu, [taint for taint in listed if taint not in gpu]


def _is_of_gpus(taint: Taint) -> bool:
    return vendor_of(taint.key) is not None or (taint.key, taint.value) == (_GPU_TAINT, "gpu")


# ---- Queues


def _covered(pools: Sequence[NodePool]) -> tuple[list[str], list[str]]:
    """The resources to cover, and a sentence about those that exceed the limits of a resource group."""
    offered = total(node.allocatable for pool in pools for node in pool.nodes)
    gpus = sorted({name for pool in pools for name in pool.gpus})
    first = [CPU, MEMORY, *gpus]
    others = sorted(
        name
        for name in offered
        if name not in first and name != PODS and not name.startswith(_VOLUMES)
    )
    room = min(MOST_IN_GROUP, MOST_QUOTAS // max(1, len(pools))) - len(first)
    kept, dropped = others[: max(0, room)], others[max(0, room) :]
    reasons = (
        [f"resources beyond the limit of a resource group: {', '.join(dropped)}"] if dropped else []
    )
    return [*first, *kept], reasons


def _is_usable(node: Node) -> bool:
    return node.ready and not node.unschedulable


def _cluster_queue(
    name: str, pools: Sequence[NodePool], resources: Sequence[str], namespaces: Sequence[str]
) -> ProposedObject:
    selector = {
        "matchExpressions": [
            {"key": NAMESPACE_NAME, "operator": "In", "values": sorted(set(namespaces))}
        ]
    }
    group = {
        "coveredResources": list(resources),
        "flavors": [{"name": pool.name, "resources": _quotas(pool, resources)} for pool in pools],
    }
    spec = {
        "namespaceSelector": selector,
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    reasons = (
        "All capacity in one queue: the quota is the allocatable amount of the nodes that are ready and not cordoned.",
        "Pods outside the queues use a part of it; the planner subtracts them on each node.",
        "To let the quota follow the nodes, add spec.policy.quotaFromNodes: {headroom: 0%}.",
        "A gang evicts gangs of lower priority. To divide the quota, write a ClusterQueue for each team.",
    )
    return ProposedObject(_object("ClusterQueue", name, spec), reasons)


def _quotas(pool: NodePool, resources: Iterable[str]) -> list[Mapping[str, Any]]:
    capacity = total(node.allocatable for node in pool.nodes if _is_usable(node))
    return [{"name": name, "nominalQuota": _amount(name, capacity[name])} for name in resources]


def _amount(resource: str, amount: int) -> int | str:
    text = format_quantity(resource, amount)
    return int(text) if text.isdecimal() else text


def _local_queue(namespace: str, queue: str) -> ProposedObject:
    reasons = [f"Jobs in {namespace} name it with the label queuectl.dev/queue-name: {queue}"]
    if queue == DEFAULT_NAME:
        reasons = [
            f"All Jobs in {namespace} without a queue label use it, including those that need no GPU."
        ]
    return ProposedObject(
        _object("LocalQueue", queue, {"clusterQueue": queue}, namespace), tuple(reasons)
    )


def _unusable(nodes: Iterable[Node]) -> Iterator[str]:
    """Sentences about capacity that the quota does not count."""
    listed = list(nodes)
    unready = [node for node in listed if not node.ready]
    cordoned = [node for node in listed if node.ready and node.unschedulable]
    for found, state in ((unready, "not ready"), (cordoned, "cordoned")):
        if found:
            yield f"the quota of {named(found)}: {state}"
    for node in listed:
        if _is_usable(node) and node.failed:
            devices = ", ".join(f"{node.failed[name]} {name}" for name in sorted(node.failed))
            yield f"{devices} of {node.name}: unhealthy for the device plugin"


# ---- YAML with comments

_WIDTH: Final = 110
_MAP: Final = "tag:yaml.org,2002:map"
_SEQUENCE: Final = "tag:yaml.org,2002:seq"


class _Row(dict[str, Any]):
    """A mapping that is written in one line."""


class _Words(list[Any]):
    """A list that is written in one line."""


class _Dumper(yaml.SafeDumper):
    """Writes an object that occurs twice in full each time."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Dumper.add_representer(
    _Row, lambda dumper, row: dumper.represent_mapping(_MAP, row, flow_style=True)
)


_Dumper.add_representer(
    _Words, lambda dumper, words: dumper.represent_sequence(_SEQUENCE, words, flow_style=True)
)


def as_yaml(proposal: Proposal, source: str) -> str:
    """The objects, each with its reasons before it. ``source``: where the nodes were read."""
    head = "\n".join(_head(proposal, source))
    return "---\n".join(
        [f"{head}\n{_entry(proposal.entries[0])}", *map(_entry, proposal.entries[1:])]
    )


def _head(proposal: Proposal, source: str) -> Iterator[str]:
    nodes = f"{counted(proposal.nodes, 'node')}, {proposal.gpus} with GPUs"
    yield from _comment(f"Proposed by queuectl init for {source}: {nodes}.")
    yield from _comment(
        "Review the objects, then run queuectl apply --dry-run -f FILE, and queuectl apply -f FILE."
    )
    if proposal.left_out:
        yield from _comment("Left out:")
        for sentence in proposal.left_out:
            yield from _comment(sentence, "- ")
    yield ""


def _entry(entry: ProposedObject) -> str:
    comments = "".join(f"{line}\n" for reason in entry.reasons for line in _comment(reason))
    body = yaml.dump(
        _rows(entry.body), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True
    )
    return comments + body


def _comment(text: str, mark: str = "") -> Iterable[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"# {mark}",
        subsequent_indent=f"# {' ' * len(mark)}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _rows(node: Any) -> Any:
    """The value with lists of plain values, and mappings of two or more plain values in lists, in one line each."""
    if isinstance(node, dict):
        return {key: _rows(part) for key, part in node.items()}
    if isinstance(node, list):
        if _are_plain(node):
            return _Words(node)
        return [_Row(each) if _is_row(each) else _rows(each) for each in node]
    return node


def _are_plain(nodes: Iterable[Any]) -> bool:
    return not any(isinstance(value, (dict, list)) for value in nodes)


def _is_row(node: Any) -> bool:
    return isinstance(node, dict) and len(node) > 1 and _are_plain(node.values())
