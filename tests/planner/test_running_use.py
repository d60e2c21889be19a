"""The verifier counts what running gangs use from one plan to the next; the sums are those of a count afresh."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from queuectl.domain.snapshot import Admitted
from queuectl.planner.verify.running_use import Charges, KnownUse, RunningUse
from tests.planner.mixed import mixed


class Counts:
    """Charges of gangs, and for which gangs they were asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __call__(self, gang: Admitted) -> Charges:
        self.asked[gang.workload.uid] += 1
        queue = gang.workload.namespace
        return tuple(
            ((queue, flavor, resource), placed.count)
            for placed in gang.placement.podsets
            for resource, flavor in sorted(placed.flavors.items())
        )


def sums(use: RunningUse) -> tuple[object, object]:
    quota = {row: amount for row, amount in use.quota.items() if amount}
    nodes = {
        node: {resource: amount for resource, amount in row.items() if amount}
        for node, row in use.nodes.items()
    }
    return quota, nodes


def gangs(seed: int) -> list[Admitted]:
    return [gang for at in range(3) for gang in mixed(3 * seed + at).admitted]


def changed(gang: Admitted, random: Random, others: list[Admitted]) -> Admitted:
    """The same gang, or a new record of it, sometimes with another placement."""
    if random.random() < 0.8:
        return gang
    placement = random.choice((gang, gang, random.choice(others))).placement
    return replace(gang, leaving=random.random() < 0.3, placement=placement)


@pytest.mark.parametrize("seed", range(40))
def test_sums_after_any_changes_are_those_of_a_count_afresh(seed: int) -> None:
    random, known, pool = Random(seed), KnownUse(), gangs(seed)
    for _ in range(25):
        pool = [changed(gang, random, pool) for gang in pool]
        running = [gang for gang in pool if random.random() < 0.7]
        has_nodes = random.random() < 0.95
        use = known.of(running, Counts(), has_nodes=has_nodes)
        assert sums(use) == sums(RunningUse(has_nodes).followed_by(running, Counts()))


def test_only_gangs_that_come_or_move_are_charged_again() -> None:
    first, *rest = gangs(0)
    known, counts = KnownUse(), Counts()
    known.of([first, *rest], counts, has_nodes=True)
    counts.asked.clear()
    known.of([replace(first, leaving=True), *rest], counts, has_nodes=True)
    assert not counts.asked
    moved = replace(first, placement=replace(first.placement))
    known.of([moved, *rest], counts, has_nodes=True)
    assert list(counts.asked) == [first.workload.uid]


def test_a_node_without_running_gangs_is_forgotten() -> None:
    known = KnownUse()
    assert known.of(gangs(0), Counts(), has_nodes=True).nodes
    assert not known.of([], Counts(), has_nodes=True).nodes
