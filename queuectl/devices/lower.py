"""A snapshot with devices as a snapshot of amounts, which the planner counts like any other resource.

Nodes get an amount of each device row, and of each resource that is charged for devices. Pods use both; quota is charged for the
latter. Data that does not change from one snapshot to the next is kept as the same objects, for the caches of the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.devices.amounts import DeviceAmounts, together
from queuectl.devices.cluster import ChangedGangs, FleetDevices, Gang, NodeCache
from queuectl.devices.division import Division, same, same_gangs
from queuectl.devices.matching import Matching
from queuectl.devices.modes import Modes, modes_of, places_of
from queuectl.devices.numa import NumaNodes
from queuectl.devices.reading import Selects
from queuectl.devices.requests import DeviceClasses, PodRequest
from queuectl.devices.selector_limits import Owned, Selectors, SnapshotRequests, refused_selectors
from queuectl.devices.shared import unsupported, with_shared_claims
from queuectl.domain.devices import NO_DEVICES, AllocatedDevice, DeviceOption, NodeDevices
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload

_KEPT: Final = 3  # clusters whose nodes, or devices in use, are not the current ones
_KEPT_OF_NODES: Final = 16  # sets of requests for the current nodes
_SPARE: Final = 4  # times as many gangs as a snapshot has


def _nothing(_: DeviceOption, __: NodeDevices) -> tuple[int, ...]:
    """The devices that are selected in a snapshot in which no gang requests any."""
    return ()


@dataclass(eq=False)
class DeviceCache:
    """Everything that is kept from one snapshot to the next. It changes how long an answer takes, never the answer.

    Attributes:
        selects: the devices that an option selects in the last snapshot.
        numa: for gangs whose pods request one NUMA node.
    """

    selects: Selects = _nothing

    _classes: tuple[tuple[object, ...], DeviceClasses] | None = None
    _asked: dict[int, tuple[Workload, tuple[PodRequest | None, ...]]] = field(default_factory=dict)
    _nodes: NodeCache = field(default_factory=lambda: NodeCache(Matching({})))
    _lowered: list[tuple[tuple[object, ...], _Lowered]] = field(default_factory=list)
    _shared: tuple[DeviceClasses, Snapshot, Snapshot] | None = None
    _running: tuple[DeviceClasses, tuple[Admitted, ...], Owned] | None = None
    _refused: tuple[DeviceClasses, SnapshotRequests, frozenset[Selectors]] | None = None
    division: Division = field(default_factory=Division)
    numa: NumaNodes = field(default_factory=NumaNodes)

    def classes(self, snapshot: Snapshot) -> DeviceClasses:
        """The DeviceClasses of a snapshot."""
        key = (snapshot.devices.classes, snapshot.config.rules.device_classes)
        if self._classes is None or self._classes[0] != key:
            self._classes = key, DeviceClasses(*key)
            self._asked = {}
            self._nodes = NodeCache(Matching(snapshot.devices.classes))
        return self._classes[1]

    def requests(self, snapshot: Snapshot, classes: DeviceClasses) -> SnapshotRequests:
        """The distinct requests for devices of all gangs."""
        last = self._running
        if last is None or last[0] is not classes or not same(last[1], snapshot.admitted):
            running = self._distinct(snapshot.admitted, classes)
            last = self._running = classes, snapshot.admitted, running
        leased = self._distinct((p for p in snapshot.pending if p.lease is not None), classes)
        found = SnapshotRequests(last[2] | leased, self._distinct(snapshot.pending, classes))
        gangs: tuple[Pending | Admitted, ...] = (*snapshot.pending, *snapshot.admitted)
        if len(self._asked) > _SPARE * len(gangs):
            self._asked = {id(g.workload): self._asked[id(g.workload)] for g in gangs}
        return found

    def _distinct(self, gangs: Iterable[Pending | Admitted], classes: DeviceClasses) -> Owned:
        workloads = {id(gang.workload): gang.workload for gang in gangs}
        for key in workloads.keys() - self._asked.keys():
            requests = tuple(classes.request_of(p.shape) for p in workloads[key].podsets)
            self._asked[key] = workloads[key], requests if any(requests) else ()
        distinct = {(each.namespace, self._asked[key][1]) for key, each in workloads.items()}
        return frozenset((name, one) for name, own in distinct for one in own if one is not None)

    def shared(self, snapshot: Snapshot, classes: DeviceClasses) -> Snapshot:
        """The snapshot with podsets for the claims that pods share."""
        last = self._shared
        if (
            last is None
            or last[0] is not classes
            or last[1].claims is not snapshot.claims
            or last[1].config is not snapshot.config
            or not same_gangs(last[1], snapshot)
        ):
            last = self._shared = classes, snapshot, with_shared_claims(snapshot, classes)
        return replace(snapshot, pending=last[2].pending, admitted=last[2].admitted)

    def of_podsets(self, workload: Workload) -> tuple[PodRequest | None, ...]:
        """The request of each podset; empty if none has one."""
        return self._asked[id(workload)][1]

    def lowered(self, snapshot: Snapshot, requests: SnapshotRequests) -> _Lowered:
        """The nodes of a snapshot with rows for these requests. Some are kept: requests of some sort come and go."""
        held: Mapping[str, tuple[AllocatedDevice, ...]] = snapshot.other_devices
        if requests.shared:
            held = _held(snapshot, self)
        current = self._for(snapshot, requests, held)
        uncounted = current.cluster.uncounted(snapshot.admitted, self.of_podsets)
        if uncounted:
            current = self._for(snapshot, requests, {**held, **uncounted})
        self.selects = current.cluster.selects
        return current

    def _for(
        self,
        snapshot: Snapshot,
        requests: SnapshotRequests,
        held: Mapping[str, tuple[AllocatedDevice, ...]],
    ) -> _Lowered:
        classes = self.classes(snapshot)
        atoms, refused = classes.atoms(requests.distinct), self._refusals(requests, classes)
        key = (snapshot.fleet, snapshot.devices, classes, held, atoms, refused)
        current = next((lowered for known, lowered in self._lowered if known == key), None)
        if current is None:
            of = (snapshot.fleet, snapshot.devices, held, classes, atoms, refused, self._nodes)
            current = _Lowered(FleetDevices(*of))
        present: list[tuple[tuple[object, ...], _Lowered]] = [(key, current)]
        past: list[tuple[tuple[object, ...], _Lowered]] = []
        for known in self._lowered:
            if known[1] is not current:
                (present if _nodes_of(known[0]) == _nodes_of(key) else past).append(known)
        self._lowered = [*present[:_KEPT_OF_NODES], *past[:_KEPT]]
        return current

    def _refusals(self, requests: SnapshotRequests, classes: DeviceClasses) -> frozenset[Selectors]:
        last = self._refused
        if last is None or last[0] is not classes or last[1] != requests:
            last = self._refused = classes, requests, refused_selectors(requests, classes)
        return last[2]


def with_devices(snapshot: Snapshot, cache: DeviceCache) -> Snapshot:
    """The snapshot with device rows; the same object if no gang requests devices."""
    found = _with_rows(snapshot, cache)
    if found is None:
        return snapshot
    lowered, given, taken = found
    modes = cache.division.modes(given, lowered.cluster, cache.of_podsets)
    return replace(taken, other_pods=lowered.other_pods(given.other_pods, modes))


def for_reports(snapshot: Snapshot, cache: DeviceCache) -> Snapshot:
    """The same without regard to what is pending: an empty node serves each request."""
    found = _with_rows(snapshot, cache)
    if found is None:
        return snapshot
    lowered, given, taken = found
    cluster, used = lowered.cluster, given.other_pods
    held = cache.division.holders(given, cluster, cache.of_podsets)
    in_use = {
        kind: [name for name in nodes if name in held] for kind, nodes in cluster.divided.items()
    }
    kept = {k: modes_of(k, names, places_of(names, held), {}) for k, names in in_use.items()}
    mixed: Modes = {kind: {(None,) * len(kind.groups): names} for kind, names in in_use.items()}
    return replace(
        taken,
        other_pods=lowered.other_pods(used, kept),
        mixed_nodes=lowered.other_pods(used, mixed),
    )


def _with_rows(
    snapshot: Snapshot, cache: DeviceCache
) -> tuple[_Lowered, Snapshot, Snapshot] | None:
    """The snapshot without and with device rows, and those; None if no gang requests devices."""
    snapshot = cache.numa.added(snapshot)
    if snapshot.devices is NO_DEVICES:
        return None
    classes = cache.classes(snapshot)
    requests = cache.requests(snapshot, classes)
    if not requests.distinct:
        return None
    if requests.shared:
        snapshot = cache.shared(snapshot, classes)
        requests = cache.requests(snapshot, classes)
    lowered = cache.lowered(snapshot, requests)
    pending, admitted = lowered.gangs(snapshot, cache)
    taken = replace(snapshot, fleet=lowered.fleet, pending=pending, admitted=admitted)
    return lowered, snapshot, taken


def _nodes_of(key: tuple[object, ...]) -> tuple[object, ...]:
    """The parts of a key other than the requests: fleet, inventory, classes, and what is held."""
    return key[:4]


def _held(snapshot: Snapshot, cache: DeviceCache) -> dict[str, tuple[AllocatedDevice, ...]]:
    """Devices that claims hold in addition to those of admitted gangs: of unmanaged pods, and claims whose sharing is not supported."""
    held = dict(snapshot.other_devices)
    for gang in snapshot.admitted:
        for request in cache.of_podsets(gang.workload):
            for name in request.shared if request is not None else ():
                claim = snapshot.claims.get((gang.workload.namespace, name))
                nodes = {node for placed in gang.placement.podsets for node, _ in placed.nodes}
                allocated = (claim.allocated if claim is not None else None) or ()
                for node in sorted(nodes) if allocated else ():
                    own = held.get(node, ())
                    held[node] = (*own, *(one for one in allocated if one not in own))
    return held


class _Lowered:
    """Nodes and gangs with their rows."""

    def __init__(self, cluster: FleetDevices) -> None:
        self.cluster = cluster
        self.amounts = DeviceAmounts(cluster)
        self.fleet = self.amounts.fleet
        self._gangs = ChangedGangs()
        self._workloads: dict[int, tuple[Workload, Workload]] = {}
        self._others: tuple[tuple[object, object], Mapping[str, Resources]] | None = None

    def other_pods(self, used: Mapping[str, Resources], modes: Modes) -> Mapping[str, Resources]:
        """The use by unmanaged pods, with the amounts that nodes do not have in their modes."""
        last = self._others
        if last is None or last[0][0] is not used or last[0][1] is not modes:
            beside = self.cluster.beside_claims(used)
            if modes:
                beside = together(self.amounts.in_use(modes), beside.items())
            last = self._others = (used, modes), beside
        return last[1]

    def gangs(
        self, snapshot: Snapshot, cache: DeviceCache
    ) -> tuple[tuple[Pending, ...], tuple[Admitted, ...]]:
        """Pending and admitted gangs with their rows; pending ones whose request is not supported, with that reason."""

        def with_rows(gang: Gang, /) -> Gang:
            requests = cache.of_podsets(gang.workload)
            return self._with_rows(gang, requests) if requests else gang

        found = self._gangs.of(snapshot, with_rows)
        if self._gangs.forget_others(snapshot):
            gangs: tuple[Pending | Admitted, ...] = (*snapshot.pending, *snapshot.admitted)
            alive = {id(gang.workload) for gang in gangs}
            self._workloads = {k: known for k, known in self._workloads.items() if k in alive}
        return found

    def _with_rows(self, gang: Gang, requests: tuple[PodRequest | None, ...]) -> Gang:
        lowered = replace(gang, workload=self._workload(gang.workload, requests))
        if isinstance(lowered, Pending):
            blocked = lowered.blocked or self._refusal(gang.workload, requests)
            lowered = replace(lowered, blocked=blocked)
        return lowered

    def _refusal(
        self, workload: Workload, requests: tuple[PodRequest | None, ...]
    ) -> Reason | None:
        why = next(filter(None, map(self.cluster.refusal, filter(None, requests))), None)
        why = why or self.amounts.refusal(workload, requests)
        return unsupported(why) if why is not None else None

    def _workload(self, workload: Workload, requests: tuple[PodRequest | None, ...]) -> Workload:
        last = self._workloads.get(id(workload))
        if last is None:
            podsets = (
                podset
                if request is None
                else replace(podset, shape=self.amounts.shape(podset.shape, request))
                for podset, request in zip(workload.podsets, requests, strict=True)
            )
            last = self._workloads[id(workload)] = (
                workload,
                replace(workload, podsets=tuple(podsets)),
            )
        return last[1]
