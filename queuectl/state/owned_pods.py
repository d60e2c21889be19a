"""Pods by the workload that owns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from queuectl.domain.jobs import OwnerKey, PodRecord

_NO_PODS: Final[Mapping[str, PodRecord]] = MappingProxyType({})


class OwnedPods:
    """The pods of each owner, and those of them that declare checkpoints."""

    def __init__(self) -> None:
        """Make an empty one."""
        self._pods: dict[OwnerKey, dict[str, PodRecord]] = {}
        self._savers: dict[OwnerKey, dict[str, PodRecord]] = {}  # the pods that declare checkpoints

    def of(self, owner: OwnerKey) -> Mapping[str, PodRecord]:
        """Its pods by uid, including those that another pod made."""
        return self._pods.get(owner, _NO_PODS)

    def belonging(self, owner: OwnerKey) -> Iterable[PodRecord]:
        """Its pods. A pod that waits, and that another pod created, belongs to the owner only if that one does."""
        pods = self.of(owner)
        return [p for p in pods.values() if not (p.maker and p.gated) or p.maker in pods]

    def put(self, old: PodRecord | None, pod: PodRecord) -> None:
        """Add a pod, or replace its record ``old`` with the same owner. The pod has an owner."""
        key = pod.owned_by
        self._pods.setdefault(key, {})[pod.uid] = pod
        if pod.checkpoint_at is not None:
            self._savers.setdefault(key, {})[pod.uid] = pod
        elif old is not None and old.checkpoint_at is not None:
            self._savers.get(key, {}).pop(pod.uid, None)

    def renew(self, pod: PodRecord) -> None:
        """Replace the record of a pod by one of which only the version differs."""
        key = pod.owned_by
        for table in (self._pods, self._savers):
            if pod.uid in table.get(key, {}):
                table[key][pod.uid] = pod

    def drop(self, pod: PodRecord) -> bool:
        """Forget a pod. Returns whether its owner had pods."""
        key = pod.owned_by
        siblings = self._pods.get(key)
        if siblings is None:
            return False
        siblings.pop(pod.uid, None)
        self._savers.get(key, {}).pop(pod.uid, None)
        if not siblings:
            del self._pods[key]
            self._savers.pop(key, None)
        return True

    def checkpoint(self, owner: OwnerKey, attempt: int, of_job: float | None) -> float | None:
        """The time (unix seconds) of the last checkpoint that its job or its pods of this attempt declare; None without one.

        If several pods declare one, the oldest of their times counts.

        Args:
            owner: whose checkpoint.
            attempt: of the gang.
            of_job: what the job declares.
        """
        savers = self._savers.get(owner) if self._savers else None
        if not savers:
            return of_job
        saved = [pod.checkpoint_at for pod in savers.values() if pod.attempt == attempt]
        by_pods = min((at for at in saved if at is not None), default=None)
        return max((at for at in (of_job, by_pods) if at is not None), default=None)
