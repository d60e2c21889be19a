"""All workloads that consist of pods alone, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from queuectl.domain.ledger import Entry, State
from queuectl.domain.records import JobRecord, PodPhase, PodRecord
from queuectl.objects.kinds.groups import Group, GroupKey, key_of, member_of
from queuectl.objects.kinds.pods import POD_GROUP


class PodGroups:
    """All workloads that consist of pods, by key."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, Group] = {}
        self._keys: dict[str, GroupKey] = {}  # by uid of the pod
        self._known: dict[GroupKey, str] = {}  # uids of the ledger
        self._changed: dict[GroupKey, None] = {}

    def put(self, pod: PodRecord) -> None:
        """A pod that is new or has changed."""
        key = key_of(pod)
        if self._keys.get(pod.uid, key) != key:
            self.remove(pod.uid)
        self._keys[pod.uid] = key
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, uid=self._known.get(key, ""))
        group.pods[pod.uid] = pod
        self._changed[key] = None

    def remove(self, uid: str) -> None:
        """A pod that does not exist any more, by uid; without effect for other pods."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        pod = group.pods.pop(uid)
        if pod.phase is PodPhase.SUCCEEDED and member_of(pod).workload in ("", group.uid):
            group.vanished[pod.podset] += 1
        self._changed[key] = None

    def recognize(
        self, entries: Iterable[Entry], *, read: bool = False, all_of_them: bool = False
    ) -> None:
        """See :meth:`queuectl.state.mirror.Mirror.recognize`."""
        left = set(self._known) if all_of_them else set()
        for entry in entries:
            if entry.kind != POD_GROUP:
                continue
            key = GroupKey(entry.kind, entry.namespace, entry.name)
            if entry.state is not State.FINISHED:
                left.discard(key)
                self._learn(key, entry, read)
            elif self._known.get(key) == entry.uid:
                left.add(key)
        for key in left:
            del self._known[key]
            self._changed[key] = None

    def _learn(self, key: GroupKey, entry: Entry, read: bool) -> None:
        group = self._groups.setdefault(key, Group(key))
        if read:
            group.entry, group.started = entry, {}
        if read or group.uid != entry.uid:
            group.uid = entry.uid
            self._changed[key] = None
        self._known[key] = entry.uid

    def settle(self) -> Iterator[tuple[str, JobRecord | None, Mapping[str, PodRecord]]]:
        """For each group that changed: its uid before, its record, and its pods with their owner and podset."""
        changed, self._changed = self._changed, {}
        for key in changed:
            group = self._groups.get(key)
            if group is None:
                continue
            before = group.record.uid if group.record is not None else ""
            record = group.assemble(known=self._known.get(key, "") == group.uid != "")
            if not group.pods and key not in self._known:
                del self._groups[key]
                record = None
            owned = {
                uid: replace(pod, owner=group.uid, owner_kind=key.kind)
                for uid, pod in group.pods.items()
                if member_of(pod).workload in ("", group.uid)
            }
            yield before, record, owned

    @property
    def waiting(self) -> bool:
        """Whether any group has changed since they were settled."""
        return bool(self._changed)
