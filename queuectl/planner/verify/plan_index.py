"""The snapshot and the plan, looked up the way the checks need them: plain dicts, no planner code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from queuectl.domain.fleet import Node
from queuectl.domain.plan import Plan, Refusal, ScheduledGang
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, OptOut, ResourceFlavor, Topology, domain_of
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, added_pods, nodes_of_added
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, Workload
from queuectl.planner.verify.cohorts import CohortMember, Row, members_of
from queuectl.planner.verify.running_use import Charges, KnownUse, RunningUse


class PlacedGang(NamedTuple):
    """One gang the plan gives a placement: it starts now, or holds a lease for later.

    ``running`` is set for a repair, now or (with a lease) later: the gang as the snapshot has it.
    """

    workload: Workload
    placement: Placement
    now: bool
    excluded: frozenset[str] = frozenset()
    running: Admitted | None = None

    def parts(self) -> Iterator[tuple[PodSet, PodSetPlacement]]:
        """Each podset that has a placement, with it."""
        for podset in self.workload.podsets:
            placed = self.placement.of(podset.name)
            if placed is not None:
                yield podset, placed

    def kept_slots(self, podset: str) -> dict[str, int]:
        """Slots per node that a repaired gang keeps: its placement without the lost ones."""
        placed = self.running.placement.of(podset) if self.running is not None else None
        slots = dict(placed.by_node) if placed is not None else {}
        for of, name, count in self.running.lost if self.running is not None else ():
            if of == podset:
                slots[name] = slots.get(name, 0) - count
        return slots


@dataclass(frozen=True)
class PlanIndex:
    snapshot: Snapshot
    plan: Plan
    known_use: KnownUse = field(default_factory=KnownUse)
    _queues: dict[tuple[str, str | None], ClusterQueue | None] = field(default_factory=dict)

    @cached_property
    def pending(self) -> dict[str, Pending]:
        return {p.workload.uid: p for p in self.snapshot.pending}

    @cached_property
    def running(self) -> dict[str, Admitted]:
        return {a.workload.uid: a for a in self.snapshot.admitted}

    @cached_property
    def added(self) -> dict[str, dict[str, list[str]]]:
        """By uid of an elastic gang, podset to the nodes of the healthy pods that were added and stay."""
        return {uid: nodes_of_added(pods) for uid, pods in added_pods(self.snapshot).items()}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return dict(self.snapshot.fleet.by_name)

    @cached_property
    def refused(self) -> dict[str, Refusal]:
        return {r.uid: r for r in self.plan.pending}

    @cached_property
    def planned(self) -> tuple[ScheduledGang, ...]:
        """The starts that this plan gives to pending gangs. One without a time has that of an earlier plan, and takes no place."""
        return tuple(p for p in self.plan.planned if p.is_current and p.uid in self.pending)

    @cached_property
    def placements(self) -> dict[str, Placement]:
        """By uid, of the gangs that start or are repaired."""
        return {a.uid: a.placement for a in self.plan.admitted}

    @cached_property
    def started(self) -> frozenset[str]:
        """Uids that start now; repaired gangs already run."""
        return frozenset(a.uid for a in self.plan.admitted if not a.repaired)

    @cached_property
    def gone_after(self) -> frozenset[str]:
        """Uids whose capacity comes free: leaving already, or evicted by this plan."""
        leaving = {a.workload.uid for a in self.snapshot.admitted if a.leaving}
        leaving.update(p.victim for p in self.plan.preempted)
        leaving.update(m.uid for m in self.plan.moved)
        leaving.update(e.uid for e in self.plan.evicted)
        return frozenset(leaving)

    @cached_property
    def claims(self) -> tuple[PlacedGang, ...]:
        return tuple(self._claims())

    def _claims(self) -> Iterator[PlacedGang]:
        for admission in self.plan.admitted:
            if admission.repaired:
                gang = self.running.get(admission.uid)
                if gang is not None:
                    placement = admission.placement
                    yield PlacedGang(gang.workload, placement, True, gang.excluded, gang)
            elif (entry := self.pending.get(admission.uid)) is not None:
                yield PlacedGang(entry.workload, admission.placement, True, entry.excluded)
        for refusal in self.plan.pending:
            waiting = self.pending.get(refusal.uid)
            if refusal.lease is not None and waiting is not None:
                yield PlacedGang(waiting.workload, refusal.lease.placement, False, waiting.excluded)
            elif refusal.lease is not None and (gang := self.running.get(refusal.uid)) is not None:
                placement = refusal.lease.placement
                yield PlacedGang(gang.workload, placement, False, gang.excluded, gang)
        for move in self.plan.moved:
            if (gang := self.running.get(move.uid)) is not None:
                yield PlacedGang(gang.workload, move.placement, False, gang.excluded)
        for uid in self.plan.returning:
            if (gang := self.running.get(uid)) is not None and gang.lease is not None:
                yield PlacedGang(gang.workload, gang.lease.placement, False, gang.excluded)

    @cached_property
    def members(self) -> dict[str, CohortMember]:
        """ClusterQueue name to its place among the cohorts."""
        return members_of(self.snapshot.config)

    def broken(self, uid: str) -> bool:
        """Whether it is a running gang that lost slots and is not leaving."""
        gang = self.running.get(uid)
        return gang is not None and bool(gang.lost) and not gang.leaving

    def queue_of(self, workload: Workload) -> ClusterQueue | None:
        """Its ClusterQueue, or None when it names no queue or one that does not exist."""
        config = self.snapshot.config
        if workload.charged_queue is not None:
            return config.cluster_queues.get(workload.charged_queue)
        key = (workload.namespace, workload.queue)
        if key not in self._queues:
            self._queues[key] = config.cluster_queue_of(*key)
        return self._queues[key]

    def opts_out(self, workload: Workload) -> bool:
        """Whether a gang is not preemptible, and its ClusterQueue, if it has one, honors that."""
        queue = self.queue_of(workload)
        honored = queue is None or queue.preemption_opt_out is not OptOut.NEVER
        return honored and not workload.preemptible

    def flavors_of(self, placed: PodSetPlacement) -> list[ResourceFlavor]:
        known = self.snapshot.config.flavors
        return [known[name] for name in sorted(set(placed.flavors.values())) if name in known]

    def takes_nodes(self, placed: PodSetPlacement) -> bool:
        """Whether the podset's pods need nodes: not when its flavors are quota only, no node is known or its nodes do not exist yet."""
        if placed.awaits_nodes or not self.snapshot.fleet.nodes:
            return False
        flavors = self.flavors_of(placed)
        return not flavors or any(f.topology is not None for f in flavors)

    def charged(self, podset: PodSet) -> Resources:
        """The quota charge of one of its pods."""
        return self.snapshot.config.rules.charged(podset.shape.requests)

    def pods_charged(self, podset: PodSet, placed: PodSetPlacement) -> int:
        """How many pods count against quota: what is placed, or all of a podset that needs no node."""
        return placed.count if self.takes_nodes(placed) else placed.pods_of(podset)

    @cached_property
    def running_use(self) -> RunningUse:
        """The use of all running gangs, including those that are leaving."""
        return self.known_use.of(
            self.snapshot.admitted,
            lambda gang: tuple(self._charges(gang.workload, gang.placement)),
            has_nodes=bool(self.snapshot.fleet.nodes),
        )

    def charges(self, workload: Workload, placement: Placement) -> Charges:
        """The charges of a gang on a placement."""
        gang = self.running.get(workload.uid)
        if gang is not None and gang.workload is workload and gang.placement is placement:
            return self.running_use.gangs[id(gang)].charges
        return tuple(self._charges(workload, placement))

    def _charges(self, workload: Workload, placement: Placement) -> Iterator[tuple[Row, int]]:
        queue = self.queue_of(workload)
        for podset in workload.podsets if queue is not None else ():
            placed = placement.of(podset.name)
            if queue is None or placed is None:
                continue
            pods = self.pods_charged(podset, placed)
            for resource, flavor, share in placed.charges(pods):
                if amount := self.charged(podset)[resource] * share:
                    yield (queue.name, flavor, resource), amount

    def topologies_for(
        self, flavors: Sequence[ResourceFlavor], levels: Iterable[str]
    ) -> list[Topology]:
        """The topologies of some flavors; without a flavor, those with all levels that the group asks for."""
        known = self.snapshot.config.topologies
        if not flavors:
            return [t for t in known.values() if set(levels) <= set(t.levels)]
        return [
            known[f.topology] for f in flavors if f.topology is not None and f.topology in known
        ]

    def counts(
        self, claim: PlacedGang, flavors: Iterable[ResourceFlavor], level: str | None
    ) -> bool:
        """Whether a level that a gang names binds its placement: for one that is repaired, only while its topologies have it."""
        if claim.running is None:
            return True
        names = {flavor.topology for flavor in flavors}
        known = self.snapshot.config.topologies.items()
        return any(
            level in topology.levels for name, topology in known if not names or name in names
        )

    def domain_of(
        self, name: str, level: str, topologies: list[Topology]
    ) -> tuple[str, ...] | None:
        """The domain of a node by its name; None if no such node exists, or a label is missing."""
        node = self.nodes.get(name)
        return None if node is None else domain_of(node, level, topologies)


class PlanRule(StrEnum):
    """The rule a plan broke; the comment names its purpose."""

    PARTITION = "Partition"  # each pending gang is in exactly one list
    WHOLE = "Whole"  # every pod of the gang has a slot
    ELIGIBLE = "Eligible"  # node ready, selected, tolerated, not excluded
    TOPOLOGY = "Topology"  # required level, groups share a domain
    CAPACITY = "Capacity"  # no node over its allocatable
    DEVICES = "Devices"  # the devices of a node are enough for its pods, whichever each pod gets
    VENDORS = "Vendors"  # no request of a gang can get GPUs of two vendors
    FLAVOR = "Flavor"  # charged as the ClusterQueue's resource groups say
    QUOTA = "Quota"  # no ClusterQueue or cohort over its quota and limits
    RESOURCE_QUOTA = "ResourceQuota"  # no namespace over what Kubernetes lets it use
    SHARED_GPUS = "SharedGpus"  # pods of a gang that could get the same GPU, or GPUs that its queue lets it share
    BUDGET = "Budget"  # no start that a budget with whenSpent Hold cannot pay
    RESOURCE_CLAIM = "ResourceClaim"  # no start with a claim that another gang uses
    MAX_PER_USER = "MaxPerUser"  # no user over what a ClusterQueue lets one hold
    INADMISSIBLE = "Inadmissible"  # blocked gang, stopped queue, namespace not selected
    ORDER = "Order"  # no gang is passed in a StrictFIFO queue
    VICTIM = "Victim"  # only legal victims, only for a named gang that fits
    MOVE = "Move"  # only permitted gangs, for a named gang that fits, to their own place, within budget
    LEASE = "Lease"  # a lease names its victims, has not ended, and its kept capacity is not taken
    REPAIR = "Repair"  # healthy slots of a repaired gang stay
    PLANNED_START = "PlannedStart"  # a planned start can happen, and is late only for a cause
    RESERVATION = (
        "Reservation"  # its nodes hold it, and no gang alongside it starts on what it keeps
    )
    REASON = "Reason"  # every refusal has a reason


@dataclass(frozen=True, slots=True)
class PlanViolation:
    """One broken rule: which, by whom or where (uid, node or queue), and a sentence with the numbers."""

    rule: PlanRule
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}: {self.message}"
