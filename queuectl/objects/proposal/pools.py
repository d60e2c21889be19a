"""The nodes of a cluster in pools, one for each flavor, and the levels of their Topologies.

A pool is a GPU model in one division of its GPUs, or nodes without GPUs. It has labels that select its nodes and no other node that is
counted. Nodes that no label distinguishes are in one pool.

A level is a label that all nodes have, and domains of levels are inside one another. The checks read the nodes alone: a label is not a
level if a node lacks it, if all nodes have one value, if each node has a different value, or if one of its domains has nodes in two
domains of a coarser level. Of two labels with the same domains, one is kept.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, TypeAlias

from queuectl.domain.fleet import HOSTNAME, Effect, Node, Taint, is_passing
from queuectl.domain.gpus import unit_of, vendor_of
from queuectl.domain.words import counted
from queuectl.objects.proposal.labels import (
    LABELS,
    NETWORKS,
    NODE_POOLS,
    REGION,
    ZONE,
    gpu_resources,
    has_hardware,
    place_rank,
)

# ---- Pools

Labels: TypeAlias = tuple[tuple[str, str], ...]
_MOST_WITHOUT_GPUS: Final = 8  # pools
_SYSTEM: Final = "kubernetes.io/os"
_SHARES: Final = (
    "cloud.google.com/gke-gpu-sharing-strategy",
    "cloud.google.com/gke-max-shared-clients-per-gpu",
    "cloud.google.com/gke-gpu-partition-size",
)
"""Labels whose values distinguish nodes with shared GPUs where no agent of the vendor labels nodes."""
_VENDOR_WORDS: Final = re.compile(r"^(amd-instinct|nvidia|amd|intel)-")


@dataclass(frozen=True, slots=True)
class NodePool:
    """The nodes of one flavor.

    Attributes:
        name: of the flavor.
        labels: they select these nodes and no others; empty = the cluster has no other nodes.
        gpus: the GPU resources of the nodes; empty = nodes without GPUs.
        notes: sentences for the administrator.
    """

    name: str
    labels: Labels
    nodes: tuple[Node, ...]
    gpus: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePools:
    """All pools, those without GPUs first, and sentences about nodes that are in none."""

    pools: tuple[NodePool, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Use:
    """GPU nodes are equal if these are: the model, the resources and how the GPUs are shared."""

    product: tuple[str, str]
    gpus: tuple[str, ...]
    shares: tuple[str, ...]


def find_pools(nodes: Sequence[Node]) -> NodePools:
    """The pools of these nodes."""
    silent = [node for node in nodes if not gpu_resources(node) and has_hardware(node.labels)]
    left_out = [_silence(silent)] if silent else []
    hidden = {node.name for node in silent}
    nodes = [node for node in nodes if node.name not in hidden]
    with_gpus: dict[_Use, list[Node]] = {}
    unknown, without_gpus = [], []
    for node in nodes:
        gpus = gpu_resources(node)
        if not gpus:
            without_gpus.append(node)
        elif (product := _product(node, gpus)) is None:
            unknown.append(node)
        else:
            with_gpus.setdefault(_Use(product, gpus, _shares(node, gpus)), []).append(node)
    pools = _with_names(_separated(with_gpus, nodes))
    if unknown and not with_gpus and not without_gpus:
        gpus = tuple(sorted({name for node in unknown for name in gpu_resources(node)}))
        note = "No label of the nodes names the GPU model, so the flavor selects all nodes."
        pools = [NodePool("gpu", _of_all(unknown), tuple(unknown), gpus, (note,))]
    elif unknown:
        fix = "run GPU feature discovery or the node labeler of the vendor"
        left_out.append(f"{named(unknown)}: no label names the GPU model; {fix}")
    without, reasons = _without_gpus(without_gpus, nodes)
    return NodePools((*without, *pools), (*left_out, *reasons))


def _silence(nodes: Sequence[Node]) -> str:
    vendors = " and ".join(sorted({str(has_hardware(node.labels)) for node in nodes}))
    return f"{named(nodes)}: labels show GPUs of {vendors}, but they have no GPU resource; check the device plugin"


def _product(node: Node, gpus: Iterable[str]) -> tuple[str, str] | None:
    """The label that names the GPU model."""
    for name in gpus:
        vendor = vendor_of(name)
        for key in LABELS[vendor].products if vendor is not None else ():
            if value := node.labels.get(key):
                return key, value
    return None


def _shares(node: Node, gpus: Iterable[str]) -> tuple[str, ...]:
    """How pods share the GPUs of a node; empty for GPUs that are not shared."""
    units = [unit for name in gpus if (unit := unit_of(name, node.labels)) is not None]
    ways = [f"{unit.replicas} by {unit.sharing}" for unit in units if unit.shared]
    return (*ways, *(node.labels[key] for key in _SHARES if key in node.labels))


# ---- Labels that select exactly the nodes of a pool


def _separated(uses: Mapping[_Use, list[Node]], nodes: Sequence[Node]) -> Iterator[NodePool]:
    """Pools with the labels that select them, before they have names."""
    products = dict.fromkeys(use.product for use in uses)
    for product in products:
        same = {use: found for use, found in uses.items() if use.product == product}
        lone = [_alone(use, found, nodes) for use, found in same.items()]
        if all(pool is not None for pool in lone):
            yield from (pool for pool in lone if pool is not None)
            continue
        everything = [node for found in same.values() for node in found]
        split = _by_node_pool(product, list(same.values()), nodes)
        yield from split or [_mixed(product, tuple(same), everything)]


def _alone(use: _Use, members: Sequence[Node], nodes: Sequence[Node]) -> NodePool | None:
    """The pool of one use, or None if no labels select exactly its nodes."""
    vendor = vendor_of(use.gpus[0])
    keys = (*(LABELS[vendor].divisions if vendor is not None else ()), *NODE_POOLS)
    labels = _selecting(members, nodes, use.product, keys)
    return None if labels is None else NodePool("", labels, tuple(members), use.gpus)


def _selecting(
    members: Sequence[Node], nodes: Sequence[Node], first: tuple[str, str], keys: Iterable[str]
) -> Labels | None:
    """The labels that select these nodes and no others: the first one, and as few of the others as are needed."""
    own = {node.name for node in members}
    labels, strangers = [first], [n for n in nodes if n.name not in own and _has(n, first)]
    for key in keys:
        if not strangers:
            break
        values = {node.labels.get(key) for node in members}
        value = next(iter(values))
        if len(values) != 1 or not value:
            continue
        kept = [node for node in strangers if _has(node, (key, value))]
        if len(kept) < len(strangers):
            labels.append((key, value))
            strangers = kept
    return None if strangers else tuple(labels)


def _has(node: Node, label: tuple[str, str]) -> bool:
    return node.labels.get(label[0]) == label[1]


def _by_node_pool(
    product: tuple[str, str], uses: Sequence[Sequence[Node]], nodes: Sequence[Node]
) -> list[NodePool]:
    """A pool for each node pool of the cloud, if none of them has nodes of two uses; otherwise no pools."""
    for key in NODE_POOLS:
        values = [{node.labels.get(key) for node in found} for found in uses]
        if any(None in each for each in values) or len(set().union(*values)) != sum(
            map(len, values)
        ):
            continue
        found = []
        for value in sorted(str(each) for each in set().union(*values)):
            members = [n for n in nodes if _has(n, product) and _has(n, (key, value))]
            found.append(NodePool("", (product, (key, value)), tuple(members), _gpus(members)))
        return found
    return []


def _mixed(product: tuple[str, str], uses: Sequence[_Use], nodes: Sequence[Node]) -> NodePool:
    """One pool for nodes that labels do not distinguish."""
    kinds = " and ".join(
        ", ".join(use.gpus) + "".join(f" ({way})" for way in use.shares) for use in uses
    )
    note = f"Nodes with {kinds} have the same labels, so they are one flavor. Label them apart, then run queuectl init again."
    return NodePool("", (product,), tuple(nodes), _gpus(nodes), (note,))


def _gpus(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(sorted({name for node in nodes for name in gpu_resources(node)}))


# ---- Nodes without GPUs


def _without_gpus(
    candidates: Sequence[Node], nodes: Sequence[Node]
) -> tuple[list[NodePool], list[str]]:
    """Pools of nodes without GPUs that accept ordinary pods, and the reasons for the others."""
    closed = [node for node in candidates if any(map(_keeps_pods_off, node.taints))]
    names = {node.name for node in closed}
    usable = [node for node in candidates if node.name not in names]
    reasons = []
    if closed:
        keys = ", ".join(
            sorted({t.key for node in closed for t in node.taints if _keeps_pods_off(t)})
        )
        reasons.append(f"{named(closed)} without GPUs: tainted ({keys})")
    if not usable:
        return [], reasons
    if len(usable) == len(nodes):
        return [NodePool("cpu", _of_all(usable), tuple(usable), ())], reasons
    for key in (*NODE_POOLS, _SYSTEM):
        values = {node.labels.get(key) for node in usable}
        own = {node.name for node in usable}
        foreign = {node.labels.get(key) for node in nodes if node.name not in own}
        if None in values or values & foreign or len(values) > _MOST_WITHOUT_GPUS:
            continue
        return list(_cpu_pools(key, sorted(map(str, values)), usable)), reasons
    fix = "give them a separate label to queue jobs on them"
    reasons.append(f"{named(usable)} without GPUs: no label selects only them; {fix}")
    return [], reasons


def _of_all(nodes: Sequence[Node]) -> Labels:
    """The label of the operating system, which the kubelet sets, if it is the same on all nodes; otherwise none."""
    values = {node.labels.get(_SYSTEM) for node in nodes}
    return tuple((_SYSTEM, value) for value in values if value and len(values) == 1)


def _cpu_pools(key: str, families: Sequence[str], usable: Sequence[Node]) -> Iterator[NodePool]:
    for value in families:
        members = tuple(node for node in usable if _has(node, (key, value)))
        name = "cpu" if len(families) == 1 else f"cpu-{_as_name(value)}"
        yield NodePool(name, ((key, value),), members, ())


def _keeps_pods_off(taint: Taint) -> bool:
    return taint.effect is not Effect.PREFER_NO_SCHEDULE and not is_passing(taint.key)


def named(nodes: Sequence[Node]) -> str:
    """The number of nodes, with the name of the first."""
    first = nodes[0].name
    return first if len(nodes) == 1 else f"{counted(len(nodes), 'node')} ({first}, …)"


# ---- Names


def _as_name(text: str) -> str:
    """A value of a label as part of a name that Kubernetes accepts."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unnamed"


def _with_names(pools: Iterable[NodePool]) -> list[NodePool]:
    """With names from the product, and from the other labels where two products give the same name."""
    listed = list(pools)
    plain = [_model(pool) for pool in listed]
    models = [
        (name if plain.count(name) == 1 else "-".join([name, *_further(pool)]), pool)
        for pool, name in zip(listed, plain, strict=True)
    ]
    return sorted(_unique(models), key=lambda pool: pool.name)


def _further(pool: NodePool) -> list[str]:
    """The part of a name for the labels after the one of the model."""
    return [_as_name(value) for _, value in pool.labels[1:]]


def _model(pool: NodePool) -> str:
    return _VENDOR_WORDS.sub("", _as_name(pool.labels[0][1])) or _as_name(pool.labels[0][1])


def _unique(models: Iterable[tuple[str, NodePool]]) -> Iterator[NodePool]:
    """The pools under these names, with a number where a name occurs twice."""
    taken: set[str] = set()
    for model, pool in models:
        numbers = (model if at == 1 else f"{model}-{at}" for at in count(1))
        name = next(each for each in numbers if each not in taken)
        taken.add(name)
        yield replace(pool, name=name)


# ---- Levels of a Topology

_NAMED: Final = 3  # nodes in one sentence


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels for some nodes.

    Attributes:
        labels: from coarse to fine; the last one is the host name.
        domains: the number of domains, for each level.
        left_out: why other keys of places are not levels, a sentence for each.
    """

    labels: tuple[str, ...]
    domains: tuple[int, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Label:
    """A label as a possible level.

    Attributes:
        values: of each node, in the order of the nodes.
        family: labels of one family have a known order.
        rank: in its family, coarse labels first.
    """

    key: str
    values: tuple[str, ...]
    family: int
    rank: int


_GENERAL: Final = -1  # family of region and zone, the coarsest labels
_UNKNOWN: Final = len(NETWORKS)  # the family of all other keys


def propose_levels(nodes: Sequence[Node]) -> Levels:
    """The levels for these nodes. At least one node."""
    chain: list[_Label] = []
    left_out: list[str] = []
    for key, family, rank in _candidates(nodes):
        values = tuple(node.labels.get(key, "") for node in nodes)
        label = _Label(key, values, family, rank)
        reason = _unusable(label, nodes) or _conflict(label, chain)
        if reason is None:
            at = sum(_is_inside(label.values, other.values) for other in chain)
            chain.insert(at, label)
        else:
            left_out.append(f"{key}: {reason}")
    labels = (*(label.key for label in chain), HOSTNAME)
    domains = (*(len(set(label.values)) for label in chain), len(nodes))
    return Levels(labels, domains, tuple(left_out))


def _candidates(nodes: Sequence[Node]) -> Iterator[tuple[str, int, int]]:
    """Labels of places with their family and rank, those first that are preferred."""
    present = {key for node in nodes for key in node.labels}
    known = set()
    for family, keys in enumerate(NETWORKS):
        for rank, key in enumerate(keys):
            known.add(key)
            if key in present:
                yield key, family, rank
    sites = [(place, key) for key in present - known if (place := place_rank(key)) is not None]
    for place, key in sorted(sites):
        yield key, _UNKNOWN, place
    for rank, key in ((1, ZONE), (0, REGION)):
        if key in present:
            yield key, _GENERAL, rank


def _unusable(label: _Label, nodes: Sequence[Node]) -> str | None:
    """The reason why the label is not a level for these nodes, whatever the other labels are."""
    lacking = [n.name for n, value in zip(nodes, label.values, strict=True) if not value]
    if lacking:
        more = "" if len(lacking) <= _NAMED else ", …"
        named = ", ".join(lacking[:_NAMED]) + more
        return f"{len(lacking)} of {counted(len(nodes), 'node')} lack it ({named})"
    domains = len(set(label.values))
    if domains == 1:
        return f"all nodes have the value {label.values[0]}"
    if domains == len(nodes):
        return f"each node has a different value, as {HOSTNAME} has"
    return None


def _conflict(label: _Label, chain: Sequence[_Label]) -> str | None:
    """The reason why the label and one of the chosen ones are not both levels."""
    for other in chain:
        inside, around = (
            _is_inside(label.values, other.values),
            _is_inside(other.values, label.values),
        )
        if inside and around:
            return f"it has the same domains as {other.key}"
        finer, coarser = (
            (label, other) if _is_finer(label, other, inside=inside) else (other, label)
        )
        if not _is_inside(finer.values, coarser.values):
            domain, places = _divided(finer.values, coarser.values)
            where = " and ".join(places)
            return f"{finer.key} {domain} has nodes in {coarser.key} {where}"
    return None


def _is_finer(label: _Label, compared: _Label, *, inside: bool) -> bool:
    """Whether the label must be the finer one of the two. Where no order is known, the one with more domains is finer."""
    if label.family == compared.family and label.family != _UNKNOWN:
        return label.rank > compared.rank
    if _GENERAL in (label.family, compared.family):
        return compared.family == _GENERAL
    return inside or len(set(label.values)) > len(set(compared.values))


def _is_inside(finer: Sequence[str], coarser: Sequence[str]) -> bool:
    """Whether each domain of one label is inside one domain of the other."""
    return len(set(zip(finer, coarser, strict=True))) == len(set(finer))


def _divided(finer: Sequence[str], coarser: Sequence[str]) -> tuple[str, list[str]]:
    """A domain with nodes in two domains of the other label, and these."""
    found = defaultdict[str, set[str]](set)
    for value, place in zip(finer, coarser, strict=True):
        found[value].add(place)
    domain = min(value for value, places in found.items() if len(places) > 1)
    return domain, sorted(found[domain])[:2]
