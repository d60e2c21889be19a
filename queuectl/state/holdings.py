"""Sums of the quota that gangs hold and request, and the use of ResourceQuotas by pods that do not exist yet.

Gauges and reports read the sums at any time. The cost of a commit depends on the number of its changes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from queuectl.devices.charges import charged_gang, with_charges
from queuectl.devices.shared import ClaimKey
from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import LIVE, Entry, EntryChange, State
from queuectl.domain.limits import Allowance, Coming, with_classes, with_promises
from queuectl.domain.node_quota import NodeQuota
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.problem.usage import charges_of
from queuectl.state.held_podsets import held_podsets
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.pod_claims import ClaimUsers
from queuectl.state.readiness import missing

# ---- Quota that gangs hold and request

Row: TypeAlias = tuple[str, str, str, str, str]
"""Namespace, LocalQueue, ClusterQueue, flavor, resource."""
PendingRow: TypeAlias = tuple[str, str]
"""ClusterQueue, resource."""
_Key = TypeVar("_Key", Row, PendingRow)

_QUEUES: Final = (State.PENDING, State.RESERVED, State.BACKOFF)


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of one entry in the sums, and the objects from which it was computed."""

    seen: tuple[object, ...]
    held: tuple[tuple[Row, int], ...] = ()
    kept: tuple[tuple[Row, int], ...] = ()
    pending: tuple[tuple[PendingRow, int], ...] = ()


class Holdings:
    """Sums in the units of :mod:`queuectl.domain.quantity`. A row without use stays, with 0.

    Attributes:
        config: the configuration for the charges.
        held: by starting, running and evicting gangs.
        kept: by leases, for gangs that do not hold the quota yet.
        pending: by pending gangs, for all their pods. Users request any resources: a row of one without quota does not stay.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._parts: dict[str, _Part] = {}
        self._entries: dict[str, Entry] = {}  # committed, and not Finished
        self._node_quota = NodeQuota()
        self._users = ClaimUsers()
        self.config = QueueConfig()
        self.held: Counter[Row] = Counter()
        self.kept: Counter[Row] = Counter()
        self.pending: Counter[PendingRow] = Counter()

    def configure(self, config: QueueConfig, entries: Iterable[Entry]) -> None:
        """Compute the sums again under this configuration."""
        self.config = config
        self._parts.clear()
        self._entries.clear()
        self._users = ClaimUsers()
        # New objects: a reader in another thread continues with the old ones.
        self.held, self.kept, self.pending = Counter(), Counter(), Counter()
        for entry in entries:
            self._put(entry)

    def reconfigure(self, config: QueueConfig, concerned: Iterable[Entry]) -> None:
        """Continue under a configuration that affects only these entries."""
        self.config = config
        for entry in concerned:
            before = self._parts.pop(entry.uid, None)
            if before is not None:
                self._count(before, -1)
            self._put(entry)
        # New objects, as above. A deleted queue has no row.
        self.held, self.kept, self.pending = (
            _nonzero(self.held),
            _nonzero(self.kept),
            _nonzero(self.pending),
        )

    @property
    def effective(self) -> QueueConfig:
        """The configuration with the quota that follows the current nodes."""
        return self._node_quota.of(self.config, self._mirror.fleet)

    def borrowing(self) -> frozenset[str]:
        """ClusterQueues that use more than their nominal quota of anything."""
        used: Counter[tuple[str, str, str]] = Counter()
        for (_, _, queue, flavor, resource), amount in dict(self.held).items():
            used[queue, flavor, resource] += amount
        nominal = {
            (name, quotas.flavor, resource): amount
            for name, queue in self.effective.cluster_queues.items()
            for group in queue.groups
            for quotas in group.flavors
            for resource, amount in quotas.nominal.items()
        }
        return frozenset(row[0] for row, n in used.items() if n > nominal.get(row, 0))

    @property
    def fleet(self) -> Fleet:
        """Use the current nodes."""
        return self._mirror.fleet

    @property
    def over(self) -> Counter[tuple[str, str]]:
        """Finished jobs that still exist, by namespace and LocalQueue."""
        jobs = dict(self._mirror.jobs).values()
        return Counter((j.namespace, j.queue) for j in jobs if j.outcome is not None and j.queue)

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Apply committed changes."""
        for change in changes:
            self._put(change.after)

    def note_requests(self, uids: Iterable[str]) -> None:
        """Count gangs again whose jobs have another request than before."""
        for uid in uids:
            entry = self._entries.get(uid)
            if entry is not None:
                self._put(entry)

    def _put(self, entry: Entry) -> None:
        if entry.state is State.FINISHED:
            self._entries.pop(entry.uid, None)
        else:
            self._entries[entry.uid] = entry
        job = self._mirror.jobs.get(entry.uid)
        concerned = self._users.put(entry, job, holds=entry.state is not State.FINISHED)
        self._count_again(entry)
        for uid in sorted(concerned):
            self._count_again(self._users.entry(uid))

    def _count_again(self, entry: Entry) -> None:
        before = self._parts.get(entry.uid)
        if before is None and entry.state is State.FINISHED:
            return
        size = (entry.queue, entry.cluster_queue, entry.state in _QUEUES, entry.gpus, entry.pods)
        elsewhere = self._users.not_charged(entry.uid)
        job = self._mirror.jobs.get(entry.uid)
        podsets = held_podsets(entry, job, self._mirror) if job is not None else None
        seen = (*size, entry.placement, entry.lease, elsewhere, podsets)
        if before is not None and before.seen == seen:
            return
        if before is not None:
            self._count(before, -1)
        if entry.state is State.FINISHED:
            self._parts.pop(entry.uid)
            return
        part = self._parts[entry.uid] = self._part(entry, seen)
        self._count(part, 1)

    def _part(self, entry: Entry, inputs: tuple[object, ...]) -> _Part:
        job = self._mirror.jobs.get(entry.uid)
        queue = self.config.cluster_queues.get(entry.cluster_queue)
        if job is None or queue is None:
            return _Part(inputs)
        lease = entry.lease.placement if entry.lease is not None else None
        pending: tuple[tuple[PendingRow, int], ...] = ()
        if entry.state in _QUEUES:
            amounts = self._requests(job)
            pending = tuple(((queue.name, name), amount) for name, amount in amounts.items())
        return _Part(
            inputs, self._rows(entry, job, entry.placement), self._rows(entry, job, lease), pending
        )

    def _rows(
        self, entry: Entry, job: JobRecord, placement: Placement | None
    ) -> tuple[tuple[Row, int], ...]:
        if placement is None:
            return ()
        return tuple(
            ((entry.namespace, entry.queue, *row), amount)
            for row, amount in charged(
                entry, job, placement, self.config, self._mirror, self._users.not_charged(entry.uid)
            )
        )

    def _requests(self, job: JobRecord) -> Mapping[str, int]:
        sums: Counter[str] = Counter()
        workload = Workload(job.uid, job.kind, job.namespace, job.name, job.podsets)
        if self._mirror.devices.classes:
            workload = with_charges(workload, self._mirror.gpus(self.config).classes)
        for podset in workload.podsets:
            for name, amount in self.config.rules.charged(podset.shape.requests).items():
                sums[name] += amount * podset.count
        return sums

    def _count(self, part: _Part, sign: int) -> None:
        for row, amount in part.held:
            self.held[row] += sign * amount
        for row, amount in part.kept:
            self.kept[row] += sign * amount
        for pending_row, amount in part.pending:
            self.pending[pending_row] += sign * amount
            if not self.pending[pending_row] and not self._has_quota(*pending_row):
                del self.pending[pending_row]

    def _has_quota(self, cluster_queue: str, resource: str) -> bool:
        queue = self.config.cluster_queues.get(cluster_queue)
        return queue is not None and any(resource in group.covered for group in queue.groups)


def _nonzero(sums: Counter[_Key]) -> Counter[_Key]:
    return Counter({row: amount for row, amount in sums.items() if amount})


def charged(
    entry: Entry,
    job: JobRecord,
    placement: Placement,
    config: QueueConfig,
    mirror: Mirror,
    elsewhere: Collection[ClaimKey] = (),
) -> tuple[tuple[tuple[str, str, str], int], ...]:
    """The charge of a placement of a gang: (ClusterQueue, flavor, resource) and amount. ``elsewhere``: claims that count for other gangs."""
    podsets = held_podsets(entry, job, mirror) if placement is entry.placement else job.podsets
    workload = Workload(
        entry.uid,
        entry.kind,
        entry.namespace,
        entry.name,
        podsets,
        charged_queue=entry.cluster_queue,
    )
    devices = mirror.devices
    alone = Snapshot(0.0, mirror.fleet, config, claims=devices.named_claims)
    gang = Admitted(workload, placement)
    if devices.classes:
        gang = charged_gang(gang, alone, mirror.gpus(config).classes, elsewhere)
    return tuple(charges_of(gang, alone))


# ---- ResourceQuotas
#
# The status of a quota counts existing pods. A gang that has started a moment ago creates the others.


def allowances(mirror: Mirror, ledger: Ledger) -> dict[str, tuple[Allowance, ...]]:
    """The quotas by namespace, in the order of their names. Namespaces without a quota are absent."""
    by_namespace: dict[str, list[Allowance]] = {}
    for record in mirror.resource_quotas.values():
        if record.allowance.limits:
            by_namespace.setdefault(record.namespace, []).append(record.allowance)
    if not by_namespace:
        return {}
    coming: dict[str, list[Coming]] = {}
    for entry in ledger.entries(*LIVE):
        if entry.namespace in by_namespace and not _all_there(entry):
            coming.setdefault(entry.namespace, []).extend(_coming(entry, mirror))
    classes = mirror.devices.classes
    return {
        namespace: tuple(
            with_promises(with_classes(quota, classes), coming.get(namespace, ()))
            for quota in sorted(quotas, key=lambda quota: quota.name)
        )
        for namespace, quotas in sorted(by_namespace.items())
    }


def _all_there(entry: Entry) -> bool:
    """Whether all pods were ready at the last observation, so that none is missing."""
    return entry.state is State.RUNNING and entry.unready_since is None


def _coming(entry: Entry, mirror: Mirror) -> Iterator[Coming]:
    """Pods of its attempt that do not exist yet."""
    job = mirror.jobs.get(entry.uid)
    if job is None or entry.placement is None:
        return
    pods = [pod for pod in mirror.pods_of(entry) if pod.attempt == entry.attempt]
    started = {p.podset: p.pods for p in entry.placement.podsets if p.pods is not None}
    lacking = missing(job, pods)
    for podset in job.podsets:
        most = started.get(podset.name, podset.count)
        count = min(most, lacking[podset.name])
        if count > 0:
            yield podset, count
