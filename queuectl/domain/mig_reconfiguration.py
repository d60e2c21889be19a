"""A change of the MIG configuration of a node by queuectl, as one annotation of the Node holds it.

While the change is active, the annotation also means that queuectl has cordoned the node. Afterwards it is the record of the last change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

ANNOTATION: Final = "queuectl.dev/mig-reconfiguration"
MOST_DOUBLINGS: Final = 5  # of the back-off of a node whose changes fail


class MigPhase(StrEnum):
    """Steps of a change, then its outcomes."""

    EMPTYING = "Emptying"  # pods still hold GPUs of the node
    APPLYING = "Applying"  # the MIG manager applies the new configuration
    ROLLING_BACK = "RollingBack"  # the MIG manager applies the old configuration again
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"  # the node has its old configuration
    NOT_EMPTIED = "NotEmptied"  # the configuration was not changed
    TAKEN_OVER = "TakenOver"  # another user or program uncordoned the node, or set the label
    WITHDRAWN = "Withdrawn"  # it was no longer needed, so the configuration was not changed

    @property
    def active(self) -> bool:
        """Whether the change continues, and queuectl has cordoned the node for it."""
        return self in (MigPhase.EMPTYING, MigPhase.APPLYING, MigPhase.ROLLING_BACK)


_SENTENCES: Final = {
    MigPhase.EMPTYING: "pods leave node {node}, which gets the MIG configuration {target} for this gang",
    MigPhase.APPLYING: "the MIG manager applies {target} on node {node} for this gang",
    MigPhase.ROLLING_BACK: "the MIG manager did not apply {target} on node {node}, and applies {source} again",
    MigPhase.SUCCEEDED: "node {node} has got the MIG configuration {target} for this gang",
    MigPhase.FAILED: "the MIG manager did not apply {target} on node {node}, which has {source} again",
    MigPhase.NOT_EMPTIED: "pods kept GPUs of node {node}, so it did not get the MIG configuration {target}",
    MigPhase.WITHDRAWN: "node {node} keeps the MIG configuration {source}: the change to {target} is no longer needed",
    MigPhase.TAKEN_OVER: "another user changed node {node} while it was to get the MIG configuration {target}",
}


@dataclass(frozen=True, slots=True)
class MigGeometry:
    """The GPUs that a node offers under one configuration.

    Attributes:
        config: the name of the configuration.
        product: of the GPUs, by the label.
        gpus: amounts by resource, in the order of names.
    """

    config: str
    product: str
    gpus: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MigReconfiguration:
    """One node of a change.

    Attributes:
        source, target: the node before and after it.
        gang: uid of the pending gang that needs the GPUs of ``target``.
        nodes: how many nodes are changed together for it.
        begun: unix seconds; the same for all these nodes.
        phase: the step, or the outcome.
        since: when the phase began, unix seconds.
        failures: changes of the node in succession that the MIG manager did not apply, until now.
    """

    source: MigGeometry
    target: MigGeometry
    gang: str
    nodes: int
    begun: float
    phase: MigPhase
    since: float
    failures: int = 0

    @property
    def change(self) -> tuple[str, float]:
        """Identifies the change: the same for all its nodes."""
        return self.gang, self.begun

    @property
    def config(self) -> str:
        """The configuration that the label of the node names in this phase."""
        changed = self.phase in (MigPhase.APPLYING, MigPhase.SUCCEEDED)
        return (self.target if changed else self.source).config

    def sentence(self, node: str) -> str:
        """The phase, in words for the users of the gang."""
        text = _SENTENCES[self.phase].format(
            node=node, source=self.source.config, target=self.target.config
        )
        repeated = self.phase is MigPhase.FAILED and self.failures > 1
        return f"{text}; {self.failures} changes in succession failed" if repeated else text

    def entered(self, phase: MigPhase, now: float) -> MigReconfiguration:
        """The change in its next phase."""
        failures = self.failures + (phase is MigPhase.FAILED)
        if phase is MigPhase.SUCCEEDED:
            failures = 0
        return replace(self, phase=phase, since=now, failures=failures)

    def next_at(self, backoff: float) -> float:
        """When another change of the node can begin, unix seconds.

        The back-off is doubled after each further failure in succession. A change that is withdrawn needs none: the back-off of the
        change before it was over.
        """
        if self.phase is MigPhase.WITHDRAWN:
            return self.since
        return self.since + backoff * (1 << min(max(self.failures - 1, 0), MOST_DOUBLINGS))
