"""Pods, podset groups, levels and amounts as text."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

from queuectl.domain.devices import DEVICE_ROW, ONE_NUMA_NODE
from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.words import counted
from queuectl.planner.problem.limit_rows import is_limit_row, reservation_of_row
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup, ShapePods

TIMES: Final = "\u00d7"


def amount(resource: str, number: int) -> str:
    """``8 nvidia.com/gpu``, ``1500m cpu``. The number of a limit for one gang (limit_rows.py) has no meaning for people."""
    return f"{format_quantity(resource, number)} {resource.partition('#')[0]}"


def pods_of(pods: ShapePods) -> str:
    """``4 pods x 8 nvidia.com/gpu in slices (8 per rack, 2 per node)``."""
    return f"{counted(pods.total, 'pod')} {kind_of(pods)}"


def kind_of(pods: ShapePods, short: Container[str] = ()) -> str:
    """``x 8 nvidia.com/gpu + 8 cpu``; ``short``: resources to name besides the devices."""
    return f"{TIMES} {requests_of(each(pods), short)}"


def each(pods: ShapePods) -> Resources:
    """The request of one pod, also where a slice of several counts as one."""
    if pods.size == 1:
        return pods.shape.requests
    return Resources({name: value // pods.size for name, value in pods.shape.requests.items()})


def slices_of(podset_group: PodSetGroup, pods: ShapePods) -> str:
    """`` in slices (8 per rack, 2 per node)``; empty for pods without slices."""
    layers = [
        (level_name(podset_group.tree.levels[at]), size * pods.size) for at, size in pods.slices
    ]
    layers += [("node", pods.size)] if pods.size > 1 else []
    parts = ", ".join(f"{size} per {level}" for level, size in layers)
    return f" in slices ({parts})" if parts else ""


def asked_by(podset_group: PodSetGroup) -> str:
    """The pods of a podset group and the domain that they share: ``4 pods x 8 nvidia.com/gpu in one rack``."""
    pods = " and ".join(pods_of(p) + slices_of(podset_group, p) for p in podset_group.pods)
    return pods + where(podset_group)


def where(podset_group: PodSetGroup) -> str:
    """`` in one rack``; empty for pods that share no domain."""
    if podset_group.on_one_node:
        return " on one node"
    if podset_group.required == ANYWHERE:
        return ""
    level = level_of(podset_group)
    return f" on one {level}" if level == "node" else f" in one {level}"


def no_placement(podset_groups: Sequence[PodSetGroup]) -> str:
    """The sentence for pods that do not fit, although the sums of free capacity are large enough."""
    first, *others = map(asked_by, podset_groups)
    if others:
        return (
            f"{'; '.join((first, *others))}: each of these fits alone, but not all of them together"
        )
    return f"no placement exists for {first}, although enough capacity is free in total"


def requests_of(requests: Resources, short: Container[str] = ()) -> str:
    """The request of a pod in short form: its devices and what is short, or else all resources."""
    named = [(n, v) for n, v in shown(requests).items() if n != PODS]
    devices = [(n, v) for n, v in named if "/" in n]
    if devices:
        devices += [(n, v) for n, v in named if "/" not in n and n in short]
    return " + ".join(amount(n, v) for n, v in devices or named or [(PODS, requests[PODS])])


def shown(requests: Resources) -> dict[str, int]:
    """The amounts by name, without device rows and the rows of Reservations."""
    return {
        name: value
        for name, value in sorted(requests.items())
        if devices_asked(name) is None and reservation_of_row(name) is None
    }


def is_row(resource: str) -> bool:
    """Whether only plans have the resource: devices, the rest alongside a Reservation, a limit for shared GPUs."""
    return resource.startswith(DEVICE_ROW) or is_limit_row(resource)


def joined(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def devices_asked(resource: str) -> str | None:
    """The request for devices that a device row stands for; None for all other resources."""
    if not resource.startswith(DEVICE_ROW):
        return None
    return resource.removeprefix(DEVICE_ROW).partition(" #")[0]


def without_devices(requested: str, adverb: str = "") -> str:
    """The words for a request for devices that no node can serve."""
    devices = "" if requested.startswith(ONE_NUMA_NODE) else f"{adverb}devices for "
    return f"no node has {devices}{requested}"


def level_of(podset_group: PodSetGroup) -> str:
    """The level that all pods of a podset group share."""
    if podset_group.required >= podset_group.tree.depth:
        return "node"
    return level_name(podset_group.tree.levels[podset_group.required])


def level_name(label: str) -> str:
    """``cloud.example.com/topology-rack`` reads as ``rack``, the hostname label as ``node``."""
    name = label.rpartition("/")[2]
    name = name.removeprefix("topology-").removeprefix("topology.")
    return "node" if name == "hostname" else name


def plain(podset_group: PodSetGroup) -> dict[str, Any]:
    """The request of a podset group as plain JSON values."""
    level = None
    if podset_group.on_one_node:
        level = podset_group.tree.node_level
    elif podset_group.required != ANYWHERE:
        level = podset_group.tree.levels[podset_group.required]
    return {
        "level": level,
        "pods": [{"count": p.total, "requests": shown(each(p))} for p in podset_group.pods],
    }
