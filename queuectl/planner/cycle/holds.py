"""Gangs that are held: their capacity is reserved until their admission checks are ready.

A gang that fits is held on its place. A gang that no node is free for is held on no nodes: it gets quota if an admission check of its
ClusterQueue makes nodes for the flavors of the quota. Until its check is ready it counts like a gang that runs, but on no node. From then
on it is planned in each cycle, and keeps its quota in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from queuectl.domain.checks import CheckRule
from queuectl.domain.devices import OTHER_PODS, PodDevices
from queuectl.domain.fleet import Fleet, Node, NodeTemplate, Taint
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.provisioning import MOST_PODSETS
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig, needed_checks
from queuectl.domain.reasons import LACKS_NODES, Code, Reason
from queuectl.domain.snapshot import NO_END, CapacityLease, Pending, Snapshot
from queuectl.domain.words import counted, format_time
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.node_counts import TentativeAdmission, placement_of
from queuectl.planner.capacity.state import CycleState, open_state
from queuectl.planner.problem.flavors import Flavors, members_of
from queuectl.planner.problem.fleet import index_of
from queuectl.planner.problem.limit_rows import with_limit_rows
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import GangRequest, quota_only, request_of
from queuectl.planner.reasons.refusals import short_of_quota
from queuectl.planner.search.flavor_choice import FlavorChooser
from queuectl.planner.solver import Solver


def makers_of_nodes(
    config: QueueConfig, queue: ClusterQueue | None, workload: Workload
) -> list[CheckRule]:
    """The checks of the ClusterQueue that make nodes for a gang, for some flavor at least. A check without its object makes none."""
    checks = queue.admission_checks if queue is not None else ()
    rules = (rule for rule in checks if rule.provisions and rule.name in config.checks)
    return [rule for rule in rules if config.checks[rule.name].makes_nodes_for(workload.podsets)]


@dataclass(frozen=True, slots=True)
class Hold:
    """A gang that is held.

    Attributes:
        admission: what is reserved for it. Its place can change until the cycle ends.
        text: of its reason.
        without_nodes: the placement of a gang whose nodes do not exist; quota alone is reserved for it.
        put_off: why the cycle did not search for the gang, so that later ones do; None if it did.
    """

    admission: TentativeAdmission
    text: str
    without_nodes: Placement | None = None
    put_off: Reason | None = None

    def refusal(self, problem: Problem) -> Refusal:
        """The answer for the gang, on its current place."""
        request, pending = self.admission.request, self.admission.request.pending
        placement = self.without_nodes or placement_of(problem, request, self.admission.node_counts)
        queue = problem.snapshot.queue_of(pending.workload)
        assert queue is not None, "only ClusterQueues have admission checks"
        lease = pending.lease
        if lease is None or lease.victims or lease.placement != placement:
            lease = CapacityLease(placement, (), problem.snapshot.now, NO_END)
        needed = needed_checks(queue, placement, pending.ready_checks)
        details = {"admissionChecks": _missing(pending, needed), **queue.shown_prices}
        reason = self.put_off or Reason(Code.WAITING_FOR_CHECKS, self.text, details)
        proof = Proof.OPTIMAL if self.put_off is None else Proof.UNDECIDED
        return Refusal(pending.workload.uid, (reason,), lease, proof=proof, checks=needed)


def hold_on_place(admission: TentativeAdmission) -> Hold | None:
    """The hold of a gang that fits; None if its admission checks are ready."""
    missing = admission.request.awaited_checks
    text = f"it fits, and waits for its admission checks: {', '.join(missing)}"
    return Hold(admission, text) if missing else None


def _missing(pending: Pending, needed: Iterable[str]) -> list[str]:
    return [name for name in needed if name not in pending.ready_checks]


@dataclass(frozen=True, slots=True)
class NotMade:
    """No nodes are made for a gang. ``why``: the reasons, those that can change without a new configuration first."""

    why: tuple[Reason, ...] = ()


def hold_without_nodes(
    state: CycleState,
    pending: Pending,
    queue: ClusterQueue,
    requests: Iterable[GangRequest],
    why: tuple[Reason, ...],
    solver: Solver,
) -> Hold | NotMade:
    """Quota for a gang, under the first choice of flavors for which a check makes nodes and quota is left.

    A gang whose nodes were made keeps its flavors: no other nodes are requested for it while it holds quota.

    Args:
        state: of the cycle.
        pending: the gang. It starts nowhere now.
        queue: its ClusterQueue.
        requests: what it asks under each choice of flavors, the preferred first.
        why: the reasons for which it does not start; empty if the cluster has no nodes.
        solver: of the plan.
    """
    workload = pending.workload
    if why and not any(reason.code in LACKS_NODES for reason in why):
        return NotMade()
    makers = makers_of_nodes(state.problem.snapshot.config, queue, workload)
    made_for = _made_for(pending)
    never = []
    for request in requests:
        if request.cut is not None or len(request.flavors) != len(workload.podsets):
            continue
        placement = _without_nodes(state, pending, request)
        if made_for is not None and _charged(placement) != made_for:
            continue
        needed = needed_checks(queue, placement, pending.ready_checks)
        needed_makers = [rule for rule in makers if rule.name in needed]
        if (
            not placement.awaits_nodes
            or not needed_makers
            or not (why or state.quota.fits(request))
        ):
            continue
        made = _made(makers, request)
        reason = (
            _unrequestable(state.problem.snapshot.config, workload, needed_makers, placement)
            or _unasked(state, pending, made)
            or never_fits_templates(state.problem, pending, queue, request.flavors, made, solver)
            or short_of_quota(state, request)
        )
        if reason is None:
            admission = TentativeAdmission(quota_only(request), ())
            text = _text(_missing(pending, needed), [rule.name for rule in needed_makers], why)
            return Hold(admission, text, placement)
        if reason not in never:  # some do not depend on the flavor
            never.append(reason)
    return NotMade(tuple(sorted(never, key=lambda reason: reason.never_fits)))


def _made_for(pending: Pending) -> list[frozenset[str]] | None:
    """The flavors of the nodes that were made for a gang, per podset; None if it does not wait for such nodes."""
    lease = pending.lease
    return _charged(lease.placement) if lease is not None and lease.placement.awaits_nodes else None


def _charged(placement: Placement) -> list[frozenset[str]]:
    return [frozenset(podset.charged) for podset in placement.podsets]


def _unrequestable(
    config: QueueConfig, workload: Workload, makers: Iterable[CheckRule], placement: Placement
) -> Reason | None:
    """Why no request can ask for the nodes of a gang: it has ResourceClaims, NUMA nodes, or too many podsets. None = it can.

    ``makers``: the checks that request the nodes of this placement.
    """
    aligned = [podset.name for podset in workload.podsets if podset.one_numa_node]
    if aligned:
        text = f"no nodes are requested, because podset {', '.join(aligned)} requests one NUMA node for each pod"
        return Reason(Code.SHAPE_NEVER_FITS, text, {"podSets": aligned})
    claiming = [p.name for p in workload.podsets if p.claims or _claims_devices(p.shape.devices)]
    if claiming:
        text = f"no nodes are requested, because podset {', '.join(claiming)} requests devices by ResourceClaims"
        return Reason(Code.SHAPE_NEVER_FITS, text, {"podSets": claiming})
    settings = (config.checks[rule.name].provisioning for rule in makers)
    most = max(
        (len(one.requested(workload.podsets, placement)) for one in settings if one), default=0
    )
    if most <= MOST_PODSETS:
        return None
    text = f"no nodes are requested, because a ProvisioningRequest has at most {MOST_PODSETS} podSets, and this one needs {most}"
    return Reason(Code.SHAPE_NEVER_FITS, text, {"podSets": most})


def _claims_devices(devices: PodDevices | None) -> bool:
    """Whether a pod requests devices. Its use of NUMA nodes that other gangs request does not count."""
    if devices is None:
        return False
    asked = {
        option.device_class
        for claim in devices.claims
        for r in claim.requests
        for option in r.options
    }
    return bool(devices.shared) or not asked <= {OTHER_PODS}


def _unasked(state: CycleState, pending: Pending, made_flavors: frozenset[str]) -> Reason | None:
    """Why no nodes of these flavors are requested now."""
    now = state.problem.snapshot.now
    closed = {flavor: at for flavor, at in pending.unasked if flavor in made_flavors and at > now}
    if not closed:
        return None
    parts = [f"{flavor} before {format_time(at)}" for flavor, at in closed.items()]
    text = f"no nodes are requested of flavor {' and '.join(parts)}, because its requests for them failed"
    details = {"flavors": {flavor: format_time(at) for flavor, at in closed.items()}}
    return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details)


def _made(makers: Iterable[CheckRule], request: GangRequest) -> frozenset[str]:
    """The flavors of a request for which a check makes nodes."""
    return frozenset(
        name for name in request.flavor_names if any(rule.applies((name,)) for rule in makers)
    )


def _without_nodes(state: CycleState, pending: Pending, request: GangRequest) -> Placement:
    known = state.problem.snapshot.config.flavors
    placed = []
    for podset, flavors in zip(pending.workload.podsets, request.flavors, strict=True):
        charged = [known[name] for name in flavors.values() if name in known]
        takes_nodes = bool(podset.count) and any(f.topology is not None for f in charged)
        pods = podset.count if podset.min_count is not None else None
        placed.append(
            PodSetPlacement(podset.name, (), dict(flavors), pods, awaits_nodes=takes_nodes)
        )
    return Placement(tuple(placed))


def _text(missing: list[str], makers: list[str], why: tuple[Reason, ...]) -> str:
    if missing:
        return f"its admission checks request its nodes: {', '.join(makers)}"
    cause = why[0].message if why else "none of them is in the cluster"
    return f"nodes were made for it, and it does not fit yet: {cause}"


# ---- Nodes that can be made
#
# Whether a gang fits the nodes that can be made for its flavors: the placement of real nodes, on those of ``nodeTemplate``.
#
# All nodes of the templates are taken as existing and empty, and the proof that a gang never fits is the same as for real ones.


class _Fleets(dict[tuple[str, ...], tuple[object, Fleet]]):
    """By names of flavors, the nodes that can be made for them, and from what."""


def never_fits_templates(
    problem: Problem,
    pending: Pending,
    queue: ClusterQueue,
    flavors: Flavors,
    made_flavors: Collection[str],
    solver: Solver,
) -> Reason | None:
    """Why the nodes that can be made for a gang can never hold it; None if they can, or if this is not known.

    Args:
        problem: of the cycle.
        pending: the gang.
        queue: its ClusterQueue.
        flavors: per podset, resource to flavor.
        made_flavors: flavors for which a check makes nodes. PodSets with another flavor, or with one that has no template, are not judged.
        solver: of the plan.
    """
    described = _described(problem.snapshot.config, flavors, made_flavors)
    judged = list(_judged(problem.snapshot.config, pending.workload, flavors, described))
    if not judged:
        return None
    podsets = tuple(_of_new_nodes(pending.workload.podsets[number]) for number in judged)
    pending = replace(pending, workload=replace(pending.workload, podsets=podsets))
    flavors = tuple(flavors[number] for number in judged)
    there = problem.once(_with_templates, tuple(sorted(described)))
    chooser = FlavorChooser(there, open_state(there), solver)
    reason = chooser.never(request_of(there, pending, queue, flavors), queue)
    return _named(reason, described) if reason is not None else None


def _described(
    config: QueueConfig, flavors: Flavors, made_flavors: Collection[str]
) -> dict[str, NodeTemplate]:
    """The templates of the flavors of a gang for which nodes are made, by name of the flavor."""
    names = {name for chosen in flavors for name in chosen.values() if name in made_flavors}
    known = {name: config.flavors.get(name) for name in sorted(names)}
    return {
        name: flavor.node_template
        for name, flavor in known.items()
        if flavor is not None and flavor.node_template is not None
    }


def _judged(
    config: QueueConfig, workload: Workload, flavors: Flavors, described: Collection[str]
) -> Iterator[int]:
    """The podsets that go on nodes of templates only, by number: whole groups of podsets."""
    known = config.flavors

    def on_described(number: int) -> bool:
        chosen = set(flavors[number].values())
        on_nodes = {name for name in chosen if name in known and known[name].topology is not None}
        return bool(on_nodes) and on_nodes <= set(described)

    for members in members_of(workload):
        if all(map(on_described, members)):
            yield from members


def _of_new_nodes(podset: PodSet) -> PodSet:
    """Without the planner's own resources of current nodes, whose names have a space: Reservations, limits on shared GPUs."""
    requests = podset.shape.requests
    asked = Resources({name: amount for name, amount in requests.items() if " " not in name})
    return replace(podset, shape=replace(podset.shape, requests=asked))


def _named(reason: Reason, described: Mapping[str, NodeTemplate]) -> Reason:
    parts = [
        f"flavor {name} (at most {counted(template.maximum, 'node')})"
        for name, template in described.items()
    ]
    text = (
        f"no nodes are requested, because it does not fit the nodeTemplate of {' and '.join(parts)}"
    )
    details = {**reason.details, "flavors": list(described)}
    return Reason(reason.code, f"{text}: {reason.message}", details)


def _with_templates(problem: Problem, names: tuple[str, ...]) -> Problem:
    """The problem of the nodes that can be made for these flavors, all of them empty."""
    snapshot, cache = problem.snapshot, problem.cache
    fleet = _fleet(snapshot.config, names, cache)
    empty = Snapshot(snapshot.now, fleet, snapshot.config, limits=snapshot.limits)
    empty = with_limit_rows(empty, cache)
    index_of(empty.fleet, cache)  # for the next plans too, unlike its use
    return survey(empty, cache.fork())


def _fleet(config: QueueConfig, names: tuple[str, ...], cache: PlannerCache) -> Fleet:
    """The same object while the templates are the same: it must not depend on the configuration, whose edits are frequent."""
    fleets = cache.latest(_Fleets)
    if fleets is None:
        fleets = cache.keep_latest(_Fleets())
    made_from = [_template(config, name) for name in names]
    known = fleets.get(names)
    if known is None or known[0] != made_from:
        nodes: list[Node] = []
        for name, (template, levels, labels, taints) in zip(names, made_from, strict=True):
            nodes += template.nodes(name, levels, labels, taints)
        known = fleets[names] = made_from, Fleet(tuple(sorted(nodes, key=lambda node: node.name)))
    return known[1]


def _template(
    config: QueueConfig, name: str
) -> tuple[NodeTemplate, tuple[str, ...], dict[str, str], tuple[Taint, ...]]:
    """The template of a flavor, the levels of its Topology, and its labels and taints."""
    flavor = config.flavors[name]
    topology = config.topologies.get(flavor.topology or "")
    assert flavor.node_template is not None
    levels = topology.levels if topology is not None else ()
    return flavor.node_template, levels, dict(flavor.node_labels), tuple(flavor.node_taints)
