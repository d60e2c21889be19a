"""The gangs that occupy the cluster before a row, with the sizes of a published trace.

They run until the row ends. Their sizes are those of `tests/bench/data/itp-2021`: a moment of its clusters has jobs of a size in
proportion to their number times their run time. The newest generation is full, and the older ones have room, the oldest most. Each team
uses its part of each flavor, except for the owner of the newest generation (`Fleet.owner`): others borrow its quota there. Each gang selects
a block, so that each block of a generation has the same room, whatever the system prefers: rows begin with the same cluster.

Gangs with larger pods are created first, and the next size after their pods are bound. All sizes divide the GPUs of a node, so each gang
fits, even if a scheduler spreads small pods over all nodes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster.nodes import RACK
from tests.bench.scale.fleet import (
    GENERATIONS,
    GPUS_PER_NODE,
    NEWEST,
    Fleet,
    Generation,
    department_of,
)
from tests.bench.scale.gangs import Gang, gpus_of, pods_of

SIZES: Final = Path(__file__).parents[1] / "data" / "itp-2021" / "sizes.csv"
FULL: Final = 0.75
PARTS: Final = {"b200": 1.0, "h200": 0.95, "h100": 0.9}
"""The used part of each flavor; the oldest has the rest, and thus room for a gang of 4,096 GPUs from 2,500 nodes on."""


def size_shares(file: Path = SIZES) -> dict[int, float]:
    """The part of the used GPUs that jobs of each size hold, by the GPUs of the job."""
    with file.open() as lines:
        held = {
            int(row["gpus"]): int(row["gpus"]) * int(row["seconds"])
            for row in csv.DictReader(lines)
        }
    total = sum(held.values())
    return {gpus: seconds / total for gpus, seconds in held.items()}


def counts(gpus: int, shares: Mapping[int, float]) -> dict[int, int]:
    """The number of jobs of each size that hold exactly so many GPUs; jobs of one GPU take the rest."""
    jobs = {size: int(gpus * share / size) for size, share in shares.items() if size > 1}
    rest = gpus - sum(size * number for size, number in jobs.items())
    return dict(sorted({**jobs, 1: rest}.items(), reverse=True))


@dataclass(frozen=True, slots=True)
class Fill:
    """The gangs of a fill in phases: the gangs of a phase are created after the pods of the phase before are bound."""

    phases: tuple[tuple[Gang, ...], ...]

    @property
    def gangs(self) -> list[Gang]:
        """All gangs."""
        return [gang for phase in self.phases for gang in phase]

    @property
    def pods(self) -> int:
        """Of all gangs."""
        return pods_of(self.gangs)

    @property
    def gpus(self) -> int:
        """Of all gangs."""
        return gpus_of(self.gangs)

    def summary(self) -> str:
        """Gangs, pods and GPUs, apart."""
        gangs = self.gangs
        whole = sum(gang.pods for gang in gangs if gang.gpus == GPUS_PER_NODE)
        return (
            f"{len(gangs):,} gangs of {self.pods:,} pods, {whole:,} of them with {GPUS_PER_NODE} GPUs,"
            f" on {self.gpus:,} GPUs"
        )


def fill_of(fleet: Fleet) -> Fill:
    """The fill of a fleet; always the same."""
    capacity = fleet.capacity()
    used = {flavor: int(capacity[flavor] * part) for flavor, part in PARTS.items()}
    used[GENERATIONS[0].flavor] = round(FULL * fleet.gpus) - sum(used.values())
    gangs: list[Gang] = []
    for generation in GENERATIONS:
        gangs += _of_flavor(fleet, generation, used[generation.flavor])
    sizes = sorted({gang.gpus for gang in gangs}, reverse=True)
    return Fill(tuple(tuple(gang for gang in gangs if gang.gpus == gpus) for gpus in sizes))


def _of_flavor(fleet: Fleet, generation: Generation, gpus: int) -> list[Gang]:
    """The gangs of one flavor, largest first. Each is of the team and the block that are furthest below their parts."""
    left = _targets(fleet, generation, gpus)
    blocks = fleet.blocks(generation)
    room = {block: capacity * gpus / sum(blocks.values()) for block, capacity in blocks.items()}
    gangs: list[Gang] = []
    for size, number in counts(gpus, size_shares()).items():
        for _ in range(number):
            team = max(left, key=left.__getitem__)
            left[team] -= size
            block = max(room, key=room.__getitem__)
            room[block] -= size
            name = f"fill-{generation.flavor}-{len(gangs):05}"
            gangs.append(_gang(name, team, generation.product, block, size))
    return gangs


def _targets(fleet: Fleet, generation: Generation, gpus: int) -> dict[str, float]:
    """The GPUs that each team is to use in a flavor."""
    quotas = {team: quota[generation.flavor] for team, quota in fleet.quotas().items()}
    if generation != NEWEST:
        return {team: quota * gpus / sum(quotas.values()) for team, quota in quotas.items()}
    # Only other departments borrow from the owner, in equal parts.
    owner = fleet.owner
    borrowers = [team for team in quotas if department_of(team) != department_of(owner)]
    borrowed = (gpus - sum(quotas.values()) + quotas.pop(owner)) / len(borrowers)
    return {team: quota + borrowed * (team in borrowers) for team, quota in quotas.items()}


def _gang(name: str, team: str, product: str, block: str, gpus: int) -> Gang:
    pods = max(1, gpus // GPUS_PER_NODE)
    return Gang(
        name,
        team,
        pods,
        gpus // pods,
        product=product,
        block=block,
        preferred=RACK if pods > 1 else None,
    )


ONES: Final = 7_500
"""Gangs of eight one-GPU pods on 10,000 nodes."""
_ONES_PODS: Final = 8


def ones_of(fleet: Fleet) -> Fill:
    """60,000 one-GPU pods on 10,000 nodes, in gangs of eight, on equal parts of the quota of all teams."""
    left = {
        (team, flavor): float(quota)
        for team, quotas in fleet.quotas().items()
        for flavor, quota in quotas.items()
    }
    products = {generation.flavor: generation.product for generation in GENERATIONS}
    gangs: list[Gang] = []
    for number in range(fleet.scaled(ONES)):
        team, flavor = max(left, key=left.__getitem__)
        left[team, flavor] -= _ONES_PODS
        gangs.append(Gang(f"ones-{number:05}", team, _ONES_PODS, 1, product=products[flavor]))
    return Fill((tuple(gangs),))


FILLS: Final[dict[str, Callable[[Fleet], Fill]]] = {"mix": fill_of, "ones": ones_of}
"""By name: what occupies the cluster before a row."""
