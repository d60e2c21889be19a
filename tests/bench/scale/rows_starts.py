"""Rows about starts: many small gangs, one large gang, and a gang that cannot start."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from tests.bench.scale.fill import fill_of
from tests.bench.scale.fleet import GENERATIONS, GPUS_PER_NODE, Fleet
from tests.bench.scale.gangs import NORMAL, Gang, pods_of
from tests.bench.scale.rows import Row, RowFigures, register
from tests.bench.scale.stage import PodLine, RowCutError, ScaleStage
from tests.bench.scale.systems import Floor
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
    check_starts(stage, gangs)


def large_gang(stage: ScaleStage, reached: RowFigures) -> None:
    """One gang of 4,096 pods of one GPU."""
    pods = min(LARGE_GANG, largest_free_flavor(stage.fleet))
    if pods < LARGE_GANG:
        reached.note(f"{pods:,} pods, which are the free GPUs of one flavor")
    gang = Gang("large", stage.fleet.teams()[0], pods, 1, priority=NORMAL)
    began = time.time()
    try:
        stage.submit([gang])
        stage.wait_bound([gang])
        stage.wait_bound([gang], running=True)
    finally:
        add_starts(stage, reached, [gang], began)
        nodes = {pod.node for pod in stage.list_pods(gang.team) if pod.job == gang.key}
        reached.add("nodes of the gang", len(nodes - {None}))
    check_starts(stage, [gang])


def refusals(stage: ScaleStage, reached: RowFigures) -> None:
    """Gangs with enough free GPUs in all, but not in one domain: seconds until the status states that."""
    free = free_nodes(stage.fleet, stage.pods)
    product, pods = impossible(stage.fleet, free)
    reached.note(
        f"{pods:,} pods of {GPUS_PER_NODE} GPUs of {product} in one block, where {len(free[product]):,} nodes are free in all"
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
                required=BLOCK,
            )
            began = time.monotonic()
            stage.submit([gang])
            while (reason := stage.system.refusal(gang)) is None:
                if time.monotonic() > stage.deadline:
                    raise RowCutError(f"{len(seconds)} of {REFUSALS} gangs have a reason")
                time.sleep(_POLL_SECONDS)
            seconds.append(time.monotonic() - began)
            if number == 0:
                reached.note(f"reason: {reason}")
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


def check_starts(stage: ScaleStage, gangs: Iterable[Gang]) -> None:
    """Check that each gang has all its pods on nodes, or none, and is in its required domain. The floor starts no gangs.

    Raises:
        AssertionError: naming the first gangs that are not.
    """
    if stage.system.name == Floor.name:
        return
    labels = {
        node["metadata"]["name"]: node["metadata"]["labels"]
        for spec in stage.fleet.node_specs()
        for node in spec.documents()
    }
    nodes: dict[str, list[str]] = defaultdict(list)
    for team in {gang.team for gang in gangs}:
        for pod in stage.list_pods(team):
            if pod.node is not None and not pod.terminating:
                nodes[pod.job].append(pod.node)
    problems = []
    for gang in gangs:
        placed = nodes[gang.key]
        if len(placed) not in (0, gang.pods):
            problems.append(f"{gang.key} has {len(placed)} of {gang.pods} pods on nodes")
        domains = {labels[node][gang.required] for node in placed} if gang.required else set()
        if len(domains) > 1:
            problems.append(f"{gang.key} is in {len(domains)} domains of {gang.required}")
    assert not problems, "; ".join(problems[:5])


# ---- Free nodes and GPUs


def free_nodes(fleet: Fleet, pods: Iterable[PodLine]) -> dict[str, list[dict[str, str]]]:
    """The labels of the nodes without pods, by product."""
    used = {pod.node for pod in pods}
    free: dict[str, list[dict[str, str]]] = defaultdict(list)
    for spec in fleet.node_specs():
        for node in spec.documents():
            if node["metadata"]["name"] not in used:
                labels = node["metadata"]["labels"]
                free[labels[PRODUCT]].append(labels)
    return free


def largest_free_flavor(fleet: Fleet) -> int:
    """The free GPUs of the flavor of which most are free after the fill."""
    free = {generation.product: fleet.capacity()[generation.flavor] for generation in GENERATIONS}
    for gang in fill_of(fleet).gangs:
        assert gang.product is not None
        free[gang.product] -= gang.all_gpus
    return max(free.values())


def impossible(fleet: Fleet, free: Mapping[str, Sequence[Mapping[str, str]]]) -> tuple[str, int]:
    """A gang of whole nodes for which enough nodes are free in all, but not in one block.

    It fits an empty block, so that the refusal is about what is free. A generation that has little room is taken first.

    Returns:
        The product and the number of pods.

    Raises:
        ValueError: no such gang exists.
    """
    smallest = min(spec.count for spec in fleet.node_specs())
    for generation in reversed(GENERATIONS):
        nodes = free.get(generation.product, ())
        largest = max(Counter(labels[BLOCK] for labels in nodes).values(), default=0)
        if largest < min(len(nodes), smallest):
            return generation.product, largest + 1
    raise ValueError("no generation has free nodes in several blocks, and no block that is empty")


register(
    Row("a", "1,000 gangs of 8 to 16 pods of 1 GPU, one rack each, over two minutes", small_gangs),
    Row("b", "one gang of 4,096 pods of 1 GPU", large_gang),
    Row(
        "c",
        "a gang that no domain has room for: submission to the reason",
        refusals,
        lists_pods=True,
    ),
)
