"""Small clusters whose best answer is known and was proved by enumeration.

``BATCH``: gangs in queue order and which of them start. ``PREEMPT``: a full cluster, one gang of higher priority, and its
least victims under each of the two documented layer orders. The node name's first letter is its rack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queuectl.domain.fleet import Node
from queuectl.domain.queues import DEFAULT_VICTIM_ORDER, VictimKey
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, Workload
from tests.planner.build import NOW, gang, holding, node, podset, queue, world

COUNT_FIRST = (VictimKey.MAX_PRIORITY, VictimKey.COUNT, VictimKey.LOST_WORK)
DEFAULT = DEFAULT_VICTIM_ORDER

H100 = {"model": "h100"}
H200 = {"model": "h200"}


def _free(rack: str, count: int, labels: Mapping[str, str] | None = None) -> list[Node]:
    """``count`` idle 8-GPU nodes in one rack."""
    return [node(f"{rack}{i}", rack, gpu=8, labels=labels) for i in range(count)]


def _in_rack(nodes: int, **select: str) -> tuple[PodSet, ...]:
    return (podset("w", nodes, gpu=8, required="rack", select=select),)


@dataclass(frozen=True)
class Batch:
    """Gangs in queue order; ``starts`` lists those that the strict order admits."""

    name: str
    why: str
    nodes: list[Node]
    gangs: list[tuple[PodSet, ...]]
    starts: tuple[bool, ...]

    @property
    def snapshot(self) -> Snapshot:
        pending = [gang(f"g{i}", *p, queued_at=float(i)) for i, p in enumerate(self.gangs)]
        return world(self.nodes, pending)


def _together(name: str, count: int, **amounts: Any) -> PodSet:
    """A podset of the one group that shares a rack."""
    return podset(name, count, required="rack", group="together", **amounts)


BATCH = [
    Batch(
        "launcher needs the workers' rack",
        "b fits the workers tighter, but only a has cpu left for the launcher alongside them",
        [
            node("a0", "a", gpu=8, cpu=10),
            node("a1", "a", gpu=8, cpu=4),
            node("a2", "a", gpu=8, cpu=4),
            node("b0", "b", gpu=8, cpu=4),
            node("b1", "b", gpu=8, cpu=4),
        ],
        [(_together("worker", 2, gpu=8, cpu=4), _together("launcher", 1, cpu=6))],
        (True,),
    ),
    Batch(
        "three podsets in one rack",
        "only b holds the launcher, two servers and three workers at once",
        [
            node("a0", "a", gpu=8, cpu=6),
            node("a1", "a", gpu=8, cpu=6),
            node("a2", "a", gpu=4, cpu=2),
            node("b0", "b", gpu=8, cpu=9),
            node("b1", "b", gpu=8, cpu=5),
            node("b2", "b", gpu=8, cpu=2),
        ],
        [
            (
                _together("worker", 3, gpu=8, cpu=2),
                _together("server", 2, cpu=3),
                _together("launcher", 1, cpu=4),
            )
        ],
        (True,),
    ),
    Batch(
        "sums fit, pods do not",
        "4+4+2 GPUs against 5+5: ten of ten, but no packing exists",
        [node("a0", "a", gpu=5), node("a1", "a", gpu=5)],
        [(_together("x", 2, gpu=4), _together("y", 1, gpu=2))],
        (False,),
    ),
    Batch(
        "best fit decreasing strands a pod",
        "4,3,3,2 on 5 and 7: only 3+2 and 4+3 work",
        [node("a0", "a", gpu=5), node("a1", "a", gpu=7)],
        [(_together("x", 1, gpu=4), _together("y", 2, gpu=3), _together("z", 1, gpu=2))],
        (True,),
    ),
    Batch(
        "only the solver sees how",
        "4,4,3,3,3,3,2,2 on 5,5,7,7: twice 3+2 and twice 4+3; no podset has a single pod to begin with",
        [node(f"a{i}", "a", gpu=free) for i, free in enumerate((5, 5, 7, 7))],
        [(_together("x", 2, gpu=4), _together("y", 4, gpu=3), _together("z", 2, gpu=2))],
        (True,),
    ),
    Batch(
        "flexible gang first",
        "the tightest rack for the first gang is the only one the second may use",
        [*_free("a", 3, H200), *_free("b", 4, H100)],
        [_in_rack(3), _in_rack(3, model="h200")],
        (True, True),
    ),
    Batch(
        "four gangs fill three racks exactly",
        "2,1,4,5 nodes on racks of 5,4,3: only 5 | 4 | 2+1",
        [*_free("a", 5), *_free("b", 4), *_free("c", 3)],
        [_in_rack(2), _in_rack(1), _in_rack(4), _in_rack(5)],
        (True, True, True, True),
    ),
    Batch(
        "best fit blocks the third",
        "3,3,4 on racks of 6 and 4: the first must not take the tighter rack",
        [*_free("a", 6), *_free("b", 4)],
        [_in_rack(3), _in_rack(3), _in_rack(4)],
        (True, True, True),
    ),
    Batch(
        "two podsets, each in some rack",
        "x alone fits a best, but y is eligible nowhere else",
        [*_free("a", 2, H200), *_free("b", 3, H100)],
        [
            (
                podset("x", 2, gpu=8, required="rack"),
                podset("y", 2, gpu=8, required="rack", select=H200),
            )
        ],
        (True,),
    ),
    Batch(
        "divisor chain fills to the last GPU",
        "4,4,2,1,1 on 7 and 5: 4+2+1 and 4+1",
        [node("a0", "a", gpu=7), node("a1", "a", gpu=5)],
        [(_together("x", 2, gpu=4), _together("y", 1, gpu=2), _together("z", 2, gpu=1))],
        (True,),
    ),
    Batch(
        "nested floors refuse",
        "4,4,2 on 7 and 3: ten of ten, but only one four fits",
        [node("a0", "a", gpu=7), node("a1", "a", gpu=3)],
        [(_together("x", 2, gpu=4), _together("y", 1, gpu=2))],
        (False,),
    ),
    Batch(
        "floors mislead off the chain",
        "3+2 on 5 fits, though floor(5/2)*2 is 4",
        [node("a0", "a", gpu=5)],
        [(_together("x", 1, gpu=3), _together("y", 1, gpu=2))],
        (True,),
    ),
    Batch(
        "slices are not torn",
        "six pods in slices of three per rack on 5 and 4: filling the larger rack first leaves one pod over",
        [node("a0", "a", gpu=5), node("b0", "b", gpu=4)],
        [(podset("w", 6, gpu=1, required="block", slices=[("rack", 3)]),)],
        (True,),
    ),
    Batch(
        "enough pods, not enough slices",
        "eight pods fit 5 and 5, but only one slice of four in each rack, and b has room for three",
        [node("a0", "a", gpu=5), node("b0", "b", gpu=3)],
        [(podset("w", 8, gpu=1, required="block", slices=[("rack", 4)]),)],
        (False,),
    ),
    Batch(
        "order beats throughput",
        "the first gang takes 4 of 6 nodes; two later gangs of 3 would use all 6",
        _free("a", 6),
        [_in_rack(4), _in_rack(3), _in_rack(3)],
        (True, False, False),
    ),
]


@dataclass(frozen=True)
class Tenant:
    """A running gang: ``pods`` maps each node to the requests of one pod there; it lost ``seconds`` of work on all its GPUs."""

    name: str
    seconds: int
    pods: dict[str, dict[str, int]]
    priority: int = 0


@dataclass(frozen=True)
class Preempt:
    """One gang ``w`` on a full cluster; ``free`` is the capacity of each node alongside its tenants."""

    name: str
    why: str
    free: dict[str, dict[str, int]]
    tenants: list[Tenant]
    podsets: tuple[PodSet, ...]
    victims: dict[tuple[VictimKey, ...], frozenset[str] | None]
    priority: int = 100

    def snapshot(self, order: tuple[VictimKey, ...]) -> Snapshot:
        running = [self._running(t) for t in self.tenants]
        blocked = gang("w", *self.podsets, priority=self.priority)
        return world(self._nodes(), [blocked], running, queue(order=order))

    def _nodes(self) -> list[Node]:
        made = []
        for name, free in self.free.items():
            amounts: dict[str, Any] = dict(free)
            for tenant in self.tenants:
                for resource, value in tenant.pods.get(name, {}).items():
                    amounts[resource] = amounts.get(resource, 0) + value
            made.append(node(name, name[0], **amounts))
        return made

    @staticmethod
    def _running(tenant: Tenant) -> Admitted:
        uses: dict[str, dict[str, Any]] = {n: dict(use) for n, use in tenant.pods.items()}
        podsets = tuple(podset(f"p-{n}", 1, **use) for n, use in uses.items())
        workload: Workload = gang(tenant.name, *podsets, priority=tenant.priority)
        where = [{n: 1} for n in tenant.pods]
        return holding(workload, *where, started_at=NOW - tenant.seconds)


def _same(*names: str) -> dict[tuple[VictimKey, ...], frozenset[str] | None]:
    return {DEFAULT: frozenset(names), COUNT_FIRST: frozenset(names)}


def _whole(*nodes: str) -> dict[str, dict[str, int]]:
    return {n: {"gpu": 8} for n in nodes}


_FULL: dict[str, int] = {"gpu": 0}

PREEMPT = [
    Preempt(
        "one large beats many small",
        "lowest priority and newest first empties both racks; the two-node job of b loses less and is one gang",
        {"a0": _FULL, "a1": _FULL, "b0": _FULL, "b1": _FULL},
        [
            Tenant("s1", 300, _whole("a0")),
            Tenant("s2", 300, _whole("a1")),
            Tenant("d", 250, _whole("b0", "b1")),
        ],
        _in_rack(2),
        _same("d"),
    ),
    Preempt(
        "a whole node needs both its tenants",
        "two cheap tenants lose less than one dear; counting victims first it is the other way round",
        {"a0": {"gpu": 4}, "a1": _FULL},
        [
            Tenant("dear", 9000, {"a0": {"gpu": 4}}),
            Tenant("c1", 100, {"a1": {"gpu": 4}}),
            Tenant("c2", 100, {"a1": {"gpu": 4}}),
        ],
        (podset("w", 1, gpu=8),),
        {DEFAULT: frozenset({"c1", "c2"}), COUNT_FIRST: frozenset({"dear"})},
    ),
    Preempt(
        "priority before everything",
        "two of priority 0 with much lost work go before one of priority 10 with none",
        {"a0": _FULL, "a1": _FULL, "b0": _FULL, "b1": _FULL},
        [
            Tenant("x1", 50_000, _whole("a0")),
            Tenant("x2", 50_000, _whole("a1")),
            Tenant("y", 1, _whole("b0", "b1"), priority=10),
        ],
        _in_rack(2),
        _same("x1", "x2"),
    ),
    Preempt(
        "a victim that spans two racks counts once",
        "alone it completes b alongside an idle node; in a another would have to go too",
        {"a0": _FULL, "a1": _FULL, "a2": _FULL, "b0": _FULL, "b1": _FULL, "b2": {"gpu": 8}},
        [
            Tenant("span", 400, _whole("a0", "a1", "b0", "b1")),
            Tenant("p", 10, _whole("a2")),
        ],
        _in_rack(3),
        _same("span"),
    ),
    Preempt(
        "no victim without need",
        "the only node that could ever hold the pod runs an equal priority; the lower one frees too little",
        {"a0": _FULL, "b0": _FULL},
        [
            Tenant("h", 1, {"a0": {"gpu": 8}}, priority=10),
            Tenant("l", 1, {"b0": {"gpu": 4}}),
        ],
        (podset("w", 1, gpu=8),),
        {DEFAULT: None, COUNT_FIRST: None},
        priority=10,
    ),
    Preempt(
        "a cpu-only victim unlocks idle GPUs",
        "eight GPUs are idle for lack of cpu; a bound on GPUs alone would miss it",
        {"a0": {"gpu": 8}, "b0": {"cpu": 8}},
        [
            Tenant("cpu", 50, {"a0": {"cpu": 8}}),
            Tenant("gpu", 500, {"b0": {"gpu": 8}}),
        ],
        (podset("w", 1, gpu=8, cpu=8, required="rack"),),
        _same("cpu"),
    ),
    Preempt(
        "the holder of GPUs and the holder of a pod slot",
        "two pod slots, both taken: evicting the GPU job alone frees no slot for two pods",
        {"a0": {"pods": 2}},
        [
            Tenant("gpus", 60, {"a0": {"gpu": 8}}),
            Tenant("slot", 60, {"a0": {"cpu": 1}}),
        ],
        (podset("w", 2, gpu=4),),
        _same("gpus", "slot"),
    ),
    Preempt(
        "eight that started a moment ago or one that ran for hours",
        "the small ones lose little together; counting victims first, one eviction suffices",
        {"a0": _FULL, "b0": _FULL},
        [
            *[Tenant(f"new{i}", 60, {"a0": {"gpu": 1}}) for i in range(8)],
            Tenant("old", 7200, {"b0": {"gpu": 8}}),
        ],
        (podset("w", 1, gpu=8),),
        {
            DEFAULT: frozenset(f"new{i}" for i in range(8)),
            COUNT_FIRST: frozenset({"old"}),
        },
    ),
]
