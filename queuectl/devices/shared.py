"""ResourceClaims that pods of a gang share, and pools of several drivers that have the same name and counters.

Devices of a node can be used only there. So the pods that share such a claim are placed on one node, and its devices count once: for
a separate podset that stands for the claim. A claim that is allocated already takes no more devices, and its pods go where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Final, TypeAlias, TypeVar

from queuectl.devices.requests import DeviceClasses
from queuectl.domain.devices import CLAIM_PODSET, Claim, NodeDevices, PodDevices, stands_for_claims
from queuectl.domain.fleet import HOSTNAME, NodeRules, SelectorTerm
from queuectl.domain.plan import Admission, Move, Plan
from queuectl.domain.quantity import NOTHING
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    TopologyMode,
    TopologyRequest,
    Workload,
)

# ---- Shared ResourceClaims

ClaimKey: TypeAlias = tuple[str, str]
"""Namespace and name of a ResourceClaim."""
MOST_USERS: Final = 256
"""Pods for which a ResourceClaim can be reserved, in the API."""
_ONE_NODE: Final = TopologyRequest(TopologyMode.REQUIRED, HOSTNAME)
_Placed = TypeVar("_Placed", Admission, Move, CapacityLease, Admitted)


class _Unsupported(Exception):
    """A gang cannot share its claims; the text states why."""


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Podsets, by number, that share claims directly or by way of each other."""

    podsets: tuple[int, ...]
    claims: tuple[str, ...]


def unsupported(why: str) -> Reason:
    """The reason for which a gang with such a request waits."""
    text = f"the request for devices is not supported: {why}"
    return Reason(Code.UNSUPPORTED, text, {"devices": why})


def first_user(users: Mapping[str, float]) -> str:
    """The gang that is charged for a claim, of the gangs that use it: the one that started first. ``users``: uid to start, unix seconds."""
    return min(users, key=lambda uid: (users[uid], uid))


def charged_gangs(gangs: Iterable[Admitted]) -> dict[ClaimKey, str]:
    """The gang that is charged for each claim that pods share, of the gangs that hold capacity."""
    users: dict[ClaimKey, dict[str, float]] = {}
    for gang in gangs:
        for key in _claims(gang.workload):
            users.setdefault(key, {})[gang.workload.uid] = gang.started_at
    return {key: first_user(own) for key, own in users.items()}


def with_shared_claims(
    snapshot: Snapshot, classes: DeviceClasses, elsewhere: Collection[ClaimKey] = ()
) -> Snapshot:
    """The snapshot with podsets for the claims that pods share. ``elsewhere``: claims that count for gangs that it does not have."""
    shared = _Shared(snapshot, classes, elsewhere)
    return replace(
        snapshot,
        admitted=tuple(map(shared.admitted, snapshot.admitted)),
        pending=tuple(map(shared.pending, snapshot.pending)),
    )


def without_claim_podsets(plan: Plan) -> Plan:
    """The plan for the gangs as their users know them."""
    leases = (refusal.lease for refusal in plan.pending if refusal.lease is not None)
    placed: Iterable[Admission | Move | CapacityLease] = (*plan.admitted, *plan.moved, *leases)
    if not any(map(_has_claims, placed)):
        return plan
    return replace(
        plan,
        admitted=tuple(map(_without, plan.admitted)),
        moved=tuple(map(_without, plan.moved)),
        pending=tuple(
            refusal if refusal.lease is None else replace(refusal, lease=_without(refusal.lease))
            for refusal in plan.pending
        ),
    )


def snapshot_without_claim_podsets(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the gangs as their users know them; their device rows remain."""
    return replace(
        snapshot,
        pending=tuple(
            replace(
                gang,
                workload=_known(gang.workload),
                lease=None if gang.lease is None else _without(gang.lease),
            )
            for gang in snapshot.pending
        ),
        admitted=tuple(
            replace(
                _without(gang),
                workload=_known(gang.workload),
                lost=tuple(slot for slot in gang.lost if not stands_for_claims(slot[0])),
            )
            for gang in snapshot.admitted
        ),
    )


class _Shared:
    """The claims of one snapshot."""

    def __init__(
        self, snapshot: Snapshot, classes: DeviceClasses, elsewhere: Collection[ClaimKey]
    ) -> None:
        self.snapshot = snapshot
        self.classes = classes
        # The one gang that holds capacity for which a claim counts.
        self.users: dict[ClaimKey, str | None] = {**charged_gangs(snapshot.admitted)}
        self.users.update(dict.fromkeys(elsewhere))

    def pending(self, gang: Pending) -> Pending:
        """A gang that waits; claims that are allocated take no more devices."""
        workload = gang.workload
        groups = _sharing(workload)
        if not groups:
            return gang
        try:
            _check_users(workload)
            changed = self._with_podsets(workload, groups, lambda claim: claim.allocated is None)
        except _Unsupported as why:
            return replace(gang, blocked=gang.blocked or unsupported(str(why)))
        return replace(gang, workload=changed, lease=self._lease(gang.lease, changed))

    def admitted(self, gang: Admitted) -> Admitted:
        """A gang that holds capacity; the devices of its claims are among it, whether they are allocated already or not."""
        workload = gang.workload
        groups = _sharing(workload)
        if not groups:
            return gang
        try:
            changed = self._with_podsets(
                workload, groups, lambda c: self.users.get((c.namespace, c.name)) == workload.uid
            )
        except _Unsupported:
            return replace(gang, workload=_named(workload))
        placement = self._with_claims(gang.placement, changed)
        lease = self._lease(gang.lease, changed)
        changed_gang = replace(gang, workload=changed, placement=placement, lease=lease)
        return replace(changed_gang, lost=(*gang.lost, *_lost_claims(changed_gang)))

    def _lease(self, lease: CapacityLease | None, workload: Workload) -> CapacityLease | None:
        if lease is None:
            return None
        return replace(lease, placement=self._with_claims(lease.placement, workload))

    def _claim(self, workload: Workload, name: str) -> Claim:
        claim = self.snapshot.claims.get((workload.namespace, name))
        if claim is None:
            raise _Unsupported(f"ResourceClaim {name} does not exist")
        return claim

    def _with_podsets(
        self,
        workload: Workload,
        groups: Iterable[_Sharing],
        counted: Callable[[Claim], bool],
    ) -> Workload:
        """The gang with its sharing podsets on one node each group, and with a podset for the claims that count for it."""
        podsets = list(workload.podsets)
        more: list[PodSet] = []
        for sharing in groups:
            claims = [self._claim(workload, name) for name in sharing.claims]
            _check_groups(workload, sharing)
            group = f"{CLAIM_PODSET}{sharing.claims[0]}"
            local = any(counted(claim) or claim.allocated is None or claim.node for claim in claims)
            terms = [claim.node for claim in claims if claim.allocated is not None and claim.node]
            for number in sharing.podsets:
                podsets[number] = _member(podsets[number], terms, group if local else None)
            specs = tuple(claim.spec for claim in claims if counted(claim))
            if specs:
                rules = podsets[sharing.podsets[0]].shape.rules
                shape = PodShape(NOTHING, rules, devices=PodDevices(specs))
                name = f"{CLAIM_PODSET}{'+'.join(sharing.claims)}"
                more.append(PodSet(name, 1, shape, _ONE_NODE, group))
        return replace(_named(workload), podsets=(*podsets, *more))

    def _with_claims(self, placement: Placement, workload: Workload) -> Placement:
        """The placement with the podsets for claims, on the nodes of the podsets that share them."""
        more = []
        for podset in workload.podsets:
            if stands_for_claims(podset.name):
                near = (placement.of(p.name) for p in workload.podsets if p.group == podset.group)
                placed = next((p for p in near if p is not None and p.nodes), None)
                if placed is not None:
                    nodes = ((placed.nodes[0][0], 1),)
                    more.append(
                        PodSetPlacement(podset.name, nodes, self._flavors(workload, podset, placed))
                    )
        return Placement((*placement.podsets, *more))

    def _flavors(
        self, workload: Workload, podset: PodSet, placed: PodSetPlacement
    ) -> dict[str, str]:
        """The flavor of each resource that is charged for a claim: one of the podset alongside it, where that is possible."""
        queue = self.snapshot.queue_of(workload)
        claims = podset.shape.devices.claims if podset.shape.devices is not None else ()
        options = (o for claim in claims for r in claim.requests for o in r.options if not o.admin)
        flavors: dict[str, str] = {}
        for resource in sorted({self.classes.charged(option.device_class) for option in options}):
            for group in queue.groups if queue is not None else ():
                if resource in group.covered:
                    names = [quotas.flavor for quotas in group.flavors]
                    flavors[resource] = next((n for n in names if n in placed.charged), names[0])
        return flavors


def _lost_claims(gang: Admitted) -> Iterator[tuple[str, str, int]]:
    """The slots of podsets for claims of which all pods on the node are lost: a claim goes where its pods go."""
    for podset in gang.workload.podsets if gang.lost else ():
        placed = gang.placement.of(podset.name) if stands_for_claims(podset.name) else None
        for node, count in placed.nodes if placed is not None else ():
            group = {p.name for p in gang.workload.podsets if p.group == podset.group}
            held = sum(p.by_node.get(node, 0) for p in gang.placement.podsets if p.podset in group)
            lost = sum(n for name, at, n in gang.lost if name in group and at == node)
            if held - lost == count:  # the podset itself
                yield podset.name, node, count


def _claims(workload: Workload) -> Iterator[ClaimKey]:
    for podset in workload.podsets:
        for name in podset.shared_claims:
            yield workload.namespace, name


def _named(workload: Workload) -> Workload:
    return replace(workload, claims=tuple(sorted({name for _, name in _claims(workload)})))


def _sharing(workload: Workload) -> list[_Sharing]:
    groups: list[_Sharing] = []
    for number, podset in enumerate(workload.podsets):
        names = set(podset.shared_claims)
        if names:
            near = [group for group in groups if names & set(group.claims)]
            groups = [group for group in groups if group not in near]
            podsets = sorted({number, *(i for group in near for i in group.podsets)})
            claims = sorted(names.union(*(group.claims for group in near)))
            groups.append(_Sharing(tuple(podsets), tuple(claims)))
    return groups


def _check_users(workload: Workload) -> None:
    users = Counter[str]()
    for podset in workload.podsets:
        users.update(dict.fromkeys(podset.shared_claims, podset.count))
    for name, pods in sorted(users.items()):
        if pods > MOST_USERS:
            raise _Unsupported(
                f"{pods} pods share ResourceClaim {name}, at most {MOST_USERS} can use it"
            )


def _check_groups(workload: Workload, sharing: _Sharing) -> None:
    groups = {workload.podsets[number].group for number in sharing.podsets} - {None}
    for number, podset in enumerate(workload.podsets):
        if podset.group in groups and number not in sharing.podsets:
            raise _Unsupported(
                f"podset {podset.name} is in a group with podsets that share a ResourceClaim"
            )


def _member(podset: PodSet, terms: Iterable[tuple[SelectorTerm, ...]], group: str | None) -> PodSet:
    """A podset that shares claims, on the nodes of those that are allocated."""
    devices = podset.shape.devices or PodDevices()
    rules = podset.shape.rules
    for each in terms:
        rules = _both(rules, each)
    own = replace(devices, shared=()) if devices.claims else None
    shape = replace(podset.shape, rules=rules, devices=own)
    if group is None:
        return replace(podset, shape=shape)
    return replace(podset, shape=shape, topology=_ONE_NODE, group=group)


def _both(rules: NodeRules, terms: tuple[SelectorTerm, ...]) -> NodeRules:
    """Node rules with alternatives of which one more must match."""
    affinity = terms
    if rules.affinity is not None:
        affinity = tuple(
            SelectorTerm((*one.requirements, *other.requirements))
            for one in rules.affinity
            if one.requirements
            for other in terms
        )
    return replace(rules, affinity=affinity)


def _has_claims(placed: Admission | Move | CapacityLease) -> bool:
    return any(stands_for_claims(p.podset) for p in placed.placement.podsets)


def _known(workload: Workload) -> Workload:
    podsets = tuple(p for p in workload.podsets if not stands_for_claims(p.name))
    return replace(workload, podsets=podsets, claims=())


def _without(placed: _Placed) -> _Placed:
    kept = tuple(p for p in placed.placement.podsets if not stands_for_claims(p.podset))
    return replace(placed, placement=Placement(kept))


# ---- Pools with the same name and counters
#
# While kube-scheduler allocates the devices of one pod, it keeps the counters that are left by the name of the pool, without the
# driver. One pod cannot use such devices of two drivers. Pods with devices of one driver each are allocated correctly.

MIXED: Final = "pools of {} have counters and the same name, and kube-scheduler mixes them up"
MIXED_IN_POD: Final = MIXED.format("several drivers of the pod's devices")
Touched: TypeAlias = frozenset[tuple[str, str]]  # pool and driver


class Rivals:
    """Those of one node."""

    def __init__(self, node: NodeDevices) -> None:
        pools = {
            at: (device.id.pool, device.id.driver)
            for at, device in enumerate(node.devices)
            if device.consumes
        }
        drivers = Counter(pool for pool, _ in set(pools.values()))
        self._pools = {at: own for at, own in pools.items() if drivers[own[0]] > 1}

    def touched(self, selected: int) -> Touched:
        """Those of some devices (bits)."""
        return frozenset(own for at, own in self._pools.items() if selected >> at & 1)


def drivers_mixed(touched: Touched) -> list[str]:
    """The drivers of pools with the same name."""
    return sorted({d for (p, d) in touched for (q, e) in touched if p == q and d != e})


def mixed_pairs(touched: Sequence[Touched]) -> Iterator[tuple[int, int]]:
    """Two positions whose pools are mixed up."""
    known = cache(drivers_mixed)  # thousands of positions can have the same pools
    for i, j in combinations([at for at, pools in enumerate(touched) if pools], 2):
        if known(touched[i] | touched[j]):
            yield i, j
