"""Topologies of sixteen levels, the maximum: required and preferred at each level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.queues import Topology
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, node, podset, world

LABELS = tuple(f"level{i}" for i in range(15))
LEVELS = (*LABELS, HOSTNAME)
NODES = 64


def path(number: int) -> dict[str, str]:
    """A binary tree: the top level is one domain for all, each level below splits in two until nodes are alone."""
    return {label: format(number, "06b")[: min(i, 6)] + "-" for i, label in enumerate(LABELS)}


def deep(*podsets: Any, full: frozenset[int] = frozenset()) -> Snapshot:
    nodes = [node(f"n{i:02}", labels=path(i), gpu=0 if i in full else 1) for i in range(NODES)]
    snapshot = world(nodes, [gang("g", *podsets)])
    config = replace(snapshot.config, topologies={"gpus": Topology("gpus", LEVELS)})
    return replace(snapshot, config=config)


def placed(snapshot: Snapshot) -> list[int] | None:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    if not made.admitted:
        return None
    return [int(name[1:]) for name, _ in made.admitted[0].placement.podsets[0].nodes]


@pytest.mark.parametrize("level", range(15))
def test_a_required_level_holds_as_much_as_its_domains(level: int) -> None:
    most = NODES >> min(level, 6)
    fits = placed(deep(podset(count=most, gpu=1, required=LEVELS[level])))
    assert fits is not None
    assert len({path(n)[LEVELS[level]] for n in fits}) == 1
    assert placed(deep(podset(count=most + 1, gpu=1, required=LEVELS[level]))) is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64])
def test_a_preferred_level_relaxes_to_the_narrowest_that_holds_all(count: int) -> None:
    found = placed(deep(podset(count=count, gpu=1, preferred=HOSTNAME)))
    assert found is not None
    level = 6 - (count - 1).bit_length()
    assert len({path(n)[LABELS[level]] for n in found}) == 1


@pytest.mark.parametrize("free", [(1, 3, 4), (0, 8, 9, 63), (5, 6, 40, 41, 42)])
def test_the_fewest_domains_are_used_at_every_level_on_the_way_down(free: tuple[int, ...]) -> None:
    """Pairs of the remaining capacities, against all pairs."""
    full = frozenset(range(NODES)) - set(free)
    found = placed(deep(podset(count=2, gpu=1), full=full))
    assert found is not None

    def widths(nodes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(len({path(n)[label] for n in nodes}) for label in LABELS)

    pairs = [(a, b) for a in free for b in free if a < b]
    assert widths(tuple(found)) == min(map(widths, pairs))


def test_slices_work_at_three_of_sixteen_levels() -> None:
    slices = [(LABELS[2], 8), (LABELS[4], 4), (LABELS[5], 2)]
    full = frozenset({1, 12, 35, 50})
    found = placed(deep(podset(count=32, gpu=1, slices=slices), full=full))
    assert found is not None
    for label, size in slices:
        for at in range(0, 32, size):
            assert len({path(n)[label] for n in found[at : at + size]}) == 1
