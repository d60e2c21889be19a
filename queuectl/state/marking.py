"""Marks for the usage ledger, which are committed with the change that they describe.

A change that does not affect a charge, such as another reason or a confirmed write, has no mark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

from queuectl.domain.accounting import FlavorGpus, LostWork, Mark, Meter, Subject, UsagePhase
from queuectl.domain.fleet import Node
from queuectl.domain.gpus import NO_LABELS, Gpus, as_number, in_parts, of_parts
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, Note, State
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import FAILED_START, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement
from queuectl.planner.problem.usage import takes_nodes
from queuectl.state.claims import checkpoint_of
from queuectl.state.held_podsets import held_podsets
from queuectl.state.mirror import Mirror
from queuectl.state.pod_claims import ClaimUsers, started

_PHASES: Final = {
    State.PENDING: UsagePhase.WAITS,
    State.RESERVED: UsagePhase.WAITS,
    State.BACKOFF: UsagePhase.WAITS,
    State.STARTING: UsagePhase.HOLDS,
    State.RUNNING: UsagePhase.HOLDS,
    State.EVICTING: UsagePhase.HOLDS,
    State.HELD: UsagePhase.ASIDE,
    State.DEACTIVATED: UsagePhase.ASIDE,
    State.FINISHED: UsagePhase.GONE,
}


def holds(state: State) -> bool:
    """Whether a workload in this state is charged for what it holds."""
    return _PHASES[state] is UsagePhase.HOLDS


class Marker:
    """Makes the marks of one leader."""

    def __init__(
        self, mirror: Mirror, committed: Callable[[], Iterable[Entry]] = lambda: ()
    ) -> None:
        """``committed``: the entries as the database has them."""
        self._mirror = mirror
        self._committed = committed
        self._named: set[str] = set()  # workloads whose identity is in a mark
        self._known_users: ClaimUsers | None = None
        self._doubtful: set[str] = set()  # gangs whose last mark can have other claims
        # The GPUs that a gang is charged for, and its placement of that time.
        self._charged: dict[str, tuple[Placement, Fraction]] = {}

    def forget(self) -> None:
        """Add the identity to each next mark, because the committed marks are no longer known."""
        self._named.clear()
        self._known_users = None

    def learn(self, meters: Mapping[str, Meter]) -> None:
        """Take the charges of gangs that another leader has marked. ``meters``: of all committed marks, by uid."""
        for entry in self._committed():
            meter = meters.get(entry.uid)
            if meter is not None and entry.placement is not None and holds(entry.state):
                charged = entry.placement, _gpus(meter.held)
                self._charged.setdefault(entry.uid, charged)

    def marked(self, changes: Iterable[EntryChange], config: QueueConfig) -> list[EntryChange]:
        """The same changes with their marks. Call it once for each change, directly before its commit."""
        changes = list(changes)
        # Gangs whose claims count for another gang now, and the change that causes it.
        concerned: dict[str, int] = {}
        users = self._users
        if changes:
            concerned = dict.fromkeys(self._doubtful, 0)
            self._doubtful = set()
        for number, change in enumerate(changes):
            job = self._mirror.jobs.get(change.after.uid)
            others = users.put(change.after, job, holds=holds(change.after.state))
            concerned |= dict.fromkeys(others, number)
        marked = [self._marked(change, config, concerned) for change in changes]
        own = {change.after.uid for change in changes}
        for uid in sorted(concerned.keys() & users.uids.keys() - own):
            number = concerned[uid]
            marked[number] = self._with_other(marked[number], users.entry(uid), config)
        return marked

    @property
    def _users(self) -> ClaimUsers:
        """The gangs that use claims, as of the last marks."""
        if self._known_users is None:
            users = self._known_users = ClaimUsers()
            held = [entry for entry in self._committed() if holds(entry.state)]
            for entry in held:
                users.put(entry, self._mirror.jobs.get(entry.uid), holds=True)
            if any(entry.uid not in self._mirror.jobs for entry in held):
                self._doubtful = set(users.uids)
        return self._known_users

    def _with_other(self, change: EntryChange, entry: Entry, config: QueueConfig) -> EntryChange:
        """The change with the mark of another gang, whose claims count for another gang since then."""
        since = change.marks[-1].at if change.marks else change.at
        mark = self._mark(entry, change.at, config)
        return replace(change, marks=(*change.marks, replace(mark, at=max(since, started(entry)))))

    def now(self, entry: Entry, at: float, config: QueueConfig) -> Mark:
        """The mark of a workload that is new to the usage ledger."""
        job = self._mirror.jobs.get(entry.uid)
        return replace(self._mark(entry, at, config), subject=_subject(entry, job, config))

    def _marked(
        self, change: EntryChange, config: QueueConfig, concerned: Container[str]
    ) -> EntryChange:
        before, after = change.before, change.after
        same = before is not None and _same(before, after) and after.uid not in concerned
        loss = None
        if before is not None and before.state.live and after.state is State.EVICTING:
            loss = self._loss(before, after, change.at, config)
            change = replace(change, note=_with_loss(change.note, before, loss))
        elif same:
            return change
        mark = self._mark(after, change.at, config, same=same)
        if before is None or after.uid not in self._named or not _same_queue(before, after):
            job = self._mirror.jobs.get(after.uid)
            mark = replace(mark, subject=_subject(after, job, config))
            self._named.add(after.uid)
        if after.state is State.FINISHED:
            self._named.discard(after.uid)
        if before is None:
            return replace(change, marks=_arrival(mark, after))
        return replace(change, marks=(replace(mark, loss=loss),))

    def _mark(self, entry: Entry, at: float, config: QueueConfig, *, same: bool = False) -> Mark:
        """``same``: it is charged as before, also for nodes that have changed or do not exist now."""
        phase = _PHASES[entry.state]
        held: tuple[FlavorGpus, ...] | None = ()
        job = self._mirror.jobs.get(entry.uid)
        if phase is not UsagePhase.HOLDS:
            self._charged.pop(entry.uid, None)
        elif entry.placement is not None:
            held = None
            if job is not None and not same:
                held = self._held(entry, job, entry.placement, config)
                self._charged[entry.uid] = entry.placement, _gpus(held)
        gpus = self._mirror.sized(job, config).gpus if job is not None else entry.gpus
        return Mark(entry.uid, at, at, phase, entry.attempt, gpus, held)

    def _held(
        self, entry: Entry, job: JobRecord, placement: Placement, config: QueueConfig
    ) -> tuple[FlavorGpus, ...]:
        gpus: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
        accounting = config.rules.accounting
        for part, node, resource, held in self._parts(entry, job, placement, config):
            flavor = _flavor(part, resource)
            labels = self._labels(part, node, config, resource)
            gpus[flavor, accounting.price_of(flavor, labels)] += held
        parts = ((key, in_parts(count)) for key, count in sorted(gpus.items()))
        return tuple(FlavorGpus(*key, of_parts(count)) for key, count in parts if count)

    def _parts(
        self, entry: Entry, job: JobRecord, placement: Placement, config: QueueConfig
    ) -> Iterator[tuple[PodSetPlacement, Node | None, str, Fraction]]:
        """The placement that is charged, the node, the charged resource and the GPUs of each part of a gang."""
        sizes, nodes = self._mirror.gpus(config), self._mirror.fleet.by_name
        counted = {name for _, name in self._users.not_charged(job.uid)}
        for podset in held_podsets(entry, job, self._mirror):
            placed = placement.of(podset.name)
            if placed is None:
                continue
            for part in placed.by_share():
                for node, pods in self._nodes(part, podset, config):
                    labels = partial(self._labels, part, node, config)
                    for resource, each in sizes.by_resource(podset.shape, node, labels):
                        yield part, node, resource, each * pods
            for name in podset.shared_claims if placed.nodes else ():
                claim = self._mirror.devices.named_claims.get((job.namespace, name))
                if claim is not None and name not in counted:
                    counted.add(name)
                    node = nodes.get(placed.nodes[0][0])
                    for resource, held in sizes.by_claim(claim, node):
                        yield placed, node, resource, held

    def _nodes(
        self, part: PodSetPlacement, podset: PodSet, config: QueueConfig
    ) -> Iterator[tuple[Node | None, int]]:
        """Nodes with the number of pods; None for a placement of quota only, and for a node that does not exist."""
        fleet = self._mirror.fleet
        if part.nodes or takes_nodes(Snapshot(0.0, fleet, config), part):
            for name, pods in part.nodes:
                yield fleet.by_name.get(name), pods
        else:
            yield None, part.pods_of(podset)

    def _labels(
        self, part: PodSetPlacement, node: Node | None, config: QueueConfig, resource: str
    ) -> Mapping[str, str]:
        """The labels of the node; for a placement of quota only, those of the flavor of a resource."""
        if node is not None:
            return node.labels
        known = config.flavors.get(_flavor(part, resource)) if not part.nodes else None
        return dict(known.node_labels) if known is not None else NO_LABELS

    def _loss(self, before: Entry, after: Entry, at: float, config: QueueConfig) -> LostWork:
        """The lost work from the plan that chose the victim; otherwise its GPU time since its last checkpoint."""
        code = after.reason.code
        recorded = after.reason.details.get("lostGpuSeconds")
        if recorded is not None:
            return LostWork(code.value, float(recorded))
        job = self._mirror.jobs.get(after.uid)
        since = before.started_at if before.started_at is not None else before.since
        gpus, used = self._last_charged(before, job, config), 1.0
        if job is not None and code not in FAILED_START:
            saved = checkpoint_of(self._mirror, before, job, config)
            since = max(since, min(saved or since, at))
            used = 1.0 if job.utilization is None else job.utilization
        return LostWork(code.value, max(0.0, at - since) * float(gpus) * used)

    def _last_charged(self, entry: Entry, job: JobRecord | None, config: QueueConfig) -> Gpus:
        """The GPUs that a gang is charged for since its last mark; with its current nodes if that is not known."""
        placement, gpus = self._charged.get(entry.uid, (None, Fraction()))
        if placement is not None and placement == entry.placement:
            return gpus
        if job is None or entry.placement is None:
            return entry.gpus
        return _gpus(self._held(entry, job, entry.placement, config))


def _gpus(held: Iterable[FlavorGpus]) -> Fraction:
    return sum((Fraction(each.gpus) for each in held), Fraction())


def user_of(job: JobRecord | None, config: QueueConfig) -> str:
    """The user for the usage ledger; empty without one."""
    rules = config.rules
    user = job.user(rules.accounting.user_label, rules.trusted_submitters) if job else None
    return user or ""


def _with_loss(note: Note | None, before: Entry, loss: LostWork) -> Note | None:
    """The line of an eviction with the GPUs that it frees and the work that it loses, as the usage ledger has it."""
    if note is None:
        return None
    known = {"lostGpuSeconds": round(loss.gpu_seconds), "gpus": as_number(before.gpus)}
    reason = note.reason
    return replace(note, reason=Reason(reason.code, reason.message, {**known, **reason.details}))


def _same(before: Entry, after: Entry) -> bool:
    """Whether it is charged as before."""
    return (
        _PHASES[before.state] is _PHASES[after.state]
        and (before.gpus, before.pods, before.attempt) == (after.gpus, after.pods, after.attempt)
        and _same_queue(before, after)
        and (before.placement is after.placement or before.placement == after.placement)
    )


def _same_queue(before: Entry, after: Entry) -> bool:
    return (before.queue, before.cluster_queue) == (after.queue, after.cluster_queue)


def _arrival(mark: Mark, entry: Entry) -> tuple[Mark, ...]:
    """The time since which it waits: its creation. A running gang has waited until its start."""
    queued = min(entry.queued_at, mark.at)
    if mark.phase is UsagePhase.WAITS:
        return (replace(mark, at=queued),)
    if mark.phase is not UsagePhase.HOLDS or entry.started_at is None or entry.started_at <= queued:
        return (mark,)
    started = min(entry.started_at, mark.at)
    waits = replace(mark, at=queued, phase=UsagePhase.WAITS, held=())
    return (waits, replace(mark, at=started))


def _subject(entry: Entry, job: JobRecord | None, config: QueueConfig) -> Subject:
    rules = config.rules.accounting
    found = {key: job.label(key) for key in rules.labels} if job is not None else {}
    return Subject(
        uid=entry.uid,
        kind=entry.kind,
        namespace=entry.namespace,
        name=entry.name,
        queue=entry.queue,
        cluster_queue=entry.cluster_queue,
        user=user_of(job, config),
        labels=tuple((key, value) for key, value in sorted(found.items()) if value),
    )


def _flavor(part: PodSetPlacement, resource: str) -> str:
    """The flavor of these GPUs; the first flavor of the placement if no quota covers them."""
    named = part.flavors.get(resource)
    return named if named is not None else min(part.flavors.values(), default="")
