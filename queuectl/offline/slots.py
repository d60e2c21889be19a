"""The slots of running gangs of files: the hosts of their admission, otherwise the nodes of their pods, otherwise room in the admitted domain.

An assignment can end above the host. Its pods still use nodes, so without them too much capacity would look free. They get free
capacity of nodes that they can use: the choice of nodes is a guess, the sum of free capacity in the stated domain is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from queuectl.domain.fleet import HOSTNAME, Fleet, Node, NodeRules
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import QueueConfig, ResourceFlavor
from queuectl.domain.words import counted
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement
from queuectl.lifecycle.adoption import charged_flavors
from queuectl.lifecycle.outstanding_writes import by_rank_and_name
from queuectl.objects.files.assignments import Assigned
from queuectl.offline.gangs import DocumentedGang
from queuectl.offline.owners import Slot
from queuectl.state.readiness import needed, still_needed
from queuectl.state.usage import node_of

# ---- Slots of gangs

_NOWHERE: Final = "(unknown node)"
Warn = Callable[[DocumentedGang, str], None]


@dataclass(frozen=True)
class Place:
    """The surroundings of the gangs of an input.

    Attributes:
        names: hostname label to node name.
        config: with the flavors.
        warn: adds a warning about a gang.
        backed: extended resources that a DeviceClass backs.
    """

    fleet: Fleet
    names: Mapping[str, str]
    config: QueueConfig
    warn: Warn
    backed: Container[str]

    def on_nodes(self, flavors: Mapping[str, str]) -> bool:
        """Whether pods that are charged to these flavors are on nodes of the input."""
        known = [self.config.flavors.get(name) for name in flavors.values()]
        return bool(self.fleet.nodes) and any(flavor and flavor.topology for flavor in known)


def stated_slots(gang: DocumentedGang, place: Place, *, with_pods: bool) -> dict[Slot, int] | None:
    """The slots that the admission of a gang states; None if its pods show them.

    ``with_pods``: the input has pods. They show the slots that a gang still holds while it is evicted.
    """
    hosts = [assigned.hosts for assigned in gang.assigned.values()]
    if (gang.leaves and with_pods) or not hosts or None in hosts:
        return None
    stated: dict[Slot, int] = {}
    for podset, assigned in gang.assigned.items() if place.fleet.nodes else ():
        for host, count in assigned.hosts or ():
            slot = (podset, place.names.get(host, host))
            if count:
                stated[slot] = stated.get(slot, 0) + count
    return stated


@dataclass
class PodSetSlots:
    """The slots of one podset of a running gang.

    Attributes:
        held: node to number of slots, in the order of ranks.
        count: the number of its pods that run, or are to be created.
    """

    podset: PodSet
    held: dict[str, int]
    count: int

    @property
    def missing(self) -> int:
        """Pods that have no slot yet."""
        return self.count - sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Binding:
    """How many pods of a running gang have a node.

    Attributes:
        uid: of the gang.
        admitted_at: unix seconds of its admission by its Workload; None without one, and before its admission checks are ready.
        unbound: podset to pods that have no node, including those that were not created yet. Podsets without such pods are absent.
    """

    uid: str
    admitted_at: float | None
    unbound: Mapping[str, int]


@dataclass
class RunningGang:
    """The slots of a running gang, while they are found.

    Attributes:
        job: its record in the mirror.
        pods: of its attempt.
        podsets: in the order of its request.
    """

    gang: DocumentedGang
    job: JobRecord
    pods: list[PodRecord]
    place: Place
    podsets: list[PodSetSlots] = field(default_factory=list)

    def seat(self, stated: Mapping[Slot, int] | None) -> None:
        """Find the slots that are stated, or that its pods show."""
        left = needed(self.job, self.pods)
        for podset in self.job.podsets:
            assigned = self.gang.assigned.get(podset.name)
            count = assigned.count if assigned is not None and assigned.count else podset.count
            if stated is not None:
                held = {node: n for (name, node), n in stated.items() if name == podset.name}
                count = max(count, sum(held.values()))
            else:
                count = min(count, left[podset.name])
                held = self._sitting(podset, count)
            self.podsets.append(PodSetSlots(podset, held, count))

    def _sitting(self, podset: PodSet, most: int) -> dict[str, int]:
        held: dict[str, int] = {}
        for pod in sorted(self.pods, key=by_rank_and_name):
            node = None if pod.terminal else node_of(pod, self.place.names)
            if node not in self.place.fleet.by_name or pod.podset != podset.name or most <= 0:
                continue
            held[node or ""] = held.get(node or "", 0) + 1
            most -= 1
        return held

    def binding(self) -> Binding:
        """The pods that its input shows on nodes, whatever its admission states."""
        unbound: dict[str, int] = {}
        left = needed(self.job, self.pods)
        for one in self.podsets:
            assigned = self.gang.assigned.get(one.podset.name)
            most = assigned.count if assigned is not None and assigned.count else one.podset.count
            count = min(most, left[one.podset.name])
            missing = count - sum(self._sitting(one.podset, count).values())
            if missing > 0:
                unbound[one.podset.name] = missing
        workload = self.gang.workload
        return Binding(self.job.uid, workload.admitted_at if workload else None, unbound)

    @property
    def shown(self) -> bool:
        """Whether its pods or an admission show that it runs, or no pod of it is left."""
        seated = any(one.held for one in self.podsets)
        done = not any(one.count for one in self.podsets)
        return seated or done or bool(self.gang.assigned)

    @property
    def coarse(self) -> list[PodSetSlots]:
        """The podsets with pods of which only a domain above the host is known.

        An admission without domains uses no node, as in Kueue: its pods count if they are in the input.
        """
        found = []
        for one in self.podsets if not self.gang.leaves else ():
            assigned = self.gang.assigned.get(one.podset.name)
            if assigned is None or assigned.hosts is not None or not assigned.domains:
                continue
            if one.missing > 0 and self.place.on_nodes(assigned.flavors):
                found.append(one)
        return found

    def assume(self, capacity: FreeCapacity) -> None:
        """Assign nodes to the pods of :attr:`coarse`. Pods without room use no node."""
        for one in self.coarse:
            name, assigned = one.podset.name, self.gang.assigned[one.podset.name]
            known = (self.place.config.flavors.get(name) for name in assigned.flavors.values())
            flavors = {flavor.name: flavor for flavor in known if flavor is not None}
            found = capacity.place(one.podset, one.missing, assigned, flavors.values())
            for node, count in found.items():
                one.held[node] = one.held.get(node, 0) + count
            if found:
                pods = sum(found.values())
                text = (
                    "1 pod has no stated node" if pods == 1 else f"{pods} pods have no stated nodes"
                )
                names = ", ".join(sorted(found))
                self.place.warn(self.gang, f"podset {name}: {text}; assumed on {names}")

    def placement(self, *, warn: bool = True) -> Placement:
        """Its slots. With a topology, quota is charged by slots, so a pod without a known node also gets a slot."""
        placed = Placement(tuple(self._placed(one, warn=warn) for one in self.podsets))
        if self.gang.leaves:
            return placed
        return still_needed(placed, self.job, self.pods, self.place.names)

    def _placed(self, podset_slots: PodSetSlots, *, warn: bool) -> PodSetPlacement:
        podset, config = podset_slots.podset, self.place.config
        assigned = self.gang.assigned.get(podset.name)
        if assigned is not None:
            flavors = assigned.flavors
        else:
            node = self.place.fleet.by_name.get(next(iter(podset_slots.held), ""))
            queue = config.cluster_queue_of(self.job.namespace, self.job.queue)
            flavors = charged_flavors(podset, node, queue, config, {})
        nodes = tuple(podset_slots.held.items())
        if podset_slots.missing > 0 and not self.gang.leaves and self.place.on_nodes(flavors):
            if warn:
                pods_without = counted(podset_slots.missing, "pod")
                text = f"podset {podset.name}: {pods_without} without a node in the input"
                self.place.warn(self.gang, text)
            nodes = (*nodes, (_NOWHERE, podset_slots.missing))
        pods = podset_slots.count if podset_slots.count != podset.count else None
        return PodSetPlacement(podset.name, nodes, flavors, pods)


MOST_STAND_INS: Final = 150_000
"""Of all gangs: the pods of the largest cluster that Kubernetes supports."""
PodSetSlot: TypeAlias = tuple[str, str, int]  # podset, node, pods


def unseen_slots(running: RunningGang, placement: Placement) -> list[PodSetSlot]:
    """The slots of which the input shows no pods, although pods run there.

    Slots on unknown nodes; and if the input has no pods of the gang, those on ready nodes that take no new pods: pods that run there
    continue to run.
    """
    fleet = running.place.fleet
    unhealthy = running.gang.workload.unhealthy if running.gang.workload is not None else ()
    alone = all(pod.terminal for pod in running.pods)
    podsets = {podset.name: podset for podset in running.job.podsets}
    slots = []
    for placed in placement.podsets if not running.gang.leaves else ():
        shape = podsets[placed.podset].shape
        for name, count in placed.by_node.items():
            node = fleet.by_name.get(name)
            rules = NodeRules(tolerations=shape.rules.tolerations)
            takes = node is not None and node.takes(rules, shape.requests, running.place.backed)
            closed = node is not None and node.ready and not takes
            if node is not None and {node.name, node.hostname}.intersection(unhealthy):
                continue
            if name == _NOWHERE or (closed and alone):
                slots.append((placed.podset, name, count))
    return slots


def without_slots(placement: Placement, slots: Iterable[PodSetSlot]) -> Placement:
    """The placement without these slots."""
    gone = {(podset, node) for podset, node, _ in slots}

    def less(placed: PodSetPlacement) -> PodSetPlacement:
        left = tuple((n, count) for n, count in placed.nodes if (placed.podset, n) not in gone)
        return replace(placed, nodes=left, pods=sum(count for _, count in left))

    return Placement(tuple(map(less, placement.podsets)))


def stand_ins(job: JobRecord, slots: Iterable[PodSetSlot]) -> Iterator[PodRecord]:
    """Pods that fill these slots of a job, so that they are not lost."""
    shapes = {podset.name: podset.shape for podset in job.podsets}
    for podset, node, count in slots:
        for number in range(count):
            label = f"{podset}/{node}/{number}"
            yield PodRecord(
                job.namespace,
                f"{job.name}/{label}",
                f"{job.uid}/{label}",
                1,
                requests=shapes[podset].requests,
                owner=job.uid,
                owner_kind=job.kind,
                node=node,
                attempt=job.attempt,
                podset=podset,
                phase=PodPhase.RUNNING,
                ready=True,
            )


# ---- Free capacity


def used(gangs: Iterable[RunningGang], other_pods: Mapping[str, Resources]) -> dict[str, Resources]:
    """The use of each node, by slots and other pods."""
    total = dict(other_pods)
    for one in (podset for gang in gangs for podset in gang.podsets):
        for node, count in one.held.items():
            total[node] = total.get(node, NOTHING) + one.podset.shape.requests * count
    return total


@dataclass
class FreeCapacity:
    """The free capacity of each ready node, without pods that were assigned so far."""

    fleet: Fleet
    used: Mapping[str, Resources]
    _free: dict[str, Resources] = field(init=False)

    def __post_init__(self) -> None:
        self._free = {
            n.name: n.allocatable - self.used.get(n.name, NOTHING)
            for n in self.fleet.nodes
            if n.ready
        }

    def place(
        self, podset: PodSet, count: int, assigned: Assigned, flavors: Iterable[ResourceFlavor]
    ) -> dict[str, int]:
        """Assign up to ``count`` pods to nodes of their domains, fewer if there is not enough room.

        It uses as few nodes of each domain as possible: those with the most room first, then by name.
        """
        allowed = list(_allowed(self.fleet, podset, list(flavors)))
        placed: dict[str, int] = {}
        for labels, most in assigned.domains:
            inside = [node for node in allowed if _inside(node, labels)]
            for name, pods in self._fill(podset.shape.requests, min(most, count), inside):
                placed[name] = placed.get(name, 0) + pods
                count -= pods
        return placed

    def _fill(
        self, requests: Resources, count: int, nodes: list[Node]
    ) -> Iterator[tuple[str, int]]:
        room = {node.name: self._fits(requests, node.name) for node in nodes}
        for name in sorted(room, key=lambda name: (-room[name], name)):
            pods = min(count, room[name])
            if pods <= 0:
                return
            self._free[name] -= requests * pods
            count -= pods
            yield name, pods

    def _fits(self, requests: Resources, name: str) -> int:
        free = self._free.get(name, NOTHING)
        return max(
            0, min((free[r] // amount for r, amount in requests.items() if amount), default=0)
        )


def _allowed(fleet: Fleet, podset: PodSet, flavors: list[ResourceFlavor]) -> Iterator[Node]:
    rules = podset.shape.rules
    tolerated = rules.tolerations + tuple(t for flavor in flavors for t in flavor.tolerations)
    rules = NodeRules(rules.selector, rules.affinity, tolerated)
    labels = {pair for flavor in flavors for pair in flavor.node_labels}
    for node in fleet.nodes:
        if rules.refusal(node) is None and _inside(node, dict(labels)):
            yield node


def _inside(node: Node, labels: Mapping[str, str]) -> bool:
    return all(
        (node.hostname if key == HOSTNAME else node.labels.get(key)) == value
        for key, value in labels.items()
    )
