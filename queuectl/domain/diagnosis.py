"""Why one pending gang does not start, reduced to what cannot be left out, and what would let it start.

Both parts are computed by solving, never guessed: drop any one member of the conflict and the gang fits; do any one of the
ways and the planner starts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from queuectl.domain.changes import SuggestedChange
from queuectl.domain.plan import Proof


class Limit(StrEnum):
    """Kinds of things that can stand in a gang's way."""

    QUOTA = "Quota"  # of one ClusterQueue, flavor and resource, through its cohorts
    FLAVOR = "Flavor"  # which flavors the ClusterQueue has, their labels and taints
    RULES = "NodeRules"  # its own node selector, affinity and tolerations
    TOPOLOGY = "Topology"  # the domain that its pods must share
    SHAPE = "Shape"  # what one node must hold of it
    ORDER = "Order"  # the gangs before it, in this cycle or by StrictFIFO
    LEASE = "Lease"  # capacity held for others
    HEALTH = "NodeHealth"  # nodes that are not ready, cordoned, or refused to it
    RUNNING = "Running"  # what runs now, on nodes and in quota
    FLEET = "Fleet"  # all there is
    USER = "MaxPerUser"  # what its ClusterQueue lets one user hold at once
    BUDGET = "Budget"  # the GPU-hours that are left of a month


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One member of a conflict. ``details`` holds plain JSON values only."""

    limit: Limit
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Remedy(StrEnum):
    """Kinds of suggested fixes; the comment names the person who can apply them."""

    WAIT = "Wait"  # no action: it ends without one
    FEWER_PODS = "StartWithFewerPods"  # the submitter
    RELAX_TOPOLOGY = "RelaxTopology"  # the submitter
    RELAX_RULES = "RelaxNodeRules"  # the submitter
    RAISE_PRIORITY = "RaisePriority"  # the submitter or an admin
    SHORTEN_RUN = "ShortenRun"  # the submitter
    ADD_QUOTA = "AddQuota"  # an admin
    TOP_UP_BUDGET = "TopUpBudget"  # an admin
    RAISE_USER_CAP = "RaiseMaxPerUser"  # an admin
    ALLOW_FLAVOR = "AllowFlavor"  # an admin
    HEAL_NODES = "RepairNodes"  # an operator of the nodes
    REMOVE_TAINTS = "RemoveDeviceTaints"  # an operator of the nodes
    RECONFIGURE_MIG = "ReconfigureMIG"  # an operator of the nodes
    ADD_NODES = "AddNodes"  # an owner of the cluster
    MOVE_OTHERS = "MoveOthers"  # an admin, or the controller where queues allow it
    ALLOW_PREEMPTION = "AllowPreemption"  # an admin, or the owners of gangs that shield themselves
    END_OTHERS = "EndOthers"  # the owners of gangs that policy protects


@dataclass(frozen=True, slots=True)
class SuggestedFix:
    """One suggested fix. With all of ``changes`` the gang starts, or it evicts others and starts when they have stopped.

    Attributes:
        remedy: its main part.
        message: a sentence.
        details: sizes as plain JSON values.
        changes: what to do, exactly.
        least: no smaller size of this kind would do, proved.
    """

    remedy: Remedy
    message: str
    details: Mapping[str, Any]
    changes: tuple[SuggestedChange, ...]
    least: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Of one pending gang.

    Attributes:
        conflict: a minimal set; empty when no constraint of the cluster blocks it (it is held, or it fits).
        suggested_fixes: cheapest kind first.
        proof: OPTIMAL, or FEASIBLE when a limit ended a search: the conflict may hold a member too many then.
        cut: it was stopped: the result is not complete.
        under_way: what is being done for the gang, and what of it has failed, in sentences.
    """

    uid: str
    conflict: tuple[Obstacle, ...] = ()
    suggested_fixes: tuple[SuggestedFix, ...] = ()
    proof: Proof = Proof.OPTIMAL
    cut: bool = False
    under_way: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excess:
    """More use than a quota allows.

    Attributes:
        kind, name: whose quota: a ClusterQueue's or a Cohort's.
        used, allowed: of the flavor's resource, in its unit; borrowing is allowed for.
        gangs: ``namespace/name`` of those without which it would be gone, the ones started last first.
    """

    kind: str
    name: str
    flavor: str
    resource: str
    used: int
    allowed: int
    gangs: tuple[str, ...] = ()
