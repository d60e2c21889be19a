"""The scene, the events and the record of a history: the values that tests of whole histories use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Plan, PreemptionReason
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    StopPolicy,
    Topology,
)
from queuectl.domain.reasons import Code
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Snapshot
from tests.planner.build import FLAVOR, LEVELS, NOW

NAMESPACE = "team"
POOL = "pool"  # node label
USER = "user"  # key of the gang label that names the user
PRIORITIES = range(6)


# Events.


@dataclass(frozen=True)
class Arrives:
    """A gang is submitted.

    Attributes:
        drain: seconds its pods take to end once it is evicted.
        rack: it requires one rack.
        pool: the pool of the nodes it requires, in a scene that has pools.
        name: None = it is numbered.
        user: the user that submits it, in a scene with users.
        least: of an elastic Job: the pods of its gang. Those above it are added one by one; None = all start together.
    """

    queue: str
    gpus: int = 1
    pods: int = 1
    priority: int = 0
    drain: float = 0.0
    rack: bool = False
    pool: str | None = None
    name: str | None = None
    user: str | None = None
    least: int | None = None


@dataclass(frozen=True)
class Ends:
    """One of the running gangs succeeds; the steps take them in rotation."""

    which: int | str = 0


@dataclass(frozen=True)
class IsDeleted:
    """One of the gangs is deleted; one that is pending for its victims if there is any."""

    which: int | str = 0


@dataclass(frozen=True)
class NodeFails:
    """Its pods are lost, those that were ending there too."""

    which: int = 0


@dataclass(frozen=True)
class NodeReturns:
    which: int = 0


@dataclass(frozen=True)
class QuotaIs:
    queue: str
    gpus: int


@dataclass(frozen=True)
class Stops:
    queue: str
    policy: StopPolicy = StopPolicy.HOLD


@dataclass(frozen=True)
class Resumes:
    """A stopped queue starts again."""

    queue: str


@dataclass(frozen=True)
class Idles:
    """One of the running gangs leaves its GPUs idle until it is started again."""

    which: int | str = 0


@dataclass(frozen=True)
class Works:
    """One of the idle gangs computes again."""

    which: int | str = 0


Event = (
    Arrives | Ends | IsDeleted | NodeFails | NodeReturns | QuotaIs | Stops | Resumes | Idles | Works
)


@dataclass(frozen=True)
class Step:
    event: Event
    then: float = 1.0  # seconds until the next step


@dataclass(frozen=True)
class Scene:
    """The setting.

    Attributes:
        nodes: GPUs of each node, on two racks alternately; empty = quota only.
        pools: of each node its pool, which is a flavor as well; empty = one flavor for all.
        slots: pods that a node takes.
    """

    queues: tuple[ClusterQueue, ...]
    cohorts: tuple[Cohort, ...] = ()
    nodes: tuple[int, ...] = ()
    rules: Rules = Rules()
    pools: tuple[str, ...] = ()
    slots: int = 110

    def config(self) -> QueueConfig:
        topology = "gpus" if self.nodes else None
        return QueueConfig(
            1,
            {q.name: q for q in self.queues},
            {(NAMESPACE, q.name): LocalQueue(NAMESPACE, q.name, q.name) for q in self.queues},
            {
                name: ResourceFlavor(name, ((POOL, name),) if self.pools else (), topology=topology)
                for name in self.pools or (FLAVOR,)
            },
            {"gpus": Topology("gpus", LEVELS)},
            {f"p{n}": n for n in PRIORITIES},
            {c.name: c for c in self.cohorts},
            self.rules,
        )


@dataclass(frozen=True)
class Story:
    scene: Scene
    steps: tuple[Step, ...]


# Recorded events.


@dataclass(frozen=True)
class Cycle:
    """One plan that was carried out. ``outside``: number of outside events before it."""

    snapshot: Snapshot
    made: Plan
    outside: int

    @property
    def now(self) -> float:
        return self.snapshot.now


@dataclass(frozen=True)
class Started:
    """It starts, or has new nodes for the pods that it lost."""

    at: float
    uid: str


@dataclass(frozen=True)
class Evicted:
    """``preemptor``: of a preemption, else ""; ``ran_since``: when the attempt started; ``outside`` as in :class:`Cycle`.

    ``why``: of a preemption, its reason.
    """

    at: float
    uid: str
    code: Code
    ran_since: float
    preemptor: str = ""
    outside: int = 0
    why: str = ""


@dataclass(frozen=True)
class Warned:
    """That it does not use its GPUs."""

    at: float
    uid: str


@dataclass(frozen=True)
class Outside:
    """An event from outside, and the uid of the affected gang, "" if none."""

    at: float
    event: Event
    uid: str = ""


@dataclass
class History:
    """All recorded decisions, in order.

    Attributes:
        drains: seconds each gang's pods take to end.
        last: the snapshot at the end.
        entries: the ledger then.
        unasked: the result of one more cycle then, without any trigger.
    """

    scene: Scene
    cycles: list[Cycle] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    evicted: list[Evicted] = field(default_factory=list)
    outside: list[Outside] = field(default_factory=list)
    warned: list[Warned] = field(default_factory=list)
    drains: dict[str, float] = field(default_factory=dict)
    last: Snapshot | None = None
    unasked: Plan = field(default_factory=Plan)
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def preempted(self) -> list[Evicted]:
        return [e for e in self.evicted if e.code is Code.PREEMPTED]

    @property
    def idle_ones(self) -> list[Evicted]:
        """The gangs evicted for idle GPUs."""
        return [
            e
            for e in self.evicted
            if e.code is Code.IDLE_RECLAIMED or e.why == PreemptionReason.IDLE
        ]

    def queue_of(self, uid: str) -> str:
        return uid.partition("-")[0]

    def drain_of(self, uid: str) -> float:
        """Seconds that the pods of a gang take to end; of a pod that was added to a gang, as those of the gang."""
        return self.drains[uid.partition(".")[0]]

    def running(self) -> set[str]:
        return {e.uid for e in self.entries.values() if e.state.live}

    def waiting(self) -> set[str]:
        return {e.uid for e in self.entries.values() if e.state.waiting}

    def story(self) -> str:
        """Line by line, for the message of a failure."""
        lines: list[tuple[float, int, str]] = []
        lines += [(o.at, 0, f"{o.event} {o.uid}") for o in self.outside]
        lines += [
            (e.at, 1, f"evicted {e.uid} {e.code} {e.why} {e.preemptor}") for e in self.evicted
        ]
        lines += [(s.at, 2, f"started {s.uid}") for s in self.started]
        lines += [(w.at, 3, f"warned {w.uid}") for w in self.warned]
        return "\n".join(f"{at - NOW:10.0f}  {text}" for at, _, text in sorted(lines))
