"""How the planner's things are said: pods and what they ask, levels of a topology, amounts of a resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.words import counted
from queuectl.planner.problem.request import ANYWHERE, Pods, Unit

TIMES: Final = "\u00d7"
NAMED: Final = 3  # nodes or gangs called by name in a sentence


def amount(resource: str, value: int) -> str:
    """``8 nvidia.com/gpu``, ``1500m cpu``."""
    return f"{format_quantity(resource, value)} {resource}"


def pods_of(pods: Pods) -> str:
    """``4 pods x 8 nvidia.com/gpu``."""
    return f"{counted(pods.total, 'pod')} {TIMES} {requests_of(each(pods))}"


def each(pods: Pods) -> Resources:
    """What one pod asks, also where a slice of several counts as one."""
    if pods.size == 1:
        return pods.shape.requests
    return Resources({name: value // pods.size for name, value in pods.shape.requests.items()})


def _slices_of(unit: Unit, pods: Pods) -> str:
    """`` (in slices: 8 to a rack, 2 to a node)``, nothing for pods that come one by one."""
    layers = [(level_name(unit.tree.levels[at]), size * pods.size) for at, size in pods.slices]
    layers += [("node", pods.size)] if pods.size > 1 else []
    parts = ", ".join(f"{size} to a {level}" for level, size in layers)
    return f" (in slices: {parts})" if parts else ""


def asked_by(unit: Unit) -> str:
    """What a unit needs, and how close together."""
    pods = " and ".join(pods_of(p) + _slices_of(unit, p) for p in unit.pods)
    if unit.on_one_node:
        return f"needs {pods} on one node"
    where = f" in one {level_of(unit)}" if unit.required != ANYWHERE else ""
    return f"needs {pods}{where}"


def requests_of(requests: Resources) -> str:
    """What tells a pod apart: its devices; else whatever it asks."""
    named = [(n, v) for n, v in sorted(requests.items()) if n != PODS]
    devices = [(n, v) for n, v in named if "/" in n]
    shown = devices or named or [(PODS, requests[PODS])]
    return " + ".join(amount(n, v) for n, v in shown)


def some(names: Sequence[str], most: int = NAMED) -> str:
    """The first few of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def level_of(unit: Unit) -> str:
    """The level that all pods of a unit share."""
    if unit.required >= unit.tree.depth:
        return "node"
    return level_name(unit.tree.levels[unit.required])


def level_name(label: str) -> str:
    """``cloud.example.com/topology-rack`` reads as ``rack``, the hostname label as ``node``."""
    name = label.rpartition("/")[2]
    name = name.removeprefix("topology-").removeprefix("topology.")
    return "node" if name == "hostname" else name
