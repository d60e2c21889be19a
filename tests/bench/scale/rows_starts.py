"""Rows about starts: many small gangs, one large gang, and a gang that cannot start."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from tests.bench.scale.fleet import GENERATIONS, GPUS_PER_NODE, HALL
from tests.bench.scale.gangs import NORMAL, Gang, pods_of
from tests.bench.scale.rows import Row, RowFigures, register
from tests.bench.scale.stage import RowCutError, ScaleStage
from tests.bench.scale.times import LEASES, median, percentile

GANGS: Final = 1000
ARRIVAL_SECONDS: Final = 120.0
LARGE_GANG: Final = 4096
REFUSALS: Final = 10
_POLL_SECONDS: Final = 0.02
_FULL_SIZE: Final = 2400
"""Nodes from which on a load is not scaled."""


def small_gangs(stage: ScaleStage, reached: RowFigures) -> None:
    """Gangs of 8 to 16 pods of one GPU, one rack each, that run for 30 s and arrive over two minutes."""
    fleet = stage.fleet
    number = GANGS if fleet.nodes >= _FULL_SIZE else max(10, GANGS * fleet.nodes // _FULL_SIZE)
    if number < GANGS:
        reached.note(f"{number} gangs, in proportion to the nodes")
    teams = fleet.teams()
    gangs = [
        Gang(
            f"small-{i:04}",
            teams[i % len(teams)],
            8 + i * 7 % 9,
            1,
            required=RACK,
            seconds=30,
            priority=NORMAL,
        )
        for i in range(number)
    ]
    reached.note(f"{pods_of(gangs):,} pods")
    began = time.time()
    try:
        stage.submit_over(gangs, ARRIVAL_SECONDS)
        stage.wait_bound(gangs)
        stage.wait_bound(gangs, running=True)
    finally:
        add_starts(stage, reached, gangs, began)


def large_gang(stage: ScaleStage, reached: RowFigures) -> None:
    """One gang of 4,096 pods of one GPU."""
    free = max(free_gpus(stage).values(), default=0)
    pods = min(LARGE_GANG, free // GPUS_PER_NODE * GPUS_PER_NODE)
    if pods < LARGE_GANG:
        reached.note(f"{pods:,} pods, which is what is free of one flavor")
    gang = Gang("large", stage.fleet.teams()[0], pods, 1, priority=NORMAL)
    began = time.time()
    try:
        stage.submit([gang])
        stage.wait_bound([gang])
        stage.wait_bound([gang], running=True)
    finally:
        add_starts(stage, reached, [gang], began)
        nodes = nodes_of(stage, [gang])
        reached.add("nodes of the gang", len(nodes))


def refusals(stage: ScaleStage, reached: RowFigures) -> None:
    """Gangs with enough free GPUs in all, but not in one domain: seconds until the status says that."""
    level, product, pods, free = impossible(free_nodes(stage))
    reached.note(
        f"{pods:,} pods of {GPUS_PER_NODE} GPUs in one domain of {level}; {free:,} nodes are free in all"
    )
    seconds: list[float] = []
    try:
        for number in range(REFUSALS):
            gang = Gang(
                f"impossible-{number}",
                stage.fleet.teams()[number],
                pods,
                GPUS_PER_NODE,
                product=product,
                required=level,
            )
            began = time.monotonic()
            stage.submit([gang])
            while (reason := stage.system.refusal(gang)) is None:
                if time.monotonic() > stage.deadline:
                    raise RowCutError(f"{len(seconds)} of {REFUSALS} gangs have a reason")
                time.sleep(_POLL_SECONDS)
            seconds.append(time.monotonic() - began)
            reached.note(f"reason: {reason}") if number == 0 else None
    finally:
        reached.add("submitted to a reason, median", median(seconds), "s")
        reached.add("submitted to a reason, slowest", max(seconds, default=float("nan")), "s")


def add_starts(stage: ScaleStage, reached: RowFigures, gangs: Sequence[Gang], began: float) -> None:
    """Figures of starts: submission to all pods bound and running, rates, writes for each gang and pod.

    ``began``: unix seconds of the first submission. Also of a row that was cut.
    """
    timeline = stage.follow()
    for running, state in ((False, "bound"), (True, "running")):
        whole = {gang.key: timeline.whole(gang.key, gang.pods, running=running) for gang in gangs}
        ends = {key: at for key, at in whole.items() if at is not None}
        seconds = [
            at - timeline.submitted[key] for key, at in ends.items() if key in timeline.submitted
        ]
        if len(gangs) > 1:
            reached.add(f"gangs {state}", len(ends))
            reached.add(f"submitted to all pods {state}, mean", _mean(seconds), "s")
            reached.add(f"submitted to all pods {state}, p50", median(seconds), "s")
            reached.add(f"submitted to all pods {state}, p99", percentile(seconds, 0.99), "s")
        else:
            reached.add(f"submitted to all pods {state}", median(seconds), "s")
        if ends:
            reached.add(f"the last pod is {state} after", max(ends.values()) - began, "s")
    pods = timeline.pods_bound(gang.key for gang in gangs)
    reached.add("pods bound", pods)
    if pods:
        times = [at for gang in gangs for at in timeline.bound.get(gang.key, {}).values()]
        reached.add("pods bound per second", pods / max(1e-9, max(times) - began))
        reached.add("writes per gang", timeline.all_writes(without=(LEASES,)) / len(gangs))


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds) if seconds else float("nan")


# ---- What is free


def free_nodes(stage: ScaleStage) -> dict[str, list[dict[str, str]]]:
    """The labels of the nodes without pods, by product."""
    used = {pod["spec"].get("nodeName") for pod in _pods(stage)}
    free: dict[str, list[dict[str, str]]] = defaultdict(list)
    for spec in stage.fleet.node_specs():
        for node in spec.documents():
            if node["metadata"]["name"] not in used:
                labels = node["metadata"]["labels"]
                free[labels[PRODUCT]].append(labels)
    return free


def free_gpus(stage: ScaleStage) -> dict[str, int]:
    """GPUs that no pod requests, by flavor."""
    free = dict(stage.fleet.capacity())
    flavors = {generation.product: generation.flavor for generation in GENERATIONS}
    products = {
        node["metadata"]["name"]: node["metadata"]["labels"][PRODUCT]
        for spec in stage.fleet.node_specs()
        for node in spec.documents()
    }
    for pod in _pods(stage):
        if (node := pod["spec"].get("nodeName")) is not None:
            requests = pod["spec"]["containers"][0]["resources"].get("requests", {})
            free[flavors[products[node]]] -= int(requests.get("nvidia.com/gpu", 0))
    return free


def impossible(free: dict[str, list[dict[str, str]]]) -> tuple[str, str, int, int]:
    """A gang of whole nodes for which enough nodes are free in all, but in no domain of a level.

    Returns:
        The level, the product, the number of pods, and the free nodes of the product.

    Raises:
        ValueError: there is no such gang.
    """
    for level in (RACK, BLOCK, HALL):
        for product, nodes in free.items():
            domains: dict[str, int] = defaultdict(int)
            for labels in nodes:
                domains[labels[level]] += 1
            largest = max(domains.values(), default=0)
            if 0 < largest < len(nodes) and largest < _nodes_per_domain(level):
                return level, product, largest + 1, len(nodes)
    raise ValueError("each level has a domain in which all free nodes are")


def _nodes_per_domain(level: str) -> int:
    """A bound that a domain with used nodes does not reach; the smallest is a rack."""
    return 10**9 if level != RACK else 16


def nodes_of(stage: ScaleStage, gangs: Iterable[Gang]) -> set[str]:
    """The nodes of the pods of some gangs."""
    jobs = {gang.key for gang in gangs}
    return {
        pod["spec"]["nodeName"]
        for team in {gang.team for gang in gangs}
        for pod in _pods(stage, team)
        if pod["spec"].get("nodeName") and job_of(pod) in jobs
    }


def job_of(pod: dict[str, Any]) -> str:
    """``namespace/name`` of the Job of a pod."""
    metadata = pod["metadata"]
    return f"{metadata['namespace']}/{metadata.get('labels', {}).get('job-name', '')}"


def _pods(stage: ScaleStage, namespace: str | None = None) -> list[dict[str, Any]]:
    """All pods, in pages: the client ends a request after 30 s."""
    path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
    pods: list[dict[str, Any]] = []
    more = ""
    while True:
        page = stage.cluster.client.get(path, limit="1000", **({"continue": more} if more else {}))
        pods += page["items"]
        if not (more := page["metadata"].get("continue", "")):
            return pods


register(
    Row("a", "1,000 gangs of 8 to 16 pods of 1 GPU, one rack each, over two minutes", small_gangs),
    Row("b", "one gang of 4,096 pods of 1 GPU", large_gang),
    Row("c", "a gang that no domain has room for: submission to the reason", refusals),
)
