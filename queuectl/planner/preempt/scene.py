"""One shape of pod, one topology level: what evictions could gain in each domain, and the least they must cost.

``cap`` is the pods of the shape that fit a node; ``need`` the pods a domain is short of. Nodes do not interact, so a
domain is viable exactly when the caps with every candidate gone reach the count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.fleet import NodeRules
from queuectl.domain.quantity import NOTHING
from queuectl.planner.placement.single import Capacity
from queuectl.planner.preempt.parts import Part
from queuectl.planner.preempt.roster import Bench, Rows
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Mask

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Scene:
    """What the candidates can free for ``count`` pods of ``shape``.

    Attributes:
        free: (R, N) before anybody is evicted.
        cap: pods that fit each node now. Shape (N,).
        delta: pods more that fit each node with all candidates gone. Shape (N,).
        domain: domain of each node, -1 for none. Shape (N,).
        need: pods each domain is short of; 0 or less = none. Shape (D,).
        viable: domains that could hold the gang. Shape (D,).
        rows: what candidates hold of nodes that could gain, in viable domains.
    """

    shape: Shape
    count: int
    free: Ints
    cap: Ints
    delta: Ints
    domain: Ints
    need: Ints
    viable: Mask
    rows: Rows


def domains_of(part: Part) -> tuple[Ints, int]:
    """Domain of each node at the part's level (-1 = none), and how many domains there are."""
    tree, level = part.tree, part.level
    size = len(tree.position)
    visible = tree.position < size
    if level == ANYWHERE:
        return np.where(visible, 0, -1), 1
    if level < tree.depth:
        return tree.domain[level], len(tree.names[level])
    return np.where(visible, np.arange(size, dtype=np.int64), -1), size


def holding(part: Part, shape: Shape, fits: Ints) -> Ints:
    """Pods of a shape that each domain of a part holds, in whole slices if it has any, given how many fit each node."""
    if not shape.slices:
        return sums(*domains_of(part), fits)
    return Capacity(part.tree, fits, shape.slices).holding(part.level)


def sums(domain: Ints, domains: int, per_node: Ints) -> Ints:
    """Exact sum of a per-node quantity over each domain."""
    inside = domain >= 0
    totals = np.zeros(domains, dtype=np.int64)
    np.add.at(totals, domain[inside], per_node[inside])
    return totals


def scene_of(part: Part, shape: Shape, free: Ints, bench: Bench) -> Scene:
    """Set the scene for one shape of a part and all candidates of the bench."""
    count = dict(part.counts)[shape]
    domain, domains = domains_of(part)
    cap = caps(free, shape)
    most = caps(free + bench.freed(free.shape[1]), shape)
    viable = holding(part, shape, most) >= count
    delta = np.where((domain >= 0) & viable[domain], most - cap, 0)
    need = count - sums(domain, domains, cap)
    columns = list(shape.columns)
    rows = bench.rows.select(delta[bench.rows.node] > 0)
    rows = rows.select((rows.use[columns] > 0).sum(axis=0) > 0)
    return Scene(shape, count, free, cap, delta, domain, need, viable, rows)


def empty_scene(bench: Bench) -> Scene:
    """The scene of a gang that needs no node: one domain, nothing to gain in it."""
    none = np.zeros(0, dtype=np.int64)
    nowhere = np.zeros(0, dtype=np.bool_)
    nothing = Shape(-1, NOTHING, NodeRules(), none, (), nowhere)
    free = np.zeros((len(bench.rows.use), 0), dtype=np.int64)
    rows = bench.rows.select(np.zeros(len(bench.rows.gang), dtype=np.bool_))
    need, viable = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.bool_)
    return Scene(nothing, 0, free, none, none, none, need, viable, rows)


def gains(scene: Scene) -> Floats:
    """Per row, an upper bound on the pods a node gains by that gang's exit; sums over victims bound the real gain.

    Each node is judged by the one resource that bounds it most tightly, the same for all its tenants (two tenants that
    each free another resource must not hide each other). What the node has left of it beyond whole pods is credited to
    every tenant that frees some of it, since any of them may be the one that completes a pod.
    """
    if not len(scene.rows.gang):
        return np.zeros(0)
    columns = list(scene.shape.columns)
    ask = scene.shape.vector[columns][:, None]
    left = np.maximum(scene.free[columns] - ask * scene.cap, 0)
    freed = np.zeros_like(left)
    for into, row in zip(freed, scene.rows.use[columns], strict=True):
        np.add.at(into, scene.rows.node, row)
    tightest = np.argmin((left + freed) / ask, axis=0)[scene.rows.node]
    at = np.arange(len(tightest))
    use = scene.rows.use[columns][tightest, at]
    spare = left[tightest, scene.rows.node]
    per_pod = ask[tightest, 0]
    gain = np.where((use > 0) | (spare >= per_pod), (use + spare) / per_pod, 0.0)
    return np.minimum(gain, scene.delta[scene.rows.node])


@dataclass(frozen=True, eq=False, slots=True)
class Offers:
    """What each gang could gain in each domain: (domain, gang, gain) triples, one per pair."""

    domain: Ints
    gang: Ints
    gain: Floats

    def at(self, domain: int) -> Offers:
        """Those of one domain."""
        here = self.domain == domain
        return Offers(self.domain[here], self.gang[here], self.gain[here])


def offers(scene: Scene, bench: Bench) -> Offers:
    """Sum the gains of each gang over the nodes of each domain."""
    key = scene.domain[scene.rows.node] * max(bench.size, 1) + scene.rows.gang
    pairs, at = np.unique(key, return_inverse=True)
    gain: Floats = np.zeros(len(pairs))
    np.add.at(gain, at, gains(scene))
    useful = gain > 0
    pairs, gain = pairs[useful], gain[useful]
    return Offers(pairs // max(bench.size, 1), pairs % max(bench.size, 1), gain)


def floors(scene: Scene, offer: Offers, weight: Ints) -> Floats:
    """Least cost of filling each domain's need, as a fractional knapsack; infinite where it cannot be filled.

    A bound from below: a little is taken off for rounding.
    """
    density = weight[offer.gang] / offer.gain
    order = np.lexsort((density, offer.domain))
    domain, gain, price = offer.domain[order], offer.gain[order], density[order]
    domains = len(scene.need)
    total = np.cumsum(gain)
    first = np.searchsorted(domain, np.arange(domains))
    before = np.concatenate([[0.0], total])[first]
    filled = total - before[domain] - gain
    need = np.maximum(scene.need, 0).astype(np.float64)
    taken = np.clip(need[domain] - filled, 0.0, gain)
    cost = np.bincount(domain, weights=taken * price, minlength=domains)
    floor = cost * (1.0 - 1e-9) - 1e-3
    return np.where(scene.viable, floor, np.inf)
