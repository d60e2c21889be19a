"""Reasons for which a gang does not start: one sentence, and the numbers as details.

:mod:`queuectl.planner.explain` computes blocking constraints and suggested fixes, on demand and outside the cycle.

A gang can also wait for nodes and devices that are out of use for a time. The nodes as they can be are those of
:attr:`queuectl.domain.fleet.Node.recovered`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np

from queuectl.devices.numa_devices import NUMA_DRIVER
from queuectl.devices.pools import effective
from queuectl.domain.devices import NodeDevices, not_sure
from queuectl.domain.diagnosis import is_cordoned
from queuectl.domain.fleet import Node
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import WAITS_FOR, Code, Reason
from queuectl.domain.reservations import Occurrence
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import counted, format_time, is_or_are, some
from queuectl.planner.capacity.state import CycleState, WithheldQuota
from queuectl.planner.placement import greedy
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import UNBOUNDED, Problem, caps
from queuectl.planner.problem.request import GangRequest, PodSetGroup, ahead_of, beside_these
from queuectl.planner.quota import FlavorResource, QuotaNode
from queuectl.planner.reasons.lacks import largest_fit
from queuectl.planner.reasons.words import (
    asked_by,
    devices_asked,
    no_placement,
    plain,
    without_devices,
)

# ---- Nodes and devices that are out of use for a time

_MOST: Final = 50  # nodes that are named


def unavailable_because(snapshot: Snapshot, node: Node, excluded: Collection[str] = ()) -> str:
    """Why a node, or a part of it, is out of use for a time; empty if it is not.

    Args:
        snapshot: with the node.
        node: of the snapshot.
        excluded: names of the nodes that the gang must not use.
    """
    why = _why_not_usable(snapshot, node, excluded)
    if not why:
        return " and ".join([*lost_devices(snapshot, node), *held_devices(snapshot, node)])
    return why if node.out_since is None else f"{why} since {format_time(node.out_since)}"


def _why_not_usable(snapshot: Snapshot, node: Node, excluded: Collection[str]) -> str:
    if not node.ready:
        return "not ready"
    if node.unhealthy:
        return f"unhealthy: {node.unhealthy}"
    if node.mig is not None and node.mig.phase.active:
        return f"gets the MIG configuration {node.mig.target.config}"
    if is_cordoned(node):
        return "cordoned"
    if node.name in excluded:
        announcing = snapshot.config.rules.interruption_taints
        taint = next((t.key for t in node.taints if t.key in announcing), None)
        if taint is not None:
            return f"taken away soon: taint {taint}"
        return "refused by kube-scheduler until the gang is requeued"
    return next((f"taint {t.key}:{t.effect}" for t in node.taints if t.passes), "")


def lost_devices(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """Why devices of a node are out of use."""
    for name, amount in sorted(node.failed.items()):
        yield f"{format_quantity(name, amount)} {name} unhealthy"
    if not node.occupied:
        return
    known = snapshot.devices
    devices = known.nodes.get(node.name, NodeDevices()).devices
    tainted = [device for device in devices if any(effective(device))]
    if tainted:
        yield some([f"device {d.id} has the taint {next(effective(d))}" for d in tainted])
    published = {device.id for device in devices}
    gone = known.recovered.get(node.name, NodeDevices()).devices
    for driver, number in sorted(
        Counter(d.id.driver for d in gone if d.id not in published).items()
    ):
        yield f"{counted(number, 'device')} of {driver} not published"


def held_devices(snapshot: Snapshot, node: Node) -> Iterator[str]:
    """The devices of a node that pods of no gang hold."""
    held = snapshot.other_devices.get(node.name, ())
    if node.occupied and held:
        names = {"NUMA nodes" if d.driver == NUMA_DRIVER else str(d) for d in (h.id for h in held)}
        yield f"pods of no gang hold {some(sorted(names))}"


def awaiting_nodes(problem: Problem, lasting: GangRequest, why: Reason) -> Reason:
    """The reason of a gang that has room only on the nodes as they can be, with what it waits for.

    Args:
        problem: of the snapshot.
        lasting: the request of the gang of the nodes as they can be.
        why: the reason for which it does not start.
    """
    excluded = lasting.pending.excluded
    nodes = _those(problem, np.flatnonzero(gaining(problem, lasting)).tolist(), excluded)
    if not nodes:
        return why
    text = f"{why.message}; even if no other gang ran, it waits for {listed(nodes)}"
    return replace(why, message=text, details={**why.details, WAITS_FOR: {"nodes": nodes}})


def out_of_use(problem: Problem, labels: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The nodes with these labels that are out of use for a time, in whole or in part, by name, and why."""
    index = problem.index
    at = np.flatnonzero(index.labeled(tuple(labels)))
    return _those(
        problem, (i for i in at.tolist() if index.nodes[i].recovered is not index.nodes[i])
    )


def listed(nodes: Mapping[str, str]) -> str:
    """``n1 (cordoned), n2 (not ready)``."""
    return some([f"{name} ({why})" for name, why in nodes.items()])


def _those(
    problem: Problem, numbers: Iterable[int], excluded: Collection[str] = ()
) -> dict[str, str]:
    snapshot, nodes = problem.snapshot, problem.index.nodes
    return {
        nodes[i].name: unavailable_because(snapshot, nodes[i], excluded) or "out of use"
        for i in islice(numbers, _MOST)
    }


def gaining(problem: Problem, lasting: GangRequest) -> Mask:
    """The nodes that have room for more pods of a gang once they have recovered. Shape (N,)."""
    index = problem.index
    gains = np.zeros(problem.size, dtype=np.bool_)
    allowed = index.ready.copy()
    excluded = [index.position[n] for n in lasting.pending.excluded if n in index.position]
    allowed[excluded] = False
    for pods in lasting.pods:
        now = pods.shape.eligible & allowed & index.mask(pods.shape.rules)
        gains |= caps(index.recovered.allocatable, pods.shape) > caps(
            index.allocatable, pods.shape, eligible=now
        )
    return gains


# ---- Reasons of refusals


def no_flavor(queue: ClusterQueue, options: Options) -> Reason:
    """No choice of flavors is admissible."""
    details: dict[str, Any] = {"clusterQueue": queue.name}
    if options.uncovered:
        details["uncovered"] = list(options.uncovered)
        return Reason(Code.NO_MATCHING_FLAVOR, uncovered(queue, options), details)
    details["flavors"] = dict(sorted(options.refused.items()))
    why = "; ".join(f"{name}: {text}" for name, text in sorted(options.refused.items()))
    text = f"no flavor of ClusterQueue {queue.name} is admissible ({why})"
    return Reason(Code.NO_MATCHING_FLAVOR, text, details)


def uncovered(queue: ClusterQueue, options: Options) -> str:
    """The requested resources that no resource group of the ClusterQueue covers."""
    names = ", ".join(options.uncovered)
    verb, pronoun = ("is", "it") if len(options.uncovered) == 1 else ("are", "them")
    return f"{names} {verb} requested, but ClusterQueue {queue.name} has no quota for {pronoun}"


def undecided(budget: int, alarm: str = "") -> Reason:
    """The search ended without an answer."""
    if alarm:
        text = "the solver failed; the next cycle tries again"
        return Reason(Code.UNDECIDED, text, {"budget": budget, "alarm": alarm})
    text = "the solver reached its limit without an answer; the next cycle tries again with a larger limit"
    return Reason(Code.UNDECIDED, text, {"budget": budget})


# Planned starts.


def delays(ref: str, at: float, longest: float, request: GangRequest) -> Reason:
    """It fits now, and would take what a planned start needs.

    Args:
        ref: of the gang with the planned start, as ``namespace/name``.
        at: unix seconds of that start.
        longest: seconds that a gang can run without any effect on planned starts.
        request: of this gang.
    """
    until = format_time(at)
    delays = f"it would delay {ref}, which has a planned start at {until}: it fits now"
    if checks := request.awaited_checks:
        text = f"{delays}, and it would hold its nodes for an unknown time, until its admission checks are ready: {', '.join(checks)}"
        return _for_planned_start(text, ref, until, admissionChecks=list(checks))
    unknown = request.pending.workload.duration is None
    runs = "and the end of its run is unknown" if unknown else "and would still run then"
    text = f"{delays}, {runs}; a run of at most {max(0, int(longest))} s would not"
    return _for_planned_start(text, ref, until, mostSeconds=max(0.0, longest))


def reserving_delays(ref: str, at: float) -> Reason:
    """It does not fit yet, and the capacity that would be reserved until it starts is what a planned start needs.

    Args:
        ref: of the gang with the planned start, as ``namespace/name``.
        at: unix seconds of that start.
    """
    until = format_time(at)
    text = (
        "capacity would be reserved for it until it can start, "
        f"and this would delay {ref}, which has a planned start at {until}"
    )
    return _for_planned_start(text, ref, until)


def keeps_whole_node(ref: str, at: float) -> Reason:
    """It fits now on a node that is completely free. A planned start needs several nodes, and a learned run time is not certain enough.

    Args:
        ref: of the gang with the planned start, as ``namespace/name``.
        at: unix seconds of that start.
    """
    until = format_time(at)
    text = (
        f"it fits now on a free node that {ref}, with a planned start at {until}, can need: earlier gangs like it ran longer; "
        "with a limit, it starts if it ends before"
    )
    return _for_planned_start(text, ref, until)


def needs_claim(ref: str, at: float) -> Reason:
    """It would still use a ResourceClaim when a planned start needs it.

    Args:
        ref: of the gang with the planned start, as ``namespace/name``.
        at: unix seconds of that start.
    """
    until = format_time(at)
    text = f"it would still use a ResourceClaim that {ref} needs at its planned start at {until}"
    return _for_planned_start(text, ref, until)


def _for_planned_start(text: str, ref: str, until: str, **more: Any) -> Reason:
    """The reason of a gang that waits for a planned start, with ``more`` details."""
    return Reason(Code.WOULD_DELAY, text, {"behind": ref, "plannedStart": until, **more})


def length_unknown(ref: str) -> Reason:
    """A gang before it in its line waits, and the length of this one is unknown."""
    text = (
        f"Backfill: it waits behind {ref}, because the end of its run is unknown; "
        "a gang with a limit of its execution time can start before that gang"
    )
    return Reason(Code.WOULD_DELAY, text, {"behind": ref})


# Placement.


def placement_failed(state: CycleState, request: GangRequest) -> Reason:
    """No placement on the capacity that the gangs before it leave free."""
    why = _reserved(state, request) or _first_tight(state, request)
    if why is not None:
        return why
    details = {"units": [plain(podset_group) for podset_group in request.podset_groups]}
    return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, no_placement(request.podset_groups), details)


def _reserved(state: CycleState, request: GangRequest) -> Reason | None:
    """The Reservation without which it fits; None if it does not fit without any. The longest run that fits ends when it starts."""
    problem, free = state.problem, state.free()
    ahead = sorted(ahead_of(problem, request), key=lambda each: (each.begins, each.name))
    while ahead:
        each = ahead.pop()
        without = beside_these(problem, request, ahead)
        if greedy.find(without, free, lambda shape: caps(free, shape)) is not None:
            return _reservation_ahead(each, problem.snapshot.now, request)
    return None


def _reservation_ahead(each: Occurrence, now: float, request: GangRequest) -> Reason:
    duration = request.pending.workload.duration
    begins, ends = format_time(each.begins), format_time(each.ends)
    longest = max(0.0, each.begins - now)
    keeps = f"Reservation {each.name} keeps the nodes that it needs"
    if each.active(now):
        text = f"{keeps} until {ends}"
    elif duration is not None and duration.seconds <= longest:  # a check can delay its end
        text = f"{keeps} from {begins}, and its admission checks can hold it for an unknown time"
        longest = 0.0
    else:
        runs = "the end of its run is unknown" if duration is None else "it would still run then"
        text = f"{keeps} from {begins}, and {runs}; a run of at most {int(longest)} s fits"
    details = {
        "reservation": each.name,
        "from": begins,
        "until": ends,
        "runsSeconds": None if duration is None else duration.seconds,
        "mostSeconds": longest,
    }
    return Reason(Code.RESERVATION_AHEAD, text, details)


def never_fits(state: CycleState, request: GangRequest) -> Reason:
    """No placement even if every node were healthy and empty.

    Args:
        state: of the cycle.
        request: built with ``lasting`` nodes.
    """
    empty = state.problem.index.recovered.allocatable
    for podset_group in request.podset_groups:
        fit = largest_fit(podset_group, empty, state)
        if fit.short:
            if no_device := _no_device(state, podset_group):
                return Reason(Code.SHAPE_NEVER_FITS, f"{fit.needed}; {no_device}", fit.details)
            each_fits = all(caps(empty, p.shape).any() for p in podset_group.pods)
            why = _not_sure(state, podset_group, empty) if each_fits else None
            if why is not None:
                fit = largest_fit(podset_group, empty)
            text = f"{fit.needed}; even if all nodes were empty, {fit.at_most}"
            if why is not None:
                return Reason(Code.UNSUPPORTED, f"{text}: {why}", fit.details)
            return Reason(Code.SHAPE_NEVER_FITS, text, fit.details)
    parts = "; ".join(map(asked_by, request.podset_groups))
    text = f"no placement exists for {parts}, even if all nodes were empty"
    details = {"units": [plain(podset_group) for podset_group in request.podset_groups]}
    return Reason(Code.SHAPE_NEVER_FITS, text, details)


def _no_device(state: CycleState, podset_group: PodSetGroup) -> str | None:
    """The request for devices that no node can serve; None if each request has a node."""
    index = state.problem.index.recovered
    requested = (name for pods in podset_group.pods for name in sorted(pods.shape.requests))
    missing = (
        asked
        for name in requested
        if (asked := devices_asked(name))
        and not (name in index.column and index.allocatable[index.column[name]].any())
    )
    return next(map(without_devices, missing), None)


def _not_sure(state: CycleState, podset_group: PodSetGroup, free: Ints) -> str | None:
    """The reason of a podset group that fits by the number of devices alone; None if it does not."""
    resources = state.problem.resources
    rows = [i for i, name in enumerate(resources) if devices_asked(name)]
    if not rows:
        return None
    by_number = free.copy()
    by_number[rows] = UNBOUNDED
    if largest_fit(podset_group, by_number).short:
        return None
    requests = (name for pods in podset_group.pods for name in pods.shape.requests)
    return not_sure(filter(None, map(devices_asked, requests)))


def _occupied(state: CycleState, podset_group: PodSetGroup) -> bool:
    """Whether taints or pods of no gang keep devices of a node from its pods."""
    nodes = state.problem.index.nodes
    eligible = np.flatnonzero(podset_group.to_place[0].shape.eligible).tolist()
    return any(nodes[i].occupied for i in eligible)


def _first_tight(state: CycleState, request: GangRequest) -> Reason | None:
    """The first podset group that the sums of free capacity alone exclude from every domain."""
    free = state.free()
    for podset_group in request.podset_groups:
        fit = largest_fit(podset_group, free, state)
        if fit.short:
            why = _not_sure(state, podset_group, free)
            if why is not None and not _occupied(state, podset_group):
                fit = largest_fit(podset_group, free)
                text = f"{fit.sentence}{fit.free_in_all}: {why}"
            else:
                text = f"{fit.sentence}{fit.free_in_all}"
            return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, fit.details)
    return None


# Quota.


@dataclass(frozen=True, slots=True)
class _Short:
    """One flavor and resource of which a gang needs more than is left.

    Attributes:
        nominal: quota of the ClusterQueue itself.
        used: by the ClusterQueue, reservations included.
        most: ever usable by the ClusterQueue if nothing is used.
        later: if nothing being used is not enough now, what the ClusterQueue waits for; as words and as details.
        left: usable by the ClusterQueue now.
        kept: for gangs that wait in StrictFIFO ClusterQueues: the part of the quota that would be left to this one without them.
        borrows_at: unix seconds before which the gang must not borrow; None if it may.
    """

    queue: str
    row: FlavorResource
    pool: QuotaNode
    need: int
    nominal: int
    used: int
    most: int
    left: int
    kept: Sequence[tuple[WithheldQuota, int]] = ()
    borrows_at: float | None = None
    later: tuple[str, dict[str, Any]] | None = None

    def quantity(self, amount: int) -> str:
        return format_quantity(self.row[1], amount)

    @property
    def limit(self) -> str:
        most = self.pool.borrowing.get(self.row)
        return "" if most is None else f" (borrowing limit {self.quantity(most)})"

    @property
    def never(self) -> str:
        """Why it is too large for the quota that the ClusterQueue can ever use."""
        flavor, resource = self.row
        text = (
            f"{self.quantity(self.need)} {resource} of flavor {flavor} {is_or_are(resource, self.need)} needed, "
            f"{self.quantity(self.need - self.most)} more than ClusterQueue {self.queue} can ever use: "
            f"nominal quota {self.quantity(self.nominal)}"
        )
        most = self.pool.most(self.row)
        more = f"; at most {self.quantity(self.most)} at another time" if self.most > most else ""
        if self.pool.parent is None:
            return f"{text}{more}"
        cohort = self.pool.parent.name
        if most < self.nominal:
            return f"{text}, of which cohort {cohort} allows {self.quantity(most)}{more}"
        borrowed = self.quantity(most - self.nominal)
        return f"{text}, at most {borrowed} borrowed from cohort {cohort}{self.limit}{more}"

    @property
    def now(self) -> str:
        """Which quota it lacks now, for whom it is kept, and what it waits for if that is not other gangs."""
        text = f"{self._now}, but {self._kept}" if self.kept else self._now
        return f"{text}; {self.later[0]}" if self.later is not None else text

    @property
    def _kept(self) -> str:
        resource = self.row[1]
        return some(
            [
                f"{self.quantity(amount)} {is_or_are(resource, amount)} kept for {quota.gang.ref}, "
                f"the first gang that waits for it in StrictFIFO ClusterQueue {quota.queue}"
                for quota, amount in self.kept
            ]
        )

    @property
    def _now(self) -> str:
        (flavor, resource), missing = self.row, self.need - self.left
        text = (
            f"{self.quantity(missing)} more {resource} of flavor {flavor} {is_or_are(resource, missing)} needed "
            f"in ClusterQueue {self.queue}: {self.quantity(self.need)} requested"
        )
        if self.pool.parent is None:
            held = self.quantity(self.nominal - self.left)
            return (
                f"{text}, {held} of nominal quota {self.quantity(self.nominal)} in use or reserved"
            )
        own, cohort = max(0, self.nominal - self.used), self.pool.parent.name
        text = f"{text}, {self.quantity(own)} of nominal quota {self.quantity(self.nominal)} unused"
        left = max(0, self.left + sum(amount for _, amount in self.kept))
        if left < own:
            lent = self.quantity(own - left)
            tree = self.pool.root.name  # the borrower can be in another branch of it
            return f"{text}, but other queues of cohort {tree} have borrowed {lent} of it"
        if self.borrows_at is not None:
            until = format_time(self.borrows_at)
            return f"{text}, no borrowing before {until} because it was evicted"
        more = self.quantity(left - own) if left > own else "nothing"
        return f"{text}, {more} left to borrow in cohort {cohort}{self.limit}"

    def details(self) -> dict[str, Any]:
        flavor, resource = self.row
        details: dict[str, Any] = {"flavor": flavor, "resource": resource, "needs": self.need}
        details["nominal"] = self.nominal
        if self.pool.parent is not None:
            details |= {"cohort": self.pool.parent.name, "left": max(0, self.left)}
            details |= {"used": self.used, "most": self.most}
            if self.row in self.pool.borrowing:
                details["borrowingLimit"] = self.pool.borrowing[self.row]
            if self.borrows_at is not None:
                details["borrowsAt"] = format_time(self.borrows_at)
            if self.kept:
                details["keptFor"] = [
                    {"gang": quota.gang.ref, "clusterQueue": quota.queue, "amount": amount}
                    for quota, amount in self.kept
                ]
        return details


def short_of_quota(state: CycleState, request: GangRequest) -> Reason | None:
    """The quota that a gang lacks: it needs more than the ClusterQueue can ever use, or others use it now. None if it lacks none."""
    shorts = list(_shorts(state, request))
    if not shorts:
        return None
    never = [short for short in shorts if short.need > short.most]
    if never:
        text = "; ".join(short.never for short in never)
        code, rows = Code.EXCEEDS_MAX_QUOTA, [short.details() for short in never]
    else:
        text = "; ".join(short.now for short in shorts)
        code, rows = Code.WAITING_FOR_QUOTA, [{**s.details(), "used": s.used} for s in shorts]
    details: dict[str, Any] = {"clusterQueue": request.queue, "quota": rows}
    if not never:
        waits = {
            key: value for s in shorts if s.later is not None for key, value in s.later[1].items()
        }
        details |= {WAITS_FOR: waits} if waits else {}
    return Reason(code, text, details)


def _shorts(state: CycleState, request: GangRequest) -> Iterator[_Short]:
    """The quota rows that are short for a gang without a reservation: the tighter of the two views counts."""
    if request.queue is None:
        return
    queue, pool = request.queue, state.later.quota.pools[request.queue]
    borrows = state.quota.may_borrow(request)
    for row, left in state.quota.short(request).items():
        need, nominal = request.charges[row], pool.subtree.get(row, 0)
        # leaving gangs are in the use of now, reservations in that of later
        used = max(use.of(queue, row) for use in (state.now.quota, state.later.quota))
        until = None if borrows or pool.parent is None else request.pending.borrows_at
        most, later = state.problem.most(queue, row), None
        if pool.most(row) < need <= most:
            later = _later(state.problem, queue, row, need)
        kept = state.quota.kept_from(request, row)
        yield _Short(queue, row, pool, need, nominal, used, most, left, kept, until, later)


def _later(
    problem: Problem, queue: str, row: FlavorResource, need: int
) -> tuple[str, dict[str, Any]]:
    """The time from which quota is enough, or the nodes that quota follows and that are out of use; as words and as details."""
    at = problem.enough_at(queue, row, need)
    if at is not None:
        time = format_time(at)
        text = f"ClusterQueue {queue} can use enough from {time} on, when a QuotaOverride begins or ends"
        return text, {"quotaFrom": time}
    flavor = problem.snapshot.config.flavors.get(row[0])
    nodes = out_of_use(problem, flavor.node_labels if flavor is not None else ())
    follows = problem.snapshot.config.cluster_queues[queue].headroom is not None
    whose = "its quota" if follows else "quota of its cohort"
    return f"{whose} follows the nodes, and it waits for {listed(nodes)}", {"nodes": nodes}
