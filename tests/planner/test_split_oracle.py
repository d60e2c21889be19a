"""Splits against brute force on clusters of two flavors and a few nodes: found exactly if one exists, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Proof
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import (
    Workload,
)
from queuectl.planner import plan
from tests.planner.build import gang, podset, world
from tests.planner.splits import A, B, on, splitting, started
from tests.support.examples import examples

MANY = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Asked:
    """A gang of one podset: this many pods of this many GPUs each, in one rack or anywhere."""

    pods: int
    gpu: int
    mode: str  # required, preferred or nothing

    def gang(self, uid: str, at: float) -> Workload:
        level: dict[str, Any] = {self.mode: "rack"} if self.mode else {}
        return gang(uid, podset(count=self.pods, gpu=self.gpu, **level), queued_at=at)


@dataclass(frozen=True)
class Tiny:
    """A cluster small enough to try everything.

    Attributes:
        nodes: GPUs, model and rack of each.
        quota: GPUs of each flavor.
        anywhere: the second flavor has no labels, so it may use the nodes of the first as well.
    """

    nodes: tuple[tuple[int, str, str], ...]
    quota: tuple[int, int]
    anywhere: bool

    def world(self, *asked: Asked, split: bool = True) -> Snapshot:
        fleet = [on(m, f"n{i}", rack, size) for i, (size, m, rack) in enumerate(self.nodes)]
        main = splitting(split=split)
        (group,) = main.groups
        flavors = tuple(
            replace(f, nominal={**f.nominal, GPU: gpus})
            for f, gpus in zip(group.flavors, self.quota, strict=True)
        )
        main = replace(main, groups=(replace(group, flavors=flavors),))
        known = (A, replace(B, node_labels=()) if self.anywhere else B)
        gangs = [a.gang(f"g{at}", at) for at, a in enumerate(asked)]
        return world(fleet, gangs, (), main, flavors=known)

    def fits(self, *gangs: tuple[Asked, tuple[int, int]]) -> bool:
        """Whether gangs run together, each with this many pods of either flavor."""
        used = [sum(counts[k] * asked.gpu for asked, counts in gangs) for k in (0, 1)]
        if any(u > limit for u, limit in zip(used, self.quota, strict=True)):
            return False
        racks = [("r", "s") if asked.mode == "required" else ("",) for asked, _ in gangs]
        models = ("a", "" if self.anywhere else "b")
        return any(
            holds(
                tuple(
                    (count, asked.gpu, model, rack)
                    for (asked, counts), rack in zip(gangs, chosen, strict=True)
                    for count, model in zip(counts, models, strict=True)
                ),
                tuple(sorted(self.nodes)),
            )
            for chosen in product(*racks)
        )

    def best(
        self, asked: Asked, *kept: tuple[Asked, tuple[int, int]], split: bool = True
    ) -> tuple[int, int] | None:
        """Pods by flavor alongside gangs that keep theirs: whole if that is possible, otherwise the most of the first."""
        order = [asked.pods, 0, *(range(asked.pods - 1, 0, -1) if split else ())]
        ways = ((first, asked.pods - first) for first in order)
        return next((way for way in ways if self.fits(*kept, (asked, way))), None)


@cache
def holds(
    pods: tuple[tuple[int, int, str, str], ...], nodes: tuple[tuple[int, str, str], ...]
) -> bool:
    """Whether pods (number, GPUs, model and rack they need) fit nodes (free GPUs, model, rack): everything is tried."""
    if not pods:
        return True
    (count, gpu, model, rack), rest = pods[0], pods[1:]
    if not count:
        return holds(rest, nodes)
    for at, (free, kind, place) in enumerate(nodes):
        if free >= gpu and model in ("", kind) and rack in ("", place):
            left = tuple(sorted((*nodes[:at], (free - gpu, kind, place), *nodes[at + 1 :])))
            if holds(((count - 1, gpu, model, rack), *rest), left):
                return True
    return False


machines = st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.sampled_from("rs"))
limits = st.sampled_from([2, 4, 5, 99])
tiny = st.builds(
    Tiny,
    st.lists(machines, min_size=1, max_size=6).map(tuple),
    st.tuples(limits, limits),
    st.booleans(),
)
asked = st.builds(
    Asked,
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from(["", "required", "preferred"]),
)


def pods_of(snapshot: Snapshot, uid: str) -> tuple[int, int] | None:
    found = started(snapshot, uid)
    return None if found is None else (found.get("a", 0), found.get("b", 0))


@settings(MANY)
@given(tiny, asked, st.booleans())
def test_the_split_is_the_best_that_brute_force_finds(
    cluster: Tiny, one: Asked, split: bool
) -> None:
    snapshot = cluster.world(one, split=split)
    assert plan(snapshot).proof is Proof.OPTIMAL
    assert pods_of(snapshot, "g0") == cluster.best(one, split=split)


@settings(MANY)
@given(tiny, asked, asked)
def test_a_split_alongside_a_kept_gang_moves_it_if_needed(
    cluster: Tiny, first: Asked, second: Asked
) -> None:
    """The first keeps its flavors, not its nodes."""
    snapshot = cluster.world(first, second)
    kept = cluster.best(first)
    assert pods_of(snapshot, "g0") == kept
    beside = [] if kept is None else [(first, kept)]
    assert pods_of(snapshot, "g1") == cluster.best(second, *beside)


@settings(MANY)
@given(tiny, asked, asked)
def test_a_gang_is_never_split_unless_the_queue_allows_it(
    cluster: Tiny, first: Asked, second: Asked
) -> None:
    """And where it does, a gang that fits whole has exactly the placement that it has without."""
    without = plan(cluster.world(first, second, split=False))
    assert all(not p.shares for a in without.admitted for p in a.placement.podsets)
    alone = plan(cluster.world(first, split=False)).admitted
    if alone:
        assert plan(cluster.world(first)).admitted == alone
