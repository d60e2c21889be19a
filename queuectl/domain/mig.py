"""MIG configurations, and the record of a change of a node's configuration, as values that nodes and flavors have.

The MIG manager of NVIDIA's GPU operator cuts the GPUs of a node as the configuration in the label ``nvidia.com/mig.config`` states,
and reports in ``nvidia.com/mig.config.state``. A configuration has the form of its file (mig-parted). The
package ``mig`` has all that queuectl does with these values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
SUCCESS: Final = "success"
FAILED: Final = "failed"
ANNOTATION: Final = "queuectl.dev/mig-reconfiguration"
WHOLE: Final = ""  # the profile of a GPU without MIG
MOST_DOUBLINGS: Final = 5  # of the back-off of a node whose changes fail


class MigMode(StrEnum):
    """Whether queuectl changes the configuration of nodes itself."""

    PLAN = "Plan"  # it suggests changes
    EXECUTE = "Execute"


@dataclass(frozen=True, slots=True)
class MigDevices:
    """Some GPUs of a node.

    Attributes:
        indexes: of the GPUs; None = all.
        profiles: instances of each GPU by profile; None = MIG is disabled, and the GPU is whole.
    """

    indexes: tuple[int, ...] | None = None
    profiles: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class MigConfig:
    """One configuration by its name. Later entries replace earlier ones for the same GPU."""

    name: str
    devices: tuple[MigDevices, ...]

    def instances(self, gpus: int) -> Counter[str] | None:
        """Instances of a node with this many GPUs, by profile, whole GPUs under the empty profile.

        None = the configuration does not state each GPU of such a node, or states one that it does not have.
        """
        of: dict[int, tuple[tuple[str, int], ...] | None] = {}
        for entry in self.devices:
            indexes = range(gpus) if entry.indexes is None else entry.indexes
            of.update(dict.fromkeys(indexes, entry.profiles))
        if of.keys() != set(range(gpus)):
            return None
        found: Counter[str] = Counter()
        for profiles in of.values():
            found.update({WHOLE: 1} if profiles is None else dict(profiles))
        return found


@dataclass(frozen=True, slots=True)
class MigPool:
    """The nodes with some labels, and the configurations that are allowed for them."""

    node_labels: tuple[tuple[str, str], ...]
    configs: tuple[MigConfig, ...]


# ---- A change, as one annotation of the Node holds it
#
# While the change is active, the annotation also means that queuectl has cordoned the node. Afterwards it is the record of the last change.


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


class MigResult(StrEnum):
    """How the change of one node ended."""

    SUCCEEDED = "succeeded"
    ROLLED_BACK = "rolled_back"  # the MIG manager did not apply it; the node has the earlier one
    NOT_EMPTIED = "not_emptied"  # pods kept GPUs of the node
    WITHDRAWN = "withdrawn"  # the gang no longer needs it
    TAKEN_OVER = "taken_over"  # another user or program uncordoned the node, or set its label


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
    def geometry(self) -> MigGeometry:
        """The node under the configuration that its label names in this phase, unless others set it."""
        changed = self.phase in (MigPhase.APPLYING, MigPhase.SUCCEEDED)
        return self.target if changed else self.source

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
