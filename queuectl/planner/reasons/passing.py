"""Nodes and devices that are out of use for a time, as the reason of a gang that waits for them.

The nodes as they can be are those of :attr:`queuectl.domain.fleet.Node.recovered`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from queuectl.devices.numa_devices import NUMA_DRIVER
from queuectl.devices.pools import effective
from queuectl.domain.changes import is_cordoned
from queuectl.domain.devices import NodeDevices
from queuectl.domain.fleet import Node
from queuectl.domain.quantity import format_quantity
from queuectl.domain.reasons import WAITS_FOR, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import counted, format_time
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Mask
from queuectl.planner.reasons.words import some

_MOST: Final = 50  # nodes that are named


def unavailable_because(snapshot: Snapshot, node: Node, excluded: Collection[str] = ()) -> str:
    """Why a node, or a part of it, is out of use for a time; empty if it is not.

    Args:
        snapshot: with the node.
        node: of the snapshot.
        excluded: names of the nodes that the gang must not use.
    """
    why = _why_not_usable(snapshot, node, excluded)
    if not why:
        return " and ".join([*lost_devices(snapshot, node), *held_devices(snapshot, node)])
    return why if node.out_since is None else f"{why} since {format_time(node.out_since)}"


def _why_not_usable(snapshot: Snapshot, node: Node, excluded: Collection[str]) -> str:
    if not node.ready:
        return "not ready"
    if node.unhealthy:
        return f"unhealthy: {node.unhealthy}"
    if node.mig is not None and node.mig.phase.active:
        return f"gets the MIG configuration {node.mig.target.config}"
    if is_cordoned(node):
        return "cordoned"
    if node.name in excluded:
        announcing = snapshot.config.rules.interruption_taints
        taint = next((t.key for t in node.taints if t.key in announcing), None)
        return "refused by kube-scheduler" if taint is None else f"taken away soon: taint {taint}"
    return next((f"taint {t.key}:{t.effect}" for t in node.taints if t.passes), "")


def lost_devices(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """Why devices of a node are out of use."""
    for name, amount in sorted(node.failed.items()):
        yield f"{format_quantity(name, amount)} {name} unhealthy"
    if not node.occupied:
        return
    known = snapshot.devices
    devices = known.nodes.get(node.name, NodeDevices()).devices
    tainted = [device for device in devices if any(effective(device))]
    if tainted:
        yield some([f"device {d.id} has the taint {next(effective(d))}" for d in tainted])
    published = {device.id for device in devices}
    gone = known.recovered.get(node.name, NodeDevices()).devices
    for driver, number in sorted(
        Counter(d.id.driver for d in gone if d.id not in published).items()
    ):
        yield f"{counted(number, 'device')} of {driver} not published"


def held_devices(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """The devices of a node that pods of no gang hold."""
    held = snapshot.other_devices.get(node.name, ())
    if node.occupied and held:
        names = {"NUMA nodes" if d.driver == NUMA_DRIVER else str(d) for d in (h.id for h in held)}
        yield f"pods of no gang hold {some(sorted(names))}"


def awaiting_nodes(problem: Problem, lasting: GangRequest, why: Reason) -> Reason:
    """The reason of a gang that has room only on the nodes as they can be, with what it waits for.

    Args:
        problem: of the snapshot.
        lasting: the request of the gang of the nodes as they can be.
        why: the reason for which it does not start.
    """
    excluded = lasting.pending.excluded
    nodes = _those(problem, np.flatnonzero(gaining(problem, lasting)).tolist(), excluded)
    if not nodes:
        return why
    text = f"{why.message}; even if no other gang ran, it waits for {listed(nodes)}"
    return replace(why, message=text, details={**why.details, WAITS_FOR: {"nodes": nodes}})


def out_of_use(problem: Problem, labels: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The nodes with these labels that are out of use for a time, in whole or in part, by name, and why."""
    index = problem.index
    at = np.flatnonzero(index.labeled(tuple(labels)))
    return _those(
        problem, (i for i in at.tolist() if index.nodes[i].recovered is not index.nodes[i])
    )


def listed(nodes: Mapping[str, str]) -> str:
    """``n1 (cordoned), n2 (not ready)``."""
    return some([f"{name} ({why})" for name, why in nodes.items()])


def _those(
    problem: Problem, numbers: Iterable[int], excluded: Collection[str] = ()
) -> dict[str, str]:
    snapshot, nodes = problem.snapshot, problem.index.nodes
    return {
        nodes[i].name: unavailable_because(snapshot, nodes[i], excluded) or "out of use"
        for i in islice(numbers, _MOST)
    }


def gaining(problem: Problem, lasting: GangRequest) -> Mask:
    """The nodes that have room for more pods of a gang once they have recovered. Shape (N,)."""
    index = problem.index
    gains = np.zeros(problem.size, dtype=np.bool_)
    allowed = index.ready.copy()
    excluded = [index.position[n] for n in lasting.pending.excluded if n in index.position]
    allowed[excluded] = False
    for pods in lasting.pods:
        now = pods.shape.eligible & allowed & index.mask(pods.shape.rules)
        gains |= caps(index.recovered.allocatable, pods.shape) > caps(
            index.allocatable, pods.shape, eligible=now
        )
    return gains
