"""Small clusters that combine all features: flavors, cohorts, groups, slices, partial gangs, victims and protections.

Drawn evenly from a seed, so that two processes make the same ones and no shape is rare.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LabelSelector,
    Protection,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, Workload
from tests.planner.build import (
    NOW,
    PLENTY,
    RESOURCES,
    gang,
    holding,
    node,
    podset,
    resources,
    world,
)
from tests.planner.generate import FreeNodes

MODELS = ("h100", "a100")
QUEUES = ("red", "blue")


def mixed(seed: int) -> Snapshot:
    """Up to ten nodes in up to four racks, up to six running gangs and five pending ones in two queues of a cohort."""
    rng = random.Random(seed)
    fleet = _fleet(rng)
    split = rng.random() < 0.4
    flavors = _flavors(split)
    running = _running(rng, fleet, split)
    pending = [_gang(rng, f"w{i}") for i in range(rng.randint(2, 5))]
    queues = [_queue(rng, name, [f.name for f in flavors]) for name in QUEUES]
    snapshot = world(fleet, pending, running, *queues, flavors=flavors)
    return replace(snapshot, config=replace(snapshot.config, cohorts={"all": Cohort("all")}))


def _fleet(rng: random.Random) -> list[Node]:
    racks = ["b1/r1", "b1/r2", "b2/r1", "b2/r2"][: rng.randint(2, 4)]
    return [
        node(
            f"n{i}",
            rng.choice(racks),
            gpu=rng.choice((4, 8, 8)),
            cpu=rng.choice((8, 16, 32)),
            labels={"model": rng.choice(MODELS)},
            ready=rng.random() > 0.05,
        )
        for i in range(rng.randint(4, 10))
    ]


def _flavors(split: bool) -> list[ResourceFlavor]:
    if not split:
        return [ResourceFlavor("default", topology="gpus")]
    return [ResourceFlavor(model, (("model", model),), topology="gpus") for model in MODELS]


def _running(rng: random.Random, fleet: Sequence[Node], split: bool) -> list[Admitted]:
    room = FreeNodes(fleet)
    found = []
    for i in range(rng.randint(0, 6)):
        gpu, cpu = rng.choice(((1, 1), (2, 2), (4, 0), (8, 4), (0, 4)))
        model = rng.choice(MODELS)
        names = [n.name for n in fleet if not split or n.labels["model"] == model]
        where: dict[str, int] = {}
        for _ in range(rng.randint(1, 3) if names else 0):
            name = rng.choice(names)
            if room.take(name, resources(pods=1, gpu=gpu, cpu=cpu)):
                where[name] = where.get(name, 0) + 1
        if not where:
            continue
        workload = gang(
            f"r{i}",
            podset("p", sum(where.values()), gpu=gpu, cpu=cpu),
            priority=rng.choice((0, 0, 1, 3)),
            queue=rng.choice(QUEUES),
            preemptible=rng.random() > 0.1,
        )
        flavor = model if split else "default"
        age = rng.choice((5, 50, 500))
        found.append(holding(workload, where, flavor=flavor, started_at=NOW - age))
    return found


def _gang(rng: random.Random, uid: str) -> Workload:
    level = rng.choice(("block", "rack", "rack", HOSTNAME))
    together: dict[str, Any] = rng.choice(({}, {"required": level}, {"preferred": level}))
    group = "g" if together and rng.random() < 0.5 else None
    sets = [
        _podset(rng, f"p{i}", together if group or rng.random() < 0.6 else {}, group)
        for i in range(rng.choice((1, 1, 2, 3)))
    ]
    return gang(
        uid,
        *sets,
        priority=rng.randint(0, 4),
        queued_at=float(rng.randint(0, 5)),
        queue=rng.choice(QUEUES),
    )


def _podset(rng: random.Random, name: str, together: dict[str, Any], group: str | None) -> PodSet:
    shape: dict[str, Any] = {}
    count = rng.choice((1, 2, 3, 4))
    if group is None and rng.random() < 0.25 and together.get("required") in (None, "block"):
        shape, count = {"slices": (("rack", 2),)}, rng.choice((2, 4))
    made = podset(
        name,
        count,
        gpu=rng.choice((0, 1, 2, 4, 8)),
        cpu=rng.choice((1, 2, 4)),
        group=group,
        **shape,
        **({} if shape and "preferred" in together else together),
    )
    if not shape and count > 1 and rng.random() < 0.2:
        made = replace(made, min_count=rng.randint(1, count - 1))
    return made


def _queue(rng: random.Random, name: str, flavors: Sequence[str]) -> ClusterQueue:
    gpus = rng.choice((8, 16, 64))
    nominal = dict.fromkeys(RESOURCES, PLENTY) | dict(resources(gpu=gpus))
    limited = list(resources(gpu=1))
    quotas = tuple(
        FlavorQuotas(
            f,
            nominal,
            dict.fromkeys(limited, rng.choice((0, 4, 8))) if rng.random() < 0.5 else {},
            dict.fromkeys(limited, rng.choice((0, 4, 8))) if rng.random() < 0.3 else {},
        )
        for f in flavors
    )
    return ClusterQueue(
        name,
        (ResourceGroup(RESOURCES, quotas),),
        rng.choice((QueueingStrategy.BEST_EFFORT_FIFO, QueueingStrategy.STRICT_FIFO)),
        rng.choice(
            (
                WithinClusterQueue.NEVER,
                WithinClusterQueue.LOWER_PRIORITY,
                WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY,
            )
        ),
        namespace_selector=LabelSelector(),
        cohort=rng.choice(("all", "all", None)),
        protection=Protection(min_runtime=rng.choice((0.0, 0.0, 20.0))),
    )
