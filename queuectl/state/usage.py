"""The node on which each pod counts.

A node's use is the committed slots of live attempts plus each non-terminal pod that fills no such slot: pods of
other owners, of older attempts and of evicted gangs. One pod fills one slot: of the pods of a gang on a node, those beyond its
slots count as other pods. A pod that queuectl pinned counts on its node before it is bound. A gated pod counts on the node of a pin that was
sent, until the watch shows its effect. Another gated pod does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import DAEMON_SET, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import Resources
from queuectl.domain.queries import UnmanagedPod
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import PodShape
from queuectl.state.devices import DeviceUse
from queuectl.state.held_podsets import held_podsets
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


def node_of(pod: PodRecord, names: Mapping[str, str]) -> str | None:
    """The node of the pod, or the node to which it is pinned. ``names``: of :func:`names_of`."""
    return pod.node if pod.node is not None or pod.gated else pinned_to(pod, names)


def node_taken(pod: PodRecord, names: Mapping[str, str]) -> str | None:
    """The node of the pod, or the node to which queuectl pinned it, if it is not terminal. ``names``: of :func:`names_of`.

    Any user can pin a pod to each node. Such a pod counts when it is bound, because it may never fit.
    """
    return node_of(pod, names) if pod.node is not None or pod.attempt else None


def pinned_to(pod: PodRecord, names: Mapping[str, str]) -> str | None:
    """The node to which the pod is pinned. ``names``: of :func:`names_of`."""
    if pod.pin is not None or pod.host is None:
        return pod.pin
    return names.get(pod.host, pod.host)


def names_of(fleet: Fleet) -> dict[str, str]:
    """Hostname label -> node name. A node can have the name of another node as its label."""
    return {node.hostname: node.name for node in fleet.nodes}


class SentPin(NamedTuple):
    """A pin that was sent.

    Attributes:
        node: to which the pod is pinned.
        version: of the pod, on which the pin is conditioned: a pin for an older one has no effect.
        attempt: of the gang; the pin can label the pod with it.
    """

    node: str
    version: int
    attempt: int


class SentPins:
    """The pins that were sent, until the watch shows a newer version of their pod.

    While a pin is sent, a repair can give the slot of its pod to another node. If the first node is then ready again, no other gang must get
    what the pod takes there.
    """

    def __init__(self) -> None:
        # By uid of the pod, in the order of time, with whether the outcome of a request is unknown: such a pin can take effect later.
        self._sent: dict[str, dict[SentPin, bool]] = {}

    def sending(self, pod: str, pin: SentPin) -> None:
        """Record that a pin is sent, perhaps again."""
        sent = self._sent.setdefault(pod, {})
        sent[pin] = sent.pop(pin, False)

    def ended(self, pod: str, pin: SentPin, *, unknown: bool) -> bool:
        """Record that this request has no effect, or that its outcome is unknown. Returns whether the pod can no longer take the node."""
        sent = self._sent.get(pod, {})
        if unknown and pin in sent:
            sent[pin] = True
        if sent.get(pin, True):
            return False
        del sent[pin]
        if not sent:
            del self._sent[pod]
        return True

    def of(self, pod: PodRecord) -> SentPin | None:
        """A pin that was sent and can still take effect. Of several, the first to another node than the last, on which the pod has its slot."""
        sent = self._sent.get(pod.uid)
        if sent is None:
            return None
        for pin in list(sent):
            if not pod.gated or pod.version > pin.version:
                del sent[pin]
        if not sent:
            self.forget(pod.uid)
            return None
        last = next(reversed(sent))
        return next((pin for pin in sent if pin.node != last.node), last)

    def forget(self, pod: str) -> None:
        """Forget a deleted pod."""
        self._sent.pop(pod, None)

    @property
    def pods(self) -> Collection[str]:
        """The uids of the pods."""
        return self._sent.keys()


@dataclass(slots=True)
class _SlotClaims:
    """The slots of a gang's placement on one node for one podset, and the pods that can fill them."""

    owner: str
    podset: str
    node: str
    pods: set[str] = field(default_factory=set)


class OtherPodUsage:
    """The use of each node by pods that fill no slot, updated with each pod.

    Pods of evicted gangs are separate, if their placement has them: they still use their node and are about to terminate.

    Attributes:
        devices: the devices that are held for no slot.
    """

    def __init__(self, mirror: Mirror, ledger: Ledger, pins: SentPins | None = None) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._pins = pins if pins is not None else SentPins()
        self._counted: dict[str, tuple[str, Resources]] = {}
        self._claims: dict[tuple[str, str, str], _SlotClaims] = {}  # by owner, podset and node
        self._claims_by_pod: dict[str, _SlotClaims] = {}  # by uid of the pod
        self._other_pods: dict[str, dict[str, int]] = {}
        self._of_daemons: dict[str, dict[str, int]] = {}
        self._daemons: set[str] = set()  # uids of the counted pods of DaemonSets
        self._names: dict[str, str] = {}
        self._counted_names: Mapping[str, str] = {}  # with which pods were counted last
        # Uids of the pods that select their node by its hostname.
        self._by_hostname: set[str] = set()
        self._fleet: object = None
        self.devices = DeviceUse(mirror.devices, self._slot)

    @property
    def other_pods(self) -> dict[str, Resources]:
        """Node name -> use by pods that fill no slot."""
        return _sums(self._other_pods)

    @property
    def of_daemons(self) -> dict[str, Resources]:
        """The part of it that pods of DaemonSets use."""
        return _sums(self._of_daemons)

    def with_guaranteed(self, nodes: Collection[str]) -> set[str]:
        """Those of some nodes with a pod of the QoS class Guaranteed that fills no slot."""
        found = set()
        for uid, (node, _) in self._counted.items():
            pod = self._mirror.pods.get(uid)
            if node in nodes and node not in found and pod is not None and pod.guaranteed:
                found.add(node)
        return found

    def unmanaged(self, config: QueueConfig) -> tuple[UnmanagedPod, ...]:
        """Pods of no job in a queue that hold GPUs, by namespace and name."""
        pods: list[UnmanagedPod] = []
        sizes, known = self._mirror.gpus(config), self._mirror.devices
        for uid, (node, requests) in self._counted.items():
            pod = self._mirror.pods.get(uid)
            at = self._mirror.fleet.by_name.get(node)
            weights = config.rules.accounting.gpus
            gpus = sizes.plugins(requests, at) if at is not None else weights.counted(requests)
            for claim in known.claims_of(uid):
                gpus += sizes.allocated(claim.content.allocated or ())
            if pod is not None and gpus and self._entry_of(pod) is None:
                held = UnmanagedPod(pod.namespace, pod.name, node, gpus, pod.started_at)
                pods.append(held)
        return tuple(sorted(pods, key=lambda held: (held.namespace, held.name)))

    @property
    def names(self) -> Mapping[str, str]:
        """See :func:`names_of`."""
        fleet = self._mirror.fleet
        if fleet is not self._fleet:
            self._names = names_of(fleet)
            self._fleet = fleet
        return self._names

    def refresh(self, pods: Iterable[str]) -> bool:
        """Count these pods again (by uid, with deleted ones). Returns whether the use of any node changed."""
        changed = False
        affected: dict[int, _SlotClaims] = {}
        holders = set(pods)
        for uid in tuple(holders):
            before = self._claims_by_pod.get(uid)
            changed |= self._recount(uid)
            for claims in (before, self._claims_by_pod.get(uid)):
                if claims is not None:
                    affected[id(claims)] = claims
        for claims in affected.values():
            changed |= self._recount_claims(claims)
            holders |= claims.pods
        changed |= self.devices.refresh(holders)
        return changed

    def refresh_all(self) -> bool:
        """Count all pods and all claims again, with deleted ones."""
        self._counted_names = self.names
        known = {*self._counted, *self._claims_by_pod, *self._mirror.pods, *self._pins.pods}
        return self.refresh(known.union(self._mirror.devices.holders, self.devices.holders))

    def refresh_moved(self, pods: Iterable[str]) -> bool:
        """Count these pods again (by uid, with deleted ones), and those that select nodes by hostname if the hostnames have changed.

        Returns:
            Whether the use of any node changed.
        """
        names, before = self.names, self._counted_names
        self._counted_names = names
        if names is before or names == before:
            return self.refresh(pods)
        return self.refresh(self._by_hostname.union(pods))

    def refresh_owned(self, entries: Iterable[Entry]) -> bool:
        """Count all pods of these jobs again, after their ledger entry changed."""
        return self.refresh([pod.uid for entry in entries for pod in self._mirror.pods_of(entry)])

    def follow(self, changed: Iterable[Entry], moved: Iterable[str]) -> None:
        """Count pods again: those of jobs whose entry changed, and those (by uid) that changed or were deleted themselves."""
        owned = {pod.uid for entry in changed for pod in self._mirror.pods_of(entry)}
        self.refresh_moved(owned.union(moved))

    def held_by(self, entry: Entry) -> dict[str, dict[str, int]]:
        """Podset -> node -> number of non-terminal pods of an evicted gang."""
        held: dict[str, dict[str, int]] = {}
        for pod in self._mirror.pods_of(entry):
            node = None if pod.terminal else self.node(pod)
            if node is not None:
                podset = held.setdefault(pod.podset, {})
                podset[node] = podset.get(node, 0) + 1
        return held

    def _slot(self, uid: str) -> PodShape | None:
        """The request of the slot that a pod fills, also before it is released to its node; None if it fills none."""
        pod = self._mirror.pods.get(uid)
        if pod is None or pod.terminal or uid in self._counted:
            return None
        entry = self._entry_of(pod)
        if entry is None or (pod.attempt != entry.attempt and entry.state is not State.EVICTING):
            return None
        job = self._mirror.jobs.get(entry.uid)
        if job is None or not (entry.state.live or entry.state is State.EVICTING):
            return None
        podsets = held_podsets(entry, job, self._mirror)
        return next((p.shape for p in podsets if p.name == pod.podset), None)

    def node(self, pod: PodRecord) -> str | None:
        """The node on which the pod counts, if it is not terminal."""
        return self.node_and_attempt(pod)[0]

    def node_and_attempt(self, pod: PodRecord) -> tuple[str | None, int]:
        """The node on which the pod counts, if it is not terminal, and the attempt that it belongs to there."""
        sent, node = self._pins.of(pod), node_taken(pod, self.names)
        if node is None and sent is not None:
            return sent.node, sent.attempt
        return node, pod.attempt

    def _recount(self, uid: str) -> bool:
        pod = self._mirror.pods.get(uid)
        if pod is None:
            self._pins.forget(uid)
        self._by_hostname.discard(uid)
        node, attempt = None, 0
        if pod is not None and not pod.terminal:
            node, attempt = self.node_and_attempt(pod)
            if pod.node is None and pod.pin is None and pod.host is not None:
                self._by_hostname.add(uid)
        claims = counted = None
        if pod is not None and node is not None:
            entry = self._entry_of(pod)
            claims = self._claims_for(pod.podset, node, entry, attempt)
            if claims is None and (entry is None or not _separate(entry, pod.podset)):
                counted = node, pod.requests
        self._assign(uid, claims)
        return self._charge(uid, counted) if claims is None else False

    def _entry_of(self, pod: PodRecord) -> Entry | None:
        entry = self._ledger.get(pod.owner) if pod.owner else None
        owned = entry is not None and pod.owned_by == (entry.kind, entry.namespace, entry.uid)
        return entry if owned else None

    def _claims_for(
        self, podset: str, node: str, entry: Entry | None, attempt: int
    ) -> _SlotClaims | None:
        """The slots that a pod can fill: those of its own live attempt."""
        if entry is None or attempt != entry.attempt or not _slots(entry, podset, node):
            return None
        key = (entry.uid, podset, node)
        return self._claims.get(key) or self._claims.setdefault(key, _SlotClaims(*key))

    def _assign(self, uid: str, claims: _SlotClaims | None) -> None:
        before = self._claims_by_pod.pop(uid, None)
        if before is not None:
            before.pods.discard(uid)
            if not before.pods:
                self._claims.pop((before.owner, before.podset, before.node), None)
        if claims is not None:
            claims.pods.add(uid)
            self._claims[claims.owner, claims.podset, claims.node] = claims
            self._claims_by_pod[uid] = claims

    def _recount_claims(self, claims: _SlotClaims) -> bool:
        """Its pods without a slot."""
        entry = self._ledger.get(claims.owner)
        slots = _slots(entry, claims.podset, claims.node) if entry is not None else 0
        changed = False
        there = sorted(uid for uid in claims.pods if uid in self._mirror.pods)
        for number, uid in enumerate(there):
            extra = claims.node, self._mirror.pods[uid].requests
            changed |= self._charge(uid, extra if number >= slots else None)
        return changed

    def _charge(self, uid: str, new: tuple[str, Resources] | None) -> bool:
        """Count a pod without a slot on the node ``new``. Returns whether its node has changed."""
        old = self._counted.pop(uid, None)
        if new is not None:
            self._counted[uid] = new
        if old == new:
            return False
        if old is not None:
            self._add(uid, old, -1)
        self._daemons.discard(uid)
        if new is not None:
            if self._mirror.pods[uid].owner_kind == DAEMON_SET:
                self._daemons.add(uid)
            self._add(uid, new, 1)
        return True

    def _add(self, uid: str, counted: tuple[str, Resources], sign: int) -> None:
        node, requests = counted
        for sums in (self._other_pods, self._of_daemons)[: 1 + (uid in self._daemons)]:
            use = sums.setdefault(node, {})
            for name, amount in requests.items():
                use[name] = use.get(name, 0) + sign * amount
                if not use[name]:
                    del use[name]
            if not use:  # names of nodes that are deleted do not accumulate
                del sums[node]


def _sums(use: Mapping[str, Mapping[str, int]]) -> dict[str, Resources]:
    return {node: Resources(amounts) for node, amounts in use.items()}


def _separate(entry: Entry, podset: str) -> bool:
    """Whether the pods of a podset are counted by the placement of an evicted gang. A gang that queuectl did not start has none."""
    if entry.state is not State.EVICTING or entry.placement is None:
        return False
    return entry.placement.of(podset) is not None


def _slots(entry: Entry, podset: str, node: str) -> int:
    """The number of slots of a live attempt. A placement without nodes has none: its pods count where they run."""
    placed = entry.placement.of(podset) if entry.state.live and entry.placement else None
    return sum(count for name, count in placed.nodes if name == node) if placed is not None else 0
