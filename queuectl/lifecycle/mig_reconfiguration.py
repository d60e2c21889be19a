"""The state machine of a change of a node's MIG configuration. Its state is the Node alone.

A leader that starts in the middle sees the Node as the last one left it, and takes the same next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queuectl.domain.mig import CONFIG, FAILED, STATE, SUCCESS, applied
from queuectl.domain.mig_reconfiguration import MigPhase, MigReconfiguration
from queuectl.domain.records import NodeRecord

INCOMPLETE_SECONDS: Final = 30.0  # after which a change ends that some of its nodes did not begin


class MigResult(StrEnum):
    """How the change of one node ended."""

    SUCCEEDED = "succeeded"
    ROLLED_BACK = (
        "rolled_back"  # the MIG manager did not apply it; the node has its old configuration
    )
    NOT_EMPTIED = "not_emptied"  # pods kept GPUs of the node
    WITHDRAWN = "withdrawn"  # the gang no longer needs it
    TAKEN_OVER = "taken_over"  # another user or program uncordoned the node, or set its label


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
    """The next write; None = there is none now.

    Args:
        record: the Node.
        group: the nodes of its change.
        now: unix seconds.
        timeout: seconds after which a phase is abandoned.
    """
    node, change = record.node, record.node.mig
    if change is None or not change.phase.active:
        return None
    relabeled = node.labels.get(CONFIG, "") != change.config
    if relabeled and record.cordoned and node.labels.get(STATE) != SUCCESS:
        return None
    if relabeled or not record.cordoned:
        return _ended(change, MigPhase.TAKEN_OVER, MigResult.TAKEN_OVER, now)
    late = now - change.since > timeout
    match change.phase:
        case MigPhase.EMPTYING:
            return _emptying(change, group, now, late=late)
        case MigPhase.APPLYING:
            return _applying(record, change, group, now, late=late)
        case _:
            return _rolling_back(record, change, now, late=late)


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
    """A GPU that failed meanwhile stays missing, so after the time-out the report of the MIG manager is enough."""
    node = record.node
    if applied(node, change.source) or (late and node.labels.get(STATE) == SUCCESS):
        return _ended(change, MigPhase.FAILED, MigResult.ROLLED_BACK, now)
    return None


def _ended(change: MigReconfiguration, phase: MigPhase, outcome: MigResult, now: float) -> MigStep:
    return MigStep(change.entered(phase, now), uncordon=True, outcome=outcome)
