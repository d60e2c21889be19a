"""Which pod counts where.

A node's use is the committed slots of live attempts plus every non-terminal pod that fills no such slot: strangers, pods
of older attempts, pods of evicted gangs. A pinned pod counts on its node before it is bound; a gated pod without a pin
counts nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import Resources
from queuectl.domain.records import PodRecord
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


def node_of(pod: PodRecord, names: Mapping[str, str]) -> str | None:
    """Node the pod uses or is pinned to. ``names``: hostname label -> node name."""
    if pod.node is not None:
        return pod.node
    if pod.pin is not None and not pod.gated:
        return names.get(pod.pin, pod.pin)
    return None


def fills_slot(pod: PodRecord, node: str, entry: Entry | None) -> bool:
    """Whether the pod is one of those the committed placement of a live attempt already counts on ``node``."""
    if entry is None or not entry.state.live or entry.placement is None:
        return False
    if pod.attempt != entry.attempt:
        return False
    placed = entry.placement.of(pod.podset)
    # Without nodes the placement is quota only: its pods are counted where they run.
    return placed is not None and any(name == node for name, _ in placed.nodes)


class Usage:
    """Use of each node by pods that fill no slot, kept up to date pod by pod.

    Pods of evicted gangs are kept apart: they still use their node but are about to leave.
    """

    def __init__(self, mirror: Mirror, ledger: Ledger) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._counted: dict[str, tuple[str, Resources]] = {}
        self._strangers: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._fleet: object = None

    @property
    def strangers(self) -> dict[str, Resources]:
        """Node name -> use by strangers."""
        return {node: Resources(use) for node, use in self._strangers.items() if any(use.values())}

    @property
    def names(self) -> Mapping[str, str]:
        """Hostname label -> node name."""
        fleet = self._mirror.fleet
        if fleet is not self._fleet:
            self._names = {node.hostname: node.name for node in fleet.nodes}
            self._fleet = fleet
        return self._names

    def refresh(self, pods: Iterable[str]) -> bool:
        """Count these pods anew (by uid; gone ones too). Returns whether any node's use changed."""
        changed = False
        for uid in pods:
            changed |= self._recount(uid)
        return changed

    def refresh_all(self) -> bool:
        """Count every pod anew."""
        return self.refresh({*self._counted, *self._mirror.pods})

    def refresh_owned(self, owners: Iterable[str]) -> bool:
        """Count all pods of these jobs anew, after their ledger entry changed."""
        return self.refresh([pod.uid for owner in owners for pod in self._mirror.pods_of(owner)])

    def held_by(self, entry: Entry) -> dict[str, dict[str, int]]:
        """Podset -> node -> number of non-terminal pods an evicted gang still has there."""
        held: dict[str, dict[str, int]] = {}
        for pod in self._mirror.pods_of(entry.uid):
            node = None if pod.terminal else node_of(pod, self.names)
            if node is not None:
                podset = held.setdefault(pod.podset, {})
                podset[node] = podset.get(node, 0) + 1
        return held

    def _recount(self, uid: str) -> bool:
        pod = self._mirror.pods.get(uid)
        old = self._counted.pop(uid, None)
        new = self._count(pod) if pod is not None else None
        if new is not None:
            self._counted[uid] = new
        if old == new:
            return False
        for entry, sign in ((old, -1), (new, 1)):
            if entry is not None:
                use = self._strangers.setdefault(entry[0], {})
                for name, amount in entry[1].items():
                    use[name] = use.get(name, 0) + sign * amount
        return True

    def _count(self, pod: PodRecord) -> tuple[str, Resources] | None:
        if pod.terminal:
            return None
        node = node_of(pod, self.names)
        if node is None:
            return None
        entry = self._ledger.get(pod.owner) if pod.owner else None
        if fills_slot(pod, node, entry) or (entry is not None and entry.state is State.EVICTING):
            return None
        return node, pod.requests
