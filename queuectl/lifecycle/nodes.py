"""Gangs on nodes and devices that fail, are taken away, or get taints, and ranks that run far slower than their peers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.pools import effective, endures
from queuectl.domain.containment import Boundary
from queuectl.domain.devices import (
    MOST_RESULTS,
    AllocatedDevice,
    ClaimSpec,
    Device,
    DeviceEffect,
    DeviceId,
    DeviceOption,
    DeviceTaint,
)
from queuectl.domain.events import Evict, NoteAdded
from queuectl.domain.fleet import Effect, Fleet
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import LIVE, Entry, EntryChange, State
from queuectl.domain.node_health import HealthMode, NodeHealthRules, Straggler, UnhealthyNodes
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import ClaimRecord, NodeRecord
from queuectl.domain.rules import Rules
from queuectl.lifecycle.machine import handle
from queuectl.state.devices import backed_resources
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.nodes import in_words
from queuectl.state.usage import pinned_to


def _placed_on(entry: Entry, nodes: Container[str]) -> list[str]:
    """Those of the nodes on which a gang is placed."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    return sorted({name for podset in placed for name, _ in podset.nodes if name in nodes})


# ---- Nodes that a cloud is about to take away


class Interruptions:
    """Finds them again only if a node or the rules change."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._seen: tuple[Fleet, int, Rules] | None = None
        self._nodes: dict[str, str] = {}

    def evictions(
        self, ledger: Ledger, config: QueueConfig, now: float, busy: Container[str]
    ) -> list[EntryChange]:
        """The evictions of running gangs with pods on such nodes. ``busy``: uids of gangs that change for other reasons."""
        nodes = self._interrupted(config.rules)
        if not nodes:
            return []
        changes = []
        for entry in ledger.entries(*LIVE):
            job = self._mirror.jobs.get(entry.uid)
            if entry.uid in busy or job is None or job.outcome is not None or job.deleting:
                continue
            found = _placed_on(entry, nodes)
            if not found:
                continue
            listed = "; ".join(f"{name}: {nodes[name]}" for name in found)
            text = f"evicted before its nodes are taken away: {listed}"
            reason = Reason(Code.NODE_INTERRUPTED, text, {"nodes": found})
            change = handle(entry, Evict(reason), now, config.rules)
            if change is not None:
                changes.append(change)
        return changes

    def _interrupted(self, rules: Rules) -> dict[str, str]:
        """The nodes of which a taint or a condition announces the end, with it.

        Such a taint keeps new pods away. A condition does not, so that the node is taken out of placement here. Gangs that tolerate
        everything do not start there either, while the announcement lasts (:class:`queuectl.state.freeze.SnapshotBuilder`).
        """
        seen, mirror = self._seen, self._mirror
        if (
            seen is None
            or seen[0] is not mirror.fleet
            or seen[1] != mirror.nodes.conditions_seen
            or seen[2] is not rules
        ):
            conditions = dict(_by_conditions(mirror.nodes, rules.interruption_conditions))
            taints = dict(_by_taints(mirror.fleet, rules.interruption_taints))
            mirror.mark_interrupted(conditions, taints)
            self._nodes = {**taints, **conditions}
            self._seen = mirror.fleet, mirror.nodes.conditions_seen, rules
        return self._nodes


def _by_taints(fleet: Fleet, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in fleet.nodes:
        for taint in node.taints:
            if taint.key in keys and taint.effect is not Effect.PREFER_NO_SCHEDULE:
                yield node.name, f"taint {taint.key}"


def _by_conditions(
    nodes: Mapping[str, NodeRecord], announcing: tuple[tuple[str, str], ...]
) -> Iterator[tuple[str, str]]:
    for name, record in nodes.items() if announcing else ():
        for kind, status, reason in record.conditions:
            if (kind, status) in announcing:
                yield name, in_words(kind, status, reason)


# ---- Devices lost to taints
#
# Kubernetes deletes the pods that hold a device with a ``NoExecute`` taint. Their replacements would stay unschedulable on the planned
# node, so the gang is stopped at once. It has not failed itself, and is planned again without a back-off.


class LostDevices:
    """As of now, as the watch shows the cluster.

    Attributes:
        nodes: the devices with taints that have an effect, by node.
    """

    def __init__(self, mirror: Mirror) -> None:
        """Of this copy of the cluster."""
        self._mirror = mirror
        self.nodes: Mapping[str, tuple[Device, ...]] = mirror.devices.out_of_placement(mirror.fleet)

    def eviction(self, entry: Entry, job: JobRecord) -> Evict | None:
        """The stop of a gang whose pods are deleted and cannot be replaced on their nodes; None if the gang has none of these."""
        if not _placed_on(entry, self.nodes):
            return None
        evidence: dict[str, str] = {}
        for pod in self._mirror.pods_of(job):
            if pod.node is not None and not pod.terminal and pod.attempt == entry.attempt:
                for lost in self._lost(pod, job):
                    evidence.setdefault(pod.node, lost)
        return _evict("Kubernetes deletes pods that cannot be replaced", evidence)

    def refusal(self, pods: Iterable[PodRecord], names: Mapping[str, str]) -> Evict | None:
        """The stop of a gang whose pods kube-scheduler refuses on nodes with tainted devices; None if taints are not the cause.

        Args:
            pods: that kube-scheduler refuses.
            names: hostname label -> node name.
        """
        evidence: dict[str, str] = {}
        for pod in pods:
            node = pinned_to(pod, names)
            if node is None or node not in self.nodes:
                continue
            found = next(self._untolerated(pod, node), None)
            if found is not None:
                evidence.setdefault(node, found)
        return _evict("kube-scheduler refuses pods", evidence, tuple(sorted(evidence)))

    def _lost(self, pod: PodRecord, job: JobRecord) -> Iterator[str]:
        """The evidence against devices that a pod loses, if its node has too few others for the claim."""
        tainted = {device.id: device for device in self.nodes.get(pod.node or "", ())}
        records = (
            [*self._mirror.devices.claims_of(pod.uid), *self._named(pod, job)] if tainted else []
        )
        for record in records:
            for held in record.content.allocated or ():
                device = tainted.get(held.id)
                for taint in effective(device) if device is not None else ():
                    tolerated = any(
                        t.effect is DeviceEffect.NO_EXECUTE and t.tolerates(taint)
                        for t in held.tolerations
                    )
                    deletes = taint.effect is DeviceEffect.NO_EXECUTE and not tolerated
                    if deletes and not self._served_again(record.content.spec, pod, records):
                        yield _text(held.id, taint)

    def _named(self, pod: PodRecord, job: JobRecord) -> Iterator[ClaimRecord]:
        """The claims that a pod shares."""
        for podset in job.podsets:
            for reference in podset.claims if podset.name == pod.podset else ():
                if reference.claim is not None:
                    found = self._mirror.devices.named_claim(job.namespace, reference.claim)
                    if found is not None:
                        yield found

    def _served_again(self, spec: ClaimSpec, pod: PodRecord, own: Iterable[ClaimRecord]) -> bool:
        """Whether the node can have devices for all requests, once the pod has released its own ones."""
        released = {held.id for record in own for held in record.content.allocated or ()}
        taken = self._taken - released
        needed: list[Sequence[DeviceId]] = []
        for request in spec.requests:
            options = [self._needed(option, pod.node or "", taken) for option in request.options]
            if all(option is None for option in options):
                return False
            if len(options) == 1:  # several can have devices that no other request needs
                needed += options[0] or ()
        return len(needed) <= MOST_RESULTS and _distinct(needed)

    def _needed(
        self, option: DeviceOption, node: str, in_use: set[DeviceId]
    ) -> list[Sequence[DeviceId]] | None:
        """For each device that an option takes from others, the free ones that can be it. None if too few are free."""
        if option.admin:
            return []
        inventory = self._mirror.devices.inventory(self._mirror.fleet).nodes[node]
        selected = [inventory.devices[at] for at in self._selected(option, node)]
        free = [
            device
            for device in selected
            if (device.kind.shared or device.id not in in_use)
            and all(endures(option.tolerations, taint) for taint in effective(device))
        ]
        count = len(selected) if option.count is None else option.count
        if len(free) < count:
            return None
        shared = any(device.kind.shared for device in free)
        return [] if shared else [[device.id for device in free]] * count

    def _untolerated(self, pod: PodRecord, node: str) -> Iterator[str]:
        """The evidence against devices of a node that a pod without an allocation could use otherwise."""
        tainted = {device.id for device in self.nodes[node]}
        inventory = self._mirror.devices.inventory(self._mirror.fleet).nodes[node]
        for option in self._options(pod, node):
            for at in self._selected(option, node):
                device = inventory.devices[at]
                for taint in effective(device) if device.id in tainted else ():
                    if not any(t.tolerates(taint) for t in option.tolerations):
                        yield _text(device.id, taint)

    def _options(self, pod: PodRecord, node: str) -> Iterator[DeviceOption]:
        """The options of the claims of a pod, and of the one that kube-scheduler makes for extended resources once it has devices."""
        for record in self._mirror.devices.claims_of(pod.uid):
            for request in record.content.spec.requests:
                yield from request.options
        allocatable = self._mirror.fleet.by_name[node].allocatable
        for name, known in self._mirror.devices.classes.items():
            by_plugin = [r for r in backed_resources(known) if allocatable[r]]
            if any(r in pod.requests and r not in by_plugin for r in backed_resources(known)):
                yield DeviceOption(name)

    def _selected(self, option: DeviceOption, node: str) -> tuple[int, ...]:
        inventory = self._mirror.devices.inventory(self._mirror.fleet)
        try:
            return self._matching(option, inventory.nodes[node])
        except NotMatched:
            return ()

    @cached_property
    def _matching(self) -> Matching:
        return Matching(self._mirror.devices.classes)

    @cached_property
    def _taken(self) -> set[DeviceId]:
        """All devices that claims hold, other than for administration."""
        devices = self._mirror.devices
        return {
            held.id
            for holder in devices.holders
            for record in devices.claims_of(holder)
            for held in record.content.allocated or ()
            if not held.admin
        }


def _distinct(needed: Sequence[Sequence[DeviceId]]) -> bool:
    """Whether each can have its own device: a maximum matching by augmenting paths."""
    holders: dict[DeviceId, int] = {}

    def assign(number: int, tried: set[DeviceId]) -> bool:
        for device in needed[number]:
            if device not in tried:
                tried.add(device)
                if device not in holders or assign(holders[device], tried):
                    holders[device] = number
                    return True
        return False

    return all(assign(number, set()) for number in range(len(needed)))


def _text(device: DeviceId, taint: DeviceTaint) -> str:
    return f"device {device} has the taint {taint}"


def _evict(what: str, evidence: dict[str, str], excluded: tuple[str, ...] = ()) -> Evict | None:
    if not evidence:
        return None
    nodes = sorted(evidence)
    listed = "; ".join(f"{name}: {evidence[name]}" for name in nodes)
    reason = Reason(Code.NODE_FAILURES, f"{what}: {listed}", {"nodes": nodes})
    return Evict(reason, excluded=excluded)


# ---- Devices with taints that claims do not tolerate


class TaintedDevices:
    """The devices with taints that a queue with ``unhealthyNodes: Drain`` drains, as of now."""

    def __init__(self, mirror: Mirror, rules: NodeHealthRules) -> None:
        """Of the cluster as the watch shows it.

        If more nodes have such devices than can be unhealthy at a time, maintenance is the likely cause. Then only ``NoExecute`` counts,
        because running pods keep devices with ``NoSchedule``.
        """
        self._mirror = mirror
        self.nodes: Mapping[str, tuple[Device, ...]] = {}
        if rules.mode is HealthMode.CORDON:
            self.nodes = mirror.devices.out_of_placement(mirror.fleet)
        self._few = len(self.nodes) <= rules.most_unhealthy(len(mirror.nodes))

    def of(self, job: JobRecord) -> dict[str, str]:
        """The evidence against devices that a job holds, by node."""
        evidence: dict[str, list[str]] = {}
        for node, held in self._held(job) if self.nodes else ():
            for device in self.nodes[node]:
                if device.id == held.id:
                    texts = (
                        f"device {device.id} has the taint {t}" for t in self._bad(device, held)
                    )
                    evidence.setdefault(node, []).extend(texts)
        return {node: "; ".join(dict.fromkeys(texts)) for node, texts in evidence.items() if texts}

    def _held(self, job: JobRecord) -> Iterator[tuple[str, AllocatedDevice]]:
        """The devices of the pods of a job on nodes with tainted devices."""
        devices = self._mirror.devices
        shared = {name.claim for podset in job.podsets for name in podset.claims if name.claim}
        named = [devices.named_claim(job.namespace, name) for name in sorted(shared)]
        for pod in self._mirror.pods_of(job):
            if pod.node is not None and pod.node in self.nodes:
                for record in (*devices.claims_of(pod.uid), *filter(None, named)):
                    for held in record.content.allocated or ():
                        yield pod.node, held

    def _bad(self, device: Device, held: AllocatedDevice) -> Iterator[DeviceTaint]:
        for taint in effective(device):
            counts = self._few or taint.effect is DeviceEffect.NO_EXECUTE
            if counts and not endures(held.tolerations, taint):
                yield taint


# ---- Nodes and devices whose hardware fails


def requeued(
    mirror: Mirror, ledger: Ledger, config: QueueConfig, now: float, busy: Container[str]
) -> list[EntryChange]:
    """The evictions of gangs that lose devices, and of running gangs on unhealthy nodes where their ClusterQueue drains these.

    Args:
        mirror: what the watch shows.
        ledger: the workloads.
        config: in use.
        now: unix seconds.
        busy: uids of gangs that change for other reasons.
    """
    tainted, lost = TaintedDevices(mirror, config.rules.node_health), LostDevices(mirror)
    failing = mirror.nodes.closed.keys() | lost.nodes.keys()
    if not failing:
        return []
    changes, containment = [], mirror.containment
    for entry in filter(lambda live: _can_be_on(live, failing), ledger.entries(*LIVE)):
        job, queue = mirror.jobs.get(entry.uid), config.cluster_queues.get(entry.cluster_queue)
        if entry.uid in busy or job is None or job.outcome is not None or job.deleting:
            continue
        if containment.waits(Boundary.OBSERVATION, entry.uid, None, entry.namespace) is not None:
            continue
        drains = queue is not None and queue.unhealthy_nodes is UnhealthyNodes.DRAIN
        try:
            event = lost.eviction(entry, job)
            if event is None and drains and entry.state is State.RUNNING:
                event = _drained(entry, job, mirror, tainted)
        except Exception as error:  # noqa: BLE001 - contained
            ref = f"{entry.kind}/{entry.ref}"
            containment.failed(
                Boundary.OBSERVATION, entry.uid, error, ref, namespace=entry.namespace
            )
            continue
        change = handle(entry, event, now, config.rules) if event is not None else None
        if change is not None:
            changes.append(change)
    return changes


def _drained(entry: Entry, job: JobRecord, mirror: Mirror, tainted: TaintedDevices) -> Evict | None:
    """The eviction with notice; None if neither its nodes nor its devices fail."""
    evidence = tainted.of(job) | {
        name: mirror.nodes.closed[name] for name in _placed_on(entry, mirror.nodes.closed)
    }
    if not evidence:
        return None
    nodes = sorted(evidence)
    listed = "; ".join(f"{name}: {evidence[name]}" for name in nodes)
    text = f"requeued from unhealthy nodes: {listed}"
    return Evict(Reason(Code.NODE_UNHEALTHY, text, {"nodes": nodes}))


def _can_be_on(entry: Entry, nodes: Container[str]) -> bool:
    """Whether a gang can have pods on these nodes. Pods with quota only can be on each node."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    has_nodes = bool(placed) and all(podset.nodes for podset in placed)
    return not has_nodes or bool(_placed_on(entry, nodes))


# ---- Stragglers

_Rank = tuple[str, int, str]  # uid and attempt of the gang, pod


class Stragglers:
    """Reports stragglers once, for one leadership. A new leader reports a straggler that is still slow again."""

    def __init__(self, fresh_seconds: float) -> None:
        """``fresh_seconds``: the age in seconds after which an evaluation is no longer shown."""
        self._fresh = fresh_seconds
        self._at = 0.0
        self._known: dict[_Rank, Straggler] = {}
        self._reported: set[_Rank] = set()

    def update(self, stragglers: Sequence[Straggler], now: float) -> bool:
        """Store the result of an evaluation. Returns whether a report is due. An episode ends when the rank is not slow."""
        self._at = now
        self._known = {(one.uid, one.attempt, one.pod): one for one in stragglers}
        self._reported &= self._known.keys()
        return bool(self._known.keys() - self._reported)

    def of(self, uid: str, attempt: int, now: float) -> list[Straggler]:
        """The stragglers of a gang, by pod; none if the last evaluation is old."""
        if now - self._at > self._fresh:
            return []
        mine = [one for one in self._known.values() if (one.uid, one.attempt) == (uid, attempt)]
        return sorted(mine, key=lambda one: one.pod)

    def changes(
        self, ledger: Ledger, rules: Rules, now: float, busy: Container[str]
    ) -> list[EntryChange]:
        """The reports that are due, one for each gang. ``busy``: uids of gangs that change for other reasons."""
        due: dict[str, list[_Rank]] = {}
        for rank in sorted(self._known.keys() - self._reported):
            due.setdefault(rank[0], []).append(rank)
        changes = []
        for uid, ranks in due.items():
            entry = ledger.get(uid)
            if uid in busy or entry is None or entry.state is not State.RUNNING:
                continue
            slow = [self._known[rank] for rank in ranks if rank[1] == entry.attempt]
            self._reported |= set(ranks)
            if not slow:
                continue
            details = {"stragglers": list(map(_details, slow))}
            reason = Reason(Code.STRAGGLER, "; ".join(map(str, slow)), details)
            change = handle(entry, NoteAdded(reason), now, rules)
            if change is not None:
                changes.append(change)
        return changes


def _details(straggler: Straggler) -> dict[str, object]:
    return {
        "podSet": straggler.podset,
        "rank": straggler.rank,
        "pod": straggler.pod,
        "node": straggler.node,
        "device": straggler.device,
        "partOfPeers": round(straggler.part, 3),
    }
