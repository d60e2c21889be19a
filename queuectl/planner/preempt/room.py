"""Rows of the exact model of one target domain and one shape of pod: which gangs leave so that enough pods fit.

Nodes alike in tenants and free amounts are one *cell*; a cell whose nodes have a single tenant gains all or nothing with
it, any other has a variable for the pods each of its nodes gains.
"""

from __future__ import annotations

from collections.abc import Iterable

from queuectl.planner.preempt.ground import Ground
from queuectl.planner.preempt.model import VictimModel


def model_ground(building: VictimModel, ground: Ground, nodes: Iterable[int]) -> None:
    """Rows by which the victims make room for the ground's need on some of its nodes."""
    if ground.need <= 0:
        return
    cover: dict[int, int] = {}
    for node, alike in _cells(ground, nodes):
        tenants = ground.tenants[node]
        if len(tenants) == 1:
            (gang,) = tenants
            gained = building.of[gang]
            cover[gained] = cover.get(gained, 0) + alike * ground.delta[node]
        else:
            cover[_gain_variable(building, ground, node)] = alike
    coeffs = list(cover.values())
    reach = sum(c * building.model.bounds[v][1] for v, c in cover.items())
    building.model.row(list(cover), coeffs, ground.need, reach)


def _cells(ground: Ground, nodes: Iterable[int]) -> Iterable[tuple[int, int]]:
    """One node of each class of nodes alike, and how many there are."""
    cells: dict[object, list[int]] = {}
    for node in nodes:
        there = tuple(sorted(ground.tenants[node].items()))
        cells.setdefault((ground.left[node], ground.delta[node], there), []).append(node)
    return ((alike[0], len(alike)) for alike in cells.values())


def _gain_variable(building: VictimModel, ground: Ground, node: int) -> int:
    """Pods one node gains, bounded by who leaves it.

    Beside the capacity rows, each tenant without whom less would be gained bounds the gain by himself: that is what
    makes the relaxation tight. Where these rows say it all, the capacity rows are left out.
    """
    model = building.model
    tenants, delta, left = ground.tenants[node], ground.delta[node], ground.left[node]
    hinted = ground.gain(node, building.hinted or ())
    gain = building.var(0, delta, hinted)
    needed = []
    plain = True
    for gang, without in ground.without(node).items():
        if without < delta:
            needed.append(gang)
            plain &= without == 0
            model.row([gain, building.of[gang]], [1, without - delta], -delta, without)
    if plain and ground.gain(node, needed) == delta:
        return gain
    opened = -1
    if min(left) < 0:
        opened = building.var(0, 1, int(hinted > 0))
        model.row([gain, opened], [1, -delta], -delta, 0)
    for column, have in enumerate(left):
        variables = [gain, *(building.of[g] for g in tenants)]
        coeffs = [ground.ask[column], *(-held[column] for held in tenants.values())]
        if have < 0:
            variables.append(opened)
            coeffs.append(-have)
        model.at_most(variables, coeffs, max(have, 0))
    return gain
