"""Small snapshots of two flavors for the tests of splitting: nodes, queues, and the pods of a gang by flavor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queuectl.domain.fleet import Node
from queuectl.domain.plan import Admission, Plan
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    ResourceFlavor,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import (
    FlavorShare,
    Placement,
    PodSetPlacement,
)
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import node, podset, queue

A = ResourceFlavor("a", (("model", "a"),), topology="gpus")
B = ResourceFlavor("b", (("model", "b"),), topology="gpus")
C = ResourceFlavor("c", (("model", "c"),), topology="gpus")


def on(model: str, name: str, where: str = "b/r", gpu: int = 4, **more: Any) -> Node:
    return node(name, where, gpu=gpu, labels={"model": model}, **more)


def splitting(*flavors: str, split: bool = True, **quotas: Any) -> ClusterQueue:
    return replace(queue(flavors=flavors or ("a", "b"), **quotas), split_flavors=split)


def charged(*pods: tuple[int, str]) -> tuple[FlavorShare, ...]:
    """Shares of so many pods, all of a share's resources in one flavor."""
    names = podset(gpu=1).shape.requests
    return tuple(FlavorShare(count, dict.fromkeys(names, name)) for count, name in pods)


def by_flavor(placed: PodSetPlacement) -> dict[str, int]:
    """GPU flavor to pods, in rank order."""
    return {part.flavors[GPU]: part.count for part in placed.by_share()}


def started(snapshot: Snapshot, uid: str = "g") -> dict[str, int] | None:
    """Pods by flavor of the gang's first podset; None while it is pending. The plan must verify."""
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    found = [a for a in made.admitted if a.uid == uid]
    return by_flavor(found[0].placement.podsets[0]) if found else None


def broken(snapshot: Snapshot, placed: PodSetPlacement) -> set[PlanRule]:
    """The rules that the verifier finds broken by a plan that starts gang ``g`` there."""
    start = Admission("g", Placement((placed,)))
    return {v.rule for v in verify(snapshot, Plan(admitted=(start,)))}
