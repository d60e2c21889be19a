"""From the objects of a cluster to an observation: the planner answers which of the waiting gangs fit together now.

The objects become a Snapshot as those of ``queuectl plan -f`` do, so that the state, the plan, its verification and its reasons are those
of the leader. An object that cannot be read is left out alone, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

from queuectl.control.checked_plan import CheckedPlan
from queuectl.control.contained_plan import planned_around
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.plan import Admission
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.shadow import (
    MOST_GANGS,
    MOST_SEEN,
    GangName,
    Observation,
    SeenGang,
    UnboundGang,
    WaitingGang,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Placement, PodSet, Workload, gpus_of
from queuectl.objects.documents import Document
from queuectl.objects.errors import Address, DocumentError
from queuectl.objects.kinds import KINDS, JobKinds
from queuectl.offline.inputs import SnapshotInput, read_snapshot
from queuectl.offline.slots import Binding
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.reports.node_gpus import HeldGpus, cluster_gpus, sizes_of

_CLUSTER: Final = "the cluster"
_MOST_REFUSED: Final = 20
"""Objects that one observation leaves out for the first time: each one costs another reading of all objects."""
_MOST_AGAIN: Final = 10
"""Objects that could not be read, have changed since, and are tried again in one observation."""
_MOST_NAMED: Final = 100
"""Objects that were left out whose reasons are recorded."""
Body = dict[str, Any]


class _Refusal(NamedTuple):
    """Why an object cannot be read at a version."""

    version: str
    why: str


@dataclass
class ClusterObserver:
    """Makes observations of the objects of a cluster, and remembers the objects that it could not read.

    Attributes:
        limits: of the planner.
        kinds: of jobs.
        stop: ends a plan early; that observation is not decided.
        setting: the configuration and the namespaces of the last observation, without nodes, gangs and pods; None before the first one.
    """

    limits: SolverLimits
    kinds: JobKinds = field(default_factory=lambda: KINDS)
    stop: StopSignal = field(default_factory=StopSignal)
    setting: Snapshot | None = None
    _refused: dict[str, _Refusal] = field(default_factory=dict)  # by object

    def observation(self, bodies: Sequence[Body], now: float) -> Observation:
        """The observation that these objects show.

        Args:
            bodies: of the cluster and of the configuration, with kind and apiVersion.
            now: unix seconds.

        Raises:
            DocumentError: more than twenty objects cannot be read for the first time. The next call leaves these out.
        """
        reading, left_out = self._read(bodies, now)
        snapshot = replace(reading.snapshot, limits=self.limits)
        cache = PlannerCache()
        physical, free = _gpus(snapshot, cache)
        gangs = {gang.workload.uid: gang for gang in snapshot.admitted}
        unbound = list(_unbound(reading.bindings, gangs, snapshot))
        waiting: list[WaitingGang] = []
        decided = True
        if snapshot.pending:
            checked = planned_around(snapshot, self.stop, cache)
            waiting, decided = list(_waiting(checked)), checked.usable
        further = max(0, len(waiting) - MOST_GANGS) + max(0, len(unbound) - MOST_GANGS)
        if further:
            left_out = (*left_out, f"{further} gangs beyond the first {MOST_GANGS}")
        in_trace = sorted(_seen(reading.bindings, snapshot), key=lambda one: one.age)
        if len(in_trace) > MOST_SEEN:
            more = f"{len(in_trace) - MOST_SEEN} gangs beyond the first {MOST_SEEN} of the trace"
            left_out = (*left_out, more)
        self.setting = Snapshot(
            now=now,
            fleet=Fleet(()),
            config=snapshot.config,
            namespaces=snapshot.namespaces,
            limits=self.limits,
        )
        return Observation(
            at=now,
            gpus=physical,
            free=free,
            waiting=tuple(waiting[:MOST_GANGS]),
            unbound=tuple(unbound[:MOST_GANGS]),
            decided=decided,
            left_out=left_out,
            gangs=tuple(in_trace[:MOST_SEEN]),
            nodes=tuple(_nodes(snapshot)),
        )

    def _read(self, bodies: Sequence[Body], now: float) -> tuple[SnapshotInput, tuple[str, ...]]:
        """The snapshot, and the reasons why objects are not in it."""
        present = dict(map(_identity, bodies))
        self._refused = {key: one for key, one in self._refused.items() if key in present}
        changed = [key for key, one in self._refused.items() if one.version != present[key]]
        for key in changed[:_MOST_AGAIN]:
            del self._refused[key]
        for left in reversed(range(_MOST_REFUSED + 1)):
            documents = [
                Document(Address(_CLUSTER, number, name=_name(body)), body)
                for number, body in enumerate(bodies, 1)
                if _identity(body)[0] not in self._refused
            ]
            try:
                reading = read_snapshot(documents, now, self.kinds)
            except DocumentError as error:
                number = error.address.number
                if not 1 <= number <= len(bodies):
                    raise
                body = bodies[number - 1]
                key, version = _identity(body)
                if key in self._refused:
                    raise
                self._refused[key] = _Refusal(version, f"{_name(body)}: {error.reason}")
                if not left:
                    raise
            else:
                return reading, tuple(sorted(r.why for r in self._refused.values())[:_MOST_NAMED])
        raise AssertionError("the last pass returns or raises")


def _identity(body: Mapping[str, Any]) -> tuple[str, str]:
    """An object, and its version. Documents of the catalog are their own version."""
    meta = body.get("metadata") or {}
    version = meta.get("resourceVersion")
    return f"{_name(body)} {meta.get('uid', '')}", str(body if version is None else version)


def _name(body: Mapping[str, Any]) -> str:
    meta = body.get("metadata") or {}
    parts = (body.get("kind"), meta.get("namespace"), meta.get("name"))
    return "/".join(str(part) for part in parts if part)


def _gpus(snapshot: Snapshot, cache: PlannerCache) -> tuple[float, float]:
    """All GPUs of the nodes, and the free ones. Pods without a node hold none."""
    whole, nodes = cluster_gpus(snapshot, cache), snapshot.fleet.by_name
    gpus_of_gangs = HeldGpus(snapshot, sizes_of(snapshot, cache))
    held, elsewhere = Fraction(), Fraction()
    for gang in snapshot.admitted:
        for name, _, gpus in gpus_of_gangs.parts(gang):
            held += gpus
            elsewhere += Fraction() if name in nodes else gpus
    free = whole.physical - whole.unmanaged - whole.unhealthy - held
    return float(whole.physical - elsewhere), max(0.0, float(free))


def _waiting(checked: CheckedPlan) -> Iterator[WaitingGang]:
    """The waiting gangs in the order of the plan: those that start, then those that wait."""
    pending = {one.workload.uid: one for one in checked.original.pending}
    starts = [one for one in checked.plan.admitted if one.uid in pending and not one.repaired]
    for start in starts:
        gang = pending[start.uid]
        yield WaitingGang(_named(gang.workload, checked.original), _started(gang, start))
    for refusal in checked.plan.pending:
        if refusal.uid in pending:
            reason = refusal.reasons[0]
            named = _named(pending[refusal.uid].workload, checked.original)
            yield WaitingGang(named, None, reason.code.value, reason.message)


def _started(gang: Pending, start: Admission) -> float:
    """The GPUs with which it starts, which can be fewer than it requests."""
    podsets = ((one, start.placement.of(one.name)) for one in gang.workload.podsets)
    return float(gpus_of((p, p.count if at is None else at.pods_of(p)) for p, at in podsets))


def _unbound(
    bindings: Sequence[Binding], gangs: Mapping[str, Admitted], snapshot: Snapshot
) -> Iterator[UnboundGang]:
    """The gangs whose Workloads are admitted, and of which pods have no node."""
    for one in bindings:
        gang = gangs.get(one.uid)
        if gang is None or one.admitted_at is None or not one.unbound:
            continue
        podsets = gang.workload.podsets
        gpus = gpus_of((podset, one.unbound.get(podset.name, 0)) for podset in podsets)
        pods = sum(one.unbound.values())
        yield UnboundGang(_named(gang.workload, snapshot), one.admitted_at, pods, float(gpus))


def _seen(bindings: Iterable[Binding], snapshot: Snapshot) -> Iterator[SeenGang]:
    """All gangs. One that is being evicted still runs."""
    bound = {one.uid: one for one in bindings}
    for one in snapshot.pending:
        yield _of_trace(one.workload, snapshot, blocked=one.blocked is not None)
    for gang in snapshot.admitted:
        binding = bound.get(gang.workload.uid)
        whole = binding is None or not binding.unbound
        since = binding.admitted_at if binding is not None else gang.started_at or None
        placement = gang.placement if whole else None
        yield _of_trace(gang.workload, snapshot, placement, since, admitted=True)


def _of_trace(
    workload: Workload,
    snapshot: Snapshot,
    placement: Placement | None = None,
    since: float | None = None,
    *,
    blocked: bool = False,
    admitted: bool = False,
) -> SeenGang:
    duration = workload.duration
    return SeenGang(
        gang=_named(workload, snapshot),
        podsets=tuple(map(_request, workload.requested)),
        priority=workload.priority,
        user=workload.user or "",
        limit=duration.seconds if duration is not None and duration.enforced else None,
        created_at=workload.queued_at,
        placement=placement,
        since=since,
        blocked=blocked,
        admitted=admitted,
    )


def _request(podset: PodSet) -> PodSet:
    """The request of a podset as a plan of the simulation needs it: devices of claims are not simulated, and all its pods start."""
    shape = replace(podset.shape, devices=None)
    return PodSet(podset.name, podset.count, shape, podset.topology, podset.group)


def _nodes(snapshot: Snapshot) -> Iterator[Node]:
    for node in snapshot.fleet.nodes:
        used = snapshot.other_pods.get(node.name, NOTHING)
        left = {name: max(0, have - used[name]) for name, have in node.allocatable.items()}
        yield Node(
            name=node.name,
            labels=node.labels,
            allocatable=Resources(left),
            taints=node.taints,
            ready=node.ready,
            unschedulable=node.unschedulable,
        )


def _named(workload: Workload, snapshot: Snapshot) -> GangName:
    queue = snapshot.queue_of(workload)
    return GangName(
        uid=workload.uid,
        namespace=workload.namespace,
        name=workload.name,
        kind=workload.kind,
        queue=workload.queue or "",
        cluster_queue=queue.name if queue is not None else "",
        gpus=float(workload.gpus),
        pods=sum(podset.count for podset in workload.podsets),
    )
