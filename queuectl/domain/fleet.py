"""Nodes, what may run on them, and the selectors and tolerations that decide it.

The semantics are kube-scheduler's (NodeAffinity, TaintToleration, NodeUnschedulable): what passes here must pass there,
because a pod is pinned to one node and kube-scheduler only confirms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from queuectl.domain.mig_reconfiguration import MigReconfiguration
from queuectl.domain.quantity import NOTHING, Resources

HOSTNAME: Final = "kubernetes.io/hostname"
_INTEGER: Final = re.compile("[+-]?[0-9]{1,19}")
UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
FIELD_NAME: Final = "metadata.name"

# Taints that the node life cycle adds for a time.
PASSING_TAINTS: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready",
        "unreachable",
        "unschedulable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
        "out-of-service",
    )
)


class Effect(StrEnum):
    """Taint effects; ``PreferNoSchedule`` never forbids."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    effect: Effect
    value: str = ""


_CORDON: Final = Taint(UNSCHEDULABLE_TAINT, Effect.NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class Toleration:
    """``key`` empty with ``Exists`` tolerates everything; ``effect`` None means any effect.

    ``seconds`` is ``tolerationSeconds``: kept to be written back, it never decides where a pod may run.
    """

    key: str = ""
    operator: str = "Equal"  # Equal | Exists
    value: str = ""
    effect: Effect | None = None
    seconds: int | None = None

    def tolerates(self, taint: Taint) -> bool:
        if self.effect is not None and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node selector term. ``field`` True reads ``metadata.name`` instead of a label."""

    key: str
    operator: str  # In | NotIn | Exists | DoesNotExist | Gt | Lt
    values: tuple[str, ...] = ()
    field: bool = False

    def matches(self, node: Node) -> bool:
        return self.holds(
            node.name if self.field and self.key == FIELD_NAME else node.labels.get(self.key)
        )

    def holds(self, value: str | None) -> bool:
        """Whether a label with this value (None = absent) satisfies the expression."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return _compares(value, self.operator, self.values)
            case _:
                return False


def _compares(value: str | None, operator: str, bounds: tuple[str, ...]) -> bool:
    numbers = [int(text) for text in (value or "", *bounds[:1]) if _INTEGER.fullmatch(text)]
    if len(numbers) < 2:
        return False
    left, right = numbers
    return left > right if operator == "Gt" else left < right


@dataclass(frozen=True, slots=True)
class SelectorTerm:
    """All requirements must hold; an empty term matches nothing (as in Kubernetes)."""

    requirements: tuple[Requirement, ...]

    def matches(self, node: Node) -> bool:
        return bool(self.requirements) and all(r.matches(node) for r in self.requirements)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Where a pod may run: its nodeSelector, its required node affinity and its tolerations. Hashable."""

    selector: tuple[tuple[str, str], ...] = ()  # sorted (label, value)
    affinity: tuple[SelectorTerm, ...] | None = None  # terms are OR-ed; None = no required affinity
    tolerations: tuple[Toleration, ...] = ()

    def refusal(self, node: Node) -> str | None:
        """Why ``node`` is not eligible, in a few words, or None when it is. Readiness is not judged here."""
        for key, value in self.selector:
            if node.labels.get(key) != value:
                return f"node selector {key}={value}"
        if self.affinity is not None and not any(term.matches(node) for term in self.affinity):
            return "required node affinity"
        for taint in node.effective_taints:
            if taint.effect is not Effect.PREFER_NO_SCHEDULE and not any(
                t.tolerates(taint) for t in self.tolerations
            ):
                return f"taint {taint.key}:{taint.effect}"
        return None


@dataclass(frozen=True, slots=True)
class Node:
    """One node as planning sees it.

    ``allocatable`` includes ``pods``. A node that is not ``ready`` offers nothing to new pods but keeps those it runs.
    ``failed`` are devices in the node's capacity that its device plugin reports as unhealthy. ``unhealthy`` is the evidence
    that its hardware fails; it is ``unschedulable`` then. Empty = none is known. ``mig`` is the last change of its MIG
    configuration by queuectl.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Resources = NOTHING
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    failed: Resources = NOTHING
    unhealthy: str = ""
    mig: MigReconfiguration | None = None

    @property
    def reconfigured_for(self) -> str | None:
        """The uid of the gang for which its MIG configuration is being changed."""
        return self.mig.gang if self.mig is not None and self.mig.phase.active else None

    @property
    def usable(self) -> bool:
        """Whether it offers anything to new pods: it is ready, and its MIG configuration is not being changed."""
        return self.ready and self.reconfigured_for is None

    @property
    def hostname(self) -> str:
        """Value of the hostname label, which pods are pinned by; it can differ from the name."""
        return self.labels.get(HOSTNAME, self.name)

    def has_labels(self, labels: Iterable[tuple[str, str]]) -> bool:
        """Whether it has all of these labels, with these values."""
        return all(self.labels.get(key) == value for key, value in labels)

    def takes(self, tolerations: Iterable[Toleration]) -> bool:
        """Whether the node accepts new pods with these tolerations: it is usable, and not cordoned unless they tolerate that."""
        return self.usable and (
            not self.unschedulable or any(each.tolerates(_CORDON) for each in tolerations)
        )

    @property
    def effective_taints(self) -> tuple[Taint, ...]:
        """Taints including the one a cordon stands for."""
        if self.unschedulable and not any(t.key == UNSCHEDULABLE_TAINT for t in self.taints):
            return (*self.taints, _CORDON)
        return self.taints


@dataclass(frozen=True, eq=False)
class Fleet:
    """All nodes of one revision, in name order. Compared by identity, so derived structures can be cached on it."""

    nodes: tuple[Node, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each node name in ``nodes``."""
        return {node.name: i for i, node in enumerate(self.nodes)}
