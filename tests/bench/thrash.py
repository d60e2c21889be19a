"""The load of :mod:`tests.bench.bench_thrash`: gangs of equal priority in four queues that borrow from each other and reclaim.

300 gangs of ``round(2^U(0, 6))`` pods; 1, 2, 4 or 8 GPUs a pod with weights 50, 25, 15, 10; each runs for a uniform number
of whole seconds from 5 to 60. They arrive one after the other, the time between two of them exponential with mean 0.4 s. Half of them
require, and a quarter prefer, one domain: a rack if the gang fits 128 GPUs, otherwise a block. Gang *i* is in queue *i* mod 4 of one
cohort; each queue owns a quarter of the 1,024 GPUs and reclaims what it lent from any borrower.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import NodeSpec
from tests.bench.stage import BLOCK, RACK

SEEDS: Final = (1, 2, 3)
GANGS: Final = 300
QUEUES: Final = tuple(f"team-{i}" for i in range(4))
SIZES: Final = ((1, 1), (2, 4), (5, 16), (17, 64))  # pods, from and to: rows of the table
NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=16)
GPUS: Final = NODES.count * NODES.gpus
_RACK_GPUS: Final = 128


@dataclass(frozen=True, slots=True)
class Gang:
    """``at``: seconds after the first moment; ``runtime``: seconds it must run without being evicted."""

    at: float
    name: str
    queue: str
    pods: int
    gpus: int
    runtime: int
    document: Document

    @property
    def work(self) -> int:
        """GPU-seconds."""
        return self.pods * self.gpus * self.runtime

    @property
    def size(self) -> str:
        """Its row of the table."""
        low, high = next(row for row in SIZES if row[0] <= self.pods <= row[1])
        return f"{low}" if low == high else f"{low}-{high}"


@dataclass(frozen=True, slots=True)
class Fate:
    """The times of a gang, in seconds after the first moment.

    Attributes:
        began: when all its pods ran for the first time.
        ended: when it was done.
        lost: GPU-seconds its pods had run when they were evicted, over all evictions.
        restarts: how often that happened.
    """

    gang: Gang
    began: float
    ended: float
    lost: float = 0.0
    restarts: int = 0


def config(policy: Document | None = None, reclaim: str = "Any") -> list[Document]:
    """The queues.

    Args:
        policy: their ``spec.policy``; None leaves it out.
        reclaim: their ``reclaimWithinCohort``.
    """
    documents = [m.topology("gpus", BLOCK, RACK), m.flavor("gpu", topology="gpus")]
    for name in QUEUES:
        quotas: dict[str, int | str] = {"nvidia.com/gpu": GPUS // len(QUEUES), "cpu": "1M"}
        queue = m.cluster_queue(name, "gpu", quotas, within="Never")
        queue["spec"] |= {"cohortName": "all"}
        queue["spec"]["preemption"]["reclaimWithinCohort"] = reclaim
        if policy is not None:
            queue["spec"]["policy"] = policy
        documents += [queue, m.local_queue(name, name, name)]
    return documents


def gangs(seed: int) -> Iterator[Gang]:
    """The load of one seed, in order of arrival."""
    draw = random.Random(seed)
    at = 0.0
    for i in range(GANGS):
        at += draw.expovariate(1 / 0.4)
        pods = round(2 ** draw.uniform(0, 6))
        gpus = draw.choices((1, 2, 4, 8), (50, 25, 15, 10))[0]
        runtime = draw.randint(5, 60)
        level = RACK if pods * gpus <= _RACK_GPUS else BLOCK
        how = draw.random()
        asked = PodSetManifest(
            pods,
            gpus=gpus,
            required=level if how < 0.5 else None,
            preferred=level if 0.5 <= how < 0.75 else None,
        )
        name, queue = f"gang-{i:03}", QUEUES[i % len(QUEUES)]
        document = m.job(name, queue, queue, asked, seconds=runtime)
        yield Gang(at, name, queue, pods, gpus, runtime, document)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, or the medians of several.

    Attributes:
        wall: seconds from the first moment until every gang was done.
        useful: share of the GPUs' time until then in which they did work that was not lost.
        lost: GPU-seconds.
        evicted: gangs that were evicted at all.
        waits: size to the mean seconds from arrival until the gang ran for good.
        first: size to the mean seconds from arrival until all pods ran for the first time.
    """

    wall: float
    useful: float
    lost: float
    evicted: float
    restarts: float
    waits: dict[str, float]
    first: dict[str, float]


def figures(fates: Iterable[Fate]) -> Figures:
    """Of one run."""
    known = list(fates)
    wall = max(f.ended for f in known)
    waits: dict[str, list[float]] = {}
    first: dict[str, list[float]] = {}
    for f in known:
        waits.setdefault(f.gang.size, []).append(f.ended - f.gang.runtime - f.gang.at)
        first.setdefault(f.gang.size, []).append(f.began - f.gang.at)
    return Figures(
        wall,
        sum(f.gang.work for f in known) / GPUS / wall,
        sum(f.lost for f in known),
        sum(f.restarts > 0 for f in known),
        sum(f.restarts for f in known),
        {size: statistics.fmean(all_) for size, all_ in waits.items()},
        {size: statistics.fmean(all_) for size, all_ in first.items()},
    )


def medians(runs: list[Figures]) -> Figures:
    """Of several runs, figure by figure."""

    def median(read: Callable[[Figures], float]) -> float:
        return statistics.median(map(read, runs))

    return Figures(
        median(lambda run: run.wall),
        median(lambda run: run.useful),
        median(lambda run: run.lost),
        median(lambda run: run.evicted),
        median(lambda run: run.restarts),
        {size: statistics.median(run.waits[size] for run in runs) for size in runs[0].waits},
        {size: statistics.median(run.first[size] for run in runs) for size in runs[0].first},
    )


def row(name: str, found: Figures) -> tuple[str, ...]:
    """A line under :data:`HEAD`."""
    names = [f"{low}" if low == high else f"{low}-{high}" for low, high in SIZES]
    return (
        name,
        f"{found.lost:,.0f}",
        f"{found.useful:.1%}",
        f"{found.wall:.0f}",
        f"{found.evicted:.0f}; {found.restarts:.0f}",
        ", ".join(f"{found.waits[size]:.1f}" for size in names),
        ", ".join(f"{found.first[size]:.1f}" for size in names),
    )


HEAD: Final = (
    "run",
    "lost, GPU-s",
    "useful",
    "wall, s",
    "evicted; restarts",
    f"wait by pods {', '.join(f'{low}-{high}' for low, high in SIZES)}, s",
    "until it first ran, s",
)
