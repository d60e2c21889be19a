"""The fewest nodes to repair or uncordon so that a gang fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from queuectl.domain.changes import HealNodes, is_cordoned
from queuectl.domain.diagnosis import Remedy, Way
from queuectl.domain.words import counted
from queuectl.planner.explain.offer import Idea, offer
from queuectl.planner.explain.trial import World, ask, books, past_heads, quota_alone
from queuectl.planner.explain.turn import Turn
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.reasons.words import some

_SPARED: Final = 64  # nodes tried one by one whether they can be spared
_NAMED: Final = 4  # nodes called by name in a sentence, with what ails them
_DOMAINS: Final = 4  # in which healing is tried


def heal_nodes(turn: Turn) -> Iterator[Way]:
    """A smallest set of nodes that are out, in the sense that none of them can be spared."""
    if quota_alone(turn):
        return
    world = replace(past_heads(turn), uncounted=None)
    everywhere = ask(turn, replace(world, well=True))
    if not everywhere.fits or everywhere.request is None:
        return
    ill = _ill(turn)
    free = books(turn, world).free()
    for candidates in _choices(everywhere.request, ill, free):
        nodes = _spare(turn, world, candidates)
        if nodes is None:
            continue
        names = tuple(turn.problem.index.nodes[i].name for i in nodes)
        message = f"bring back {counted(len(names), 'node')}: {_said(turn, names)}"
        change = HealNodes(turn.uid, names)
        details = {"nodes": list(names)}
        mended = replace(past_heads(turn), mended=_mask(turn, nodes))
        idea = Idea(Remedy.HEAL_NODES, message, details, (change,), least=len(nodes) == 1)
        yield from offer(turn, mended, idea)
        return


def _ill(turn: Turn) -> Mask:
    index = turn.problem.index
    cordoned = np.array([is_cordoned(n) or bool(n.taints) for n in index.nodes], dtype=np.bool_)
    ill: Mask = ~index.ready | cordoned
    ill[[index.position[n] for n in turn.pending.excluded if n in index.position]] = True
    return ill


def _choices(request: GangRequest, ill: Mask, free: Ints) -> Iterator[list[int]]:
    """Candidate nodes, the most useful last: of the domain that needs fewest first, then of the whole fleet."""
    if not request.units:
        return
    unit = max(request.units, key=lambda u: (u.required, u.pods[0].count))
    pods = unit.bundle if unit.on_one_node and unit.bundle is not None else unit.pods[0]
    room = caps(free, pods.shape)
    gain = np.where(ill, room, 0)
    useful = np.flatnonzero(np.where(ill, sum(caps(free, p.shape) for p in request.pods), 0))
    if unit.required != ANYWHERE and not unit.on_one_node:
        domain = unit.tree.domain[unit.required]
        counted_on = [
            (_fewest(gain[domain == d], int(room[(domain == d) & ~ill].sum()), pods.count), d)
            for d in np.unique(domain[useful]).tolist()
            if d >= 0
        ]
        for _, d in sorted(c for c in counted_on if c[0] is not None)[:_DOMAINS]:
            inside = useful[domain[useful] == d]
            yield _by_gain(inside, gain)
    yield _by_gain(useful, gain)


def _fewest(gains: Ints, there: int, count: int) -> int | None:
    """How many nodes make up for what a domain lacks, the largest first; None = all of them do not."""
    total = np.cumsum(np.sort(gains)[::-1]) + there
    if there >= count:
        return 0
    return int(np.searchsorted(total, count)) + 1 if len(total) and total[-1] >= count else None


def _by_gain(nodes: Ints, gain: Ints) -> list[int]:
    return sorted(nodes.tolist(), key=lambda i: (gain[i], -i))


def _spare(turn: Turn, world: World, candidates: list[int]) -> list[int] | None:
    """The candidates less those that can be spared, the least useful first; None when all of them do not help."""

    def enough(nodes: list[int]) -> bool:
        return ask(turn, replace(world, mended=_mask(turn, nodes))).fits

    if not candidates or not enough(candidates):
        return None
    low, high = 0, len(candidates) - 1  # drop as many of the least useful as possible
    while low < high:
        middle = (low + high + 1) // 2
        if enough(candidates[middle:]):
            low = middle
        else:
            high = middle - 1
    left = candidates[low:]
    for node in left[:_SPARED]:
        without = [n for n in left if n != node]
        if without and enough(without):
            left = without
    return sorted(left)


def _mask(turn: Turn, nodes: list[int]) -> Mask:
    mask = np.zeros(turn.problem.size, dtype=np.bool_)
    mask[nodes] = True
    return mask


def _said(turn: Turn, names: tuple[str, ...]) -> str:
    parts = []
    for name in names:
        node = turn.snapshot.fleet.by_name[name]
        why = "not ready" if not node.ready else "cordoned" if is_cordoned(node) else ""
        why = why or ("refused by kube-scheduler" if name in turn.pending.excluded else "tainted")
        parts.append(f"{name} ({why})")
    return some(parts, _NAMED)
