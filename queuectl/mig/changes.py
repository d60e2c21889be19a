"""Changes that are active, the gangs and nodes that can be next, and the next step of a change.

The state of a change is on its Nodes alone. A leader that starts in the middle sees the Nodes as the last one left them, and takes the
same next step.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import LIVE, Entry, State
from queuectl.domain.mig import (
    CONFIG,
    FAILED,
    STATE,
    SUCCESS,
    MigPhase,
    MigReconfiguration,
    MigResult,
)
from queuectl.domain.records import NodeRecord
from queuectl.mig.configurations import applied, geometry_of, nvidia_gpus, relabeled
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import node_taken

INCOMPLETE_SECONDS: Final = 30.0  # after which a change ends that some of its nodes did not begin

ChangeKey = tuple[str, float]
"""Gang and begin of a change."""


@dataclass(frozen=True, slots=True)
class MigChange:
    """The nodes of one change, with or without those whose part has ended.

    Attributes:
        active: those that still change.
        begun: how many have begun, with those that have ended.
        failed: a node is rolled back, or was not changed.
    """

    gang: str
    begun_at: float
    nodes: int
    active: tuple[NodeRecord, ...]
    begun: int
    failed: bool

    @property
    def key(self) -> ChangeKey:
        return self.gang, self.begun_at

    @property
    def complete(self) -> bool:
        """Whether each of its nodes has begun."""
        return self.begun >= self.nodes

    @property
    def own(self) -> list[NodeRecord]:
        """Its nodes that still change, without those that others have taken over."""
        return [r for r in self.active if not taken_over(r)]

    def in_phase(self, *phases: MigPhase) -> list[NodeRecord]:
        """Its own nodes in one of these phases."""
        return [r for r in self.own if r.node.mig is not None and r.node.mig.phase in phases]

    def abandoned(self, now: float, timeout: float) -> bool:
        """Whether only nodes are left that others have taken over, or that do not get their old configuration in time."""
        late = (
            r.node.mig is not None
            and r.node.mig.phase is MigPhase.ROLLING_BACK
            and now - r.node.mig.since > timeout
            for r in self.own
        )
        return all(late)


def taken_over(record: NodeRecord) -> bool:
    """Whether another user or program has uncordoned a node that changes, or set its label."""
    return not record.cordoned or relabeled(record.node)


def active_changes(nodes: Iterable[NodeRecord]) -> list[MigChange]:
    """The changes with a node that still changes. ``nodes``: those with a change."""
    by_change: dict[tuple[str, float, int], list[NodeRecord]] = {}
    for record in nodes:
        mig = record.node.mig
        if mig is not None and mig.phase is not MigPhase.WITHDRAWN:
            by_change.setdefault((*mig.change, mig.nodes), []).append(record)
    changes = []
    for (gang, begun_at, count), records in sorted(by_change.items()):
        active = tuple(r for r in records if r.node.mig is not None and r.node.mig.phase.active)
        if active:
            failed = any(_failed(r) for r in records)
            changes.append(MigChange(gang, begun_at, count, active, len(records), failed))
    return changes


def _failed(record: NodeRecord) -> bool:
    phases = (MigPhase.ROLLING_BACK, MigPhase.FAILED, MigPhase.NOT_EMPTIED)
    return record.node.mig is not None and record.node.mig.phase in phases


@dataclass(frozen=True, slots=True)
class GpuHolders:
    """The users of the GPUs of some nodes.

    Attributes:
        gangs: uids of gangs that have started there and are not being evicted.
        pods: whether a pod holds GPUs there, or will.
    """

    gangs: frozenset[str]
    pods: bool


def gpu_holders(
    nodes: Container[str], mirror: Mirror, ledger: Ledger, hosts: Mapping[str, str]
) -> GpuHolders:
    """The users of GPUs that MIG changes, on these nodes. ``hosts``: hostname label -> node name."""
    gangs = frozenset(
        entry.uid
        for entry in ledger.entries(*LIVE)
        if _on_gpus(entry, mirror.jobs.get(entry.uid), nodes)
    )
    pods = any(
        not pod.terminal and any(map(nvidia_gpus, pod.requests)) and node_taken(pod, hosts) in nodes
        for pod in mirror.pods.values()
    )
    return GpuHolders(gangs, pods or bool(gangs))


def _on_gpus(entry: Entry, job: JobRecord | None, nodes: Container[str]) -> bool:
    """Whether a placement has slots with GPUs there. Without its job, each slot counts."""
    podsets = entry.placement.podsets if entry.placement is not None else ()
    shapes = {podset.name: podset.shape for podset in job.podsets} if job is not None else {}
    for placed in podsets:
        if any(name in nodes for name, _ in placed.nodes):
            shape = shapes.get(placed.podset)
            if shape is None or any(map(nvidia_gpus, shape.requests)):
                return True
    return False


def changeable(nodes: Iterable[NodeRecord], now: float, backoff: float) -> Iterator[str]:
    """The nodes whose configuration queuectl is permitted to change: their MIG manager works, and no change was recent."""
    for record in nodes:
        labels, mig = record.node.labels, record.node.mig
        recent = mig is not None and (mig.phase.active or now < mig.next_at(backoff))
        if CONFIG in labels and labels.get(STATE) == SUCCESS and not recent:
            yield record.node.name


def waited(
    ledger: Ledger, nodes: Iterable[NodeRecord], now: float, wait: float, backoff: float
) -> frozenset[str]:
    """Uids of gangs that have been pending for ``wait`` seconds, and for which nothing was changed for ``backoff`` seconds."""
    changes = [record.node.mig for record in nodes if record.node.mig is not None]
    made = [mig for mig in changes if mig.phase is not MigPhase.WITHDRAWN]
    served = {mig.gang for mig in made if now - mig.since < backoff}
    pending = ledger.entries(State.PENDING)
    return frozenset(e.uid for e in pending if now - e.since >= wait and e.uid not in served)


# ---- The next step


class GpuUse(StrEnum):
    """Use of the GPUs of the nodes that a change empties."""

    FREE = "Free"
    USED = "Used"
    STAYS = "Stays"  # by gangs that policy does not permit to migrate, or that have no other place


@dataclass(frozen=True, slots=True)
class MigGroup:
    """All nodes of one change together.

    Attributes:
        needed: the gang still needs it, and no node of the change has failed.
        complete: each node of the change has begun.
        use: of the GPUs of its nodes.
        applied: each node whose configuration is changed has the new one.
    """

    needed: bool = True
    complete: bool = True
    use: GpuUse = GpuUse.FREE
    applied: bool = True


@dataclass(frozen=True, slots=True)
class MigStep:
    """One write to a Node.

    Attributes:
        after: the new annotation.
        uncordon: whether the node takes pods again.
        config: the configuration that the MIG manager is to apply; None = as before.
        outcome: how the change ended; None = it continues.
    """

    after: MigReconfiguration
    uncordon: bool = False
    config: str | None = None
    outcome: MigResult | None = None


def step(record: NodeRecord, group: MigGroup, now: float, timeout: float) -> MigStep | None:
    """The next write; None = nothing to write now.

    Args:
        record: the Node.
        group: the nodes of its change.
        now: unix seconds.
        timeout: seconds after which a phase is abandoned.
    """
    node, change = record.node, record.node.mig
    if change is None or not change.phase.active:
        return None
    late = now - change.since > timeout
    if taken_over(record):
        if record.cordoned and not _settled(node, change, late=late):
            return None
        return _ended(change, MigPhase.TAKEN_OVER, MigResult.TAKEN_OVER, now)
    match change.phase:
        case MigPhase.EMPTYING:
            return _emptying(change, group, now, late=late)
        case MigPhase.APPLYING:
            return _applying(record, change, group, now, late=late)
        case _:
            return _rolling_back(record, change, now, late=late)


def _settled(node: Node, change: MigReconfiguration, *, late: bool) -> bool:
    """Whether the MIG manager has applied the label of a user, which can name the same GPUs as the label before.

    Until it sees a new label, the state is that of the label before, and the GPUs too.
    """
    before = replace(change.geometry, config=node.labels.get(CONFIG, ""))
    return node.labels.get(STATE) == SUCCESS and (late or geometry_of(node) != before)


def _emptying(
    change: MigReconfiguration, group: MigGroup, now: float, *, late: bool
) -> MigStep | None:
    if not group.needed or (not group.complete and now - change.since > INCOMPLETE_SECONDS):
        return _ended(change, MigPhase.WITHDRAWN, MigResult.WITHDRAWN, now)
    if not group.complete:
        return None
    if group.use is GpuUse.FREE:
        return MigStep(change.entered(MigPhase.APPLYING, now), config=change.target.config)
    if late or group.use is GpuUse.STAYS:
        return _ended(change, MigPhase.NOT_EMPTIED, MigResult.NOT_EMPTIED, now)
    return None


def _applying(
    record: NodeRecord, change: MigReconfiguration, group: MigGroup, now: float, *, late: bool
) -> MigStep | None:
    if applied(record.node, change.target):
        if group.applied:
            return _ended(change, MigPhase.SUCCEEDED, MigResult.SUCCEEDED, now)
        return None
    if late or record.node.labels.get(STATE) == FAILED:
        back = change.entered(MigPhase.ROLLING_BACK, now)
        return MigStep(back, config=change.source.config)
    return None


def _rolling_back(
    record: NodeRecord, change: MigReconfiguration, now: float, *, late: bool
) -> MigStep | None:
    """A GPU that failed in the meantime stays missing, so after the timeout the report of the MIG manager is enough."""
    node = record.node
    if applied(node, change.source) or (late and node.labels.get(STATE) == SUCCESS):
        return _ended(change, MigPhase.FAILED, MigResult.ROLLED_BACK, now)
    return None


def _ended(change: MigReconfiguration, phase: MigPhase, outcome: MigResult, now: float) -> MigStep:
    return MigStep(change.entered(phase, now), uncordon=True, outcome=outcome)
