"""Snapshots of quota alone, for tests of the order in which gangs are considered: one flavor, one resource, no nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queuectl.domain.fleet import Fleet
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, Workload
from tests.planner.build import FLAVOR, NOW, podset, resources

GPUS = "nvidia.com/gpu"


def quotas(
    gpus: int, *, flavor: str = FLAVOR, borrowing: int | None = None, lending: int | None = None
) -> FlavorQuotas:
    return FlavorQuotas(
        flavor,
        {GPUS: gpus},
        {} if borrowing is None else {GPUS: borrowing},
        {} if lending is None else {GPUS: lending},
    )


def group(*flavors: FlavorQuotas) -> tuple[ResourceGroup, ...]:
    return (ResourceGroup((GPUS,), flavors),)


def cq(
    name: str, gpus: int | FlavorQuotas = 0, cohort: str | None = "all", **rest: Any
) -> ClusterQueue:
    """A ClusterQueue of one flavor, unless ``groups`` is given. Its gangs evict borrowers at once."""
    offered = quotas(gpus) if isinstance(gpus, int) else gpus
    made = ClusterQueue(
        name,
        group(offered),
        cohort=cohort,
        namespace_selector=LabelSelector(),
        reclaim_patience=0.0,
    )
    return replace(made, **rest)


def cohort(name: str, gpus: int = 0, parent: str | None = None, **rest: Any) -> Cohort:
    return Cohort(name, parent, group(quotas(gpus)) if gpus else (), **rest)


def gpus(
    name: str, amount: int, queue: str, at: float = 0.0, priority: int = 0, **rest: Any
) -> Workload:
    """A gang of one pod in LocalQueue ``queue``."""
    one: tuple[PodSet, ...] = (podset(gpu=amount),)
    one = (replace(one[0], shape=replace(one[0].shape, requests=resources(gpu=amount))),)
    return Workload(name, "Job", "team", name, one, queue, priority, at, **rest)


def running(name: str, amount: int, queue: str, flavor: str = FLAVOR, **rest: Any) -> Admitted:
    placed = Placement((PodSetPlacement("w", (), {GPUS: flavor}),))
    return Admitted(gpus(name, amount, queue, priority=rest.pop("priority", 0)), placed, **rest)


def quota_only(
    queues: Sequence[ClusterQueue],
    pending: Sequence[Workload | Pending],
    admitted: Sequence[Admitted] = (),
    *,
    cohorts: Sequence[Cohort] = (),
    rules: Rules | None = None,
    locals_: Mapping[str, str] | None = None,
    flavors: Sequence[str] = (FLAVOR,),
    **rest: Any,
) -> Snapshot:
    """``locals_``: further LocalQueues and the ClusterQueues they lead to; each ClusterQueue has one of its name."""
    names = {q.name: q.name for q in queues} | dict(locals_ or {})
    config = QueueConfig(
        1,
        {q.name: q for q in queues},
        {("team", local): LocalQueue("team", local, name) for local, name in names.items()},
        {name: ResourceFlavor(name) for name in flavors},
        cohorts={c.name: c for c in cohorts},
        rules=rules or Rules(),
    )
    entries = tuple(p if isinstance(p, Pending) else Pending(p) for p in pending)
    return Snapshot(
        NOW, Fleet(()), config, entries, tuple(admitted), namespaces={"team": {}}, **rest
    )
