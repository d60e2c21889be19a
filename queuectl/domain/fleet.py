"""Nodes, present ones and those that an autoscaler can make, what may run on them, and the selectors and tolerations that decide it.

The semantics are kube-scheduler's (NodeAffinity, TaintToleration, NodeUnschedulable): what passes here must pass there,
because a pod is pinned to one node and kube-scheduler only confirms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from operator import is_
from typing import Final

from queuectl.domain.mig import MigReconfiguration
from queuectl.domain.quantity import NOTHING, Resources

# ---- Nodes, and what can run on them

HOSTNAME: Final = "kubernetes.io/hostname"
_INTEGER: Final = re.compile("[+-]?[0-9]{1,19}")
UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
FIELD_NAME: Final = "metadata.name"

INTERRUPTION_TAINTS: Final = (
    # spot interruptions and events of the AWS Node Termination Handler
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    # graceful termination of GKE nodes
    "cloud.google.com/impending-node-termination",
    # nodes that Karpenter or cluster-autoscaler removes
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
)
"""Keys of taints that announce the end of a node."""

_PASSING_TAINTS: Final = frozenset(
    {
        # the node life cycle of Kubernetes
        *(
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
        ),
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
        # nodes that an autoscaler or a cloud adds or removes
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/unregistered",
        "karpenter.sh/disruption",
        *INTERRUPTION_TAINTS,
    }
)
_PASSING_DOMAINS: Final = frozenset(
    {
        "startup-taint.cluster-autoscaler.kubernetes.io",
        "status-taint.cluster-autoscaler.kubernetes.io",
        "ignore-taint.cluster-autoscaler.kubernetes.io",
        "readiness.k8s.io",
    }
)
# Agents and administrators have no common key, but the names of their keys show that the taint is for a time.
_PASSING_WORDS: Final = re.compile(
    r"(?:^|[-_.])(?:not-ready|uninitialized|startup|maintenance|drain|draining|unhealthy)(?:$|[-_.])",
    re.IGNORECASE,
)


@cache
def is_passing(taint: str) -> bool:
    """Whether a taint with this key is for a time: something other than the configuration of the node removes it."""
    domain, _, name = taint.rpartition("/")
    return (
        taint in _PASSING_TAINTS
        or domain in _PASSING_DOMAINS
        or _PASSING_WORDS.search(name) is not None
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

    @property
    def passes(self) -> bool:
        """Whether it keeps pods off the node for a time."""
        return self.effect is not Effect.PREFER_NO_SCHEDULE and is_passing(self.key)


_CORDON: Final = Taint(UNSCHEDULABLE_TAINT, Effect.NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class Toleration:
    """``key`` empty with ``Exists`` tolerates everything; ``effect`` None means any effect. Other operators tolerate nothing.

    ``seconds`` is ``tolerationSeconds``: kept to be written back, it never decides where a pod may run.
    """

    key: str = ""
    operator: str = "Equal"  # Equal | Exists; empty = Equal, as a pod states it
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
        return self.operator in ("Equal", "") and bool(self.key) and self.value == taint.value


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

    def holds(self, label: str | None) -> bool:
        """Whether a label with this value (None = absent) satisfies the expression."""
        match self.operator:
            case "In":
                return label is not None and label in self.values
            case "NotIn":
                return label is None or label not in self.values
            case "Exists":
                return label is not None
            case "DoesNotExist":
                return label is None
            case "Gt" | "Lt":
                return _compares(label, self.operator, self.values)
            case _:
                return False


def _compares(label: str | None, operator: str, bounds: tuple[str, ...]) -> bool:
    numbers = [int(text) for text in (label or "", *bounds[:1]) if _INTEGER.fullmatch(text)]
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

    def joined(
        self, selector: Iterable[tuple[str, str]], tolerations: Iterable[Toleration]
    ) -> NodeRules:
        """With more node labels and tolerations. A label that it selects by another value gets the new one."""
        return replace(
            self,
            selector=tuple(sorted({**dict(self.selector), **dict(selector)}.items())),
            tolerations=tuple(dict.fromkeys((*self.tolerations, *tolerations))),
        )


@dataclass(frozen=True, slots=True)
class Node:
    """One node as planning sees it.

    ``allocatable`` includes ``pods``. A node that is not ``ready`` offers nothing to new pods but keeps those it runs.
    ``failed`` are devices in the node's capacity that its device plugin reports as unhealthy. ``unhealthy`` is the evidence
    that its hardware fails; it is ``unschedulable`` then. Empty = none is known. ``mig`` is the last change of its MIG
    configuration by queuectl. ``occupied`` are the amounts of devices, and of the planner's own resources, that it has again when
    taints of devices and claims of pods in no gang have ended. ``out_since``: unix seconds since when its conditions or its taints keep new pods off it; None = not known.
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
    occupied: Resources = NOTHING
    out_since: float | None = None

    @property
    def recovered(self) -> Node:
        """The node when everything that takes capacity from it for a time has ended; itself where nothing does.

        This is the rule for "never": a gang that does not fit the nodes so never fits.
        """
        taints = tuple(taint for taint in self.taints if not taint.passes)
        taken = self.failed or self.occupied
        if self.usable and not (self.unschedulable or taken or len(taints) < len(self.taints)):
            return self
        return replace(
            self,
            allocatable=self.allocatable + self.failed + self.occupied,
            taints=taints,
            ready=True,
            unschedulable=False,
            failed=NOTHING,
            unhealthy="",
            mig=None,
            occupied=NOTHING,
            out_since=None,
        )

    def with_rows(self, extended: Callable[[Resources], Resources]) -> Node:
        """The node with more resources, which it has as well when it has recovered.

        Args:
            extended: returns amounts with the resources that follow from them.
        """
        allocatable = extended(self.allocatable)
        if not (self.failed or self.occupied):
            return replace(self, allocatable=allocatable)
        whole = extended(self.allocatable + self.failed + self.occupied)
        return replace(self, allocatable=allocatable, occupied=whole - allocatable - self.failed)

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

    @property
    def in_service(self) -> bool:
        """Whether it is usable and not cordoned."""
        return self.usable and not self.unschedulable

    def serves(self, resource: str, backed: Container[str]) -> bool:
        """Whether pods get a resource from the node itself.

        ``backed``: extended resources for which a node without them can offer devices of a DeviceClass.
        """
        return resource not in backed or resource in self.allocatable

    def takes(
        self, rules: NodeRules, requests: Resources, backed: Container[str] = frozenset()
    ) -> bool:
        """Whether a new pod runs on this node, where another one ran: the rules permit it, and the node alone has the resources.

        ``backed``: see :meth:`serves`.
        """
        return (
            self.usable
            and rules.refusal(self) is None
            and all(
                value <= self.allocatable[name] or not self.serves(name, backed)
                for name, value in requests.items()
            )
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
    def recovered(self) -> Fleet:
        """The fleet with each node as :attr:`Node.recovered`; itself where nothing passes."""
        nodes = tuple(node.recovered for node in self.nodes)
        return self if all(map(is_, nodes, self.nodes)) else Fleet(nodes)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each node name in ``nodes``."""
        return {node.name: i for i, node in enumerate(self.nodes)}


# ---- Nodes that an autoscaler can make

MOST_NODES = 10_000
"""The most nodes of one template: the planner places gangs on this number of nodes that do not exist."""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """Nodes that are alike.

    Attributes:
        allocatable: of each node, ``pods`` included.
        maximum: nodes of the flavor that can exist at the same time, those that exist included.
        labels: of each node, in addition to those of the flavor.
        taints: of each node, in addition to those of the flavor.
        domains: label of a topology level to the nodes in each of its domains. A domain of another level is as large as the
            domain above it.
    """

    allocatable: Resources
    maximum: int
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    domains: tuple[tuple[str, int], ...] = ()

    def nodes(
        self, flavor: str, levels: Sequence[str], labels: Mapping[str, str], taints: Sequence[Taint]
    ) -> Iterator[Node]:
        """All nodes that can be made, the domains full one after the other.

        Args:
            flavor: its name, which begins the names of nodes and domains.
            levels: labels of its Topology, coarse to fine.
            labels: its node labels.
            taints: its node taints.
        """
        sizes = dict(self.domains)
        taints = (*taints, *self.taints)
        for number in range(self.maximum):
            path, offset, above = flavor, number, self.maximum
            found = {HOSTNAME: f"{flavor}-{number}"}
            for level in levels:
                if level != HOSTNAME:
                    above = min(sizes.get(level, above), above)
                    path = f"{path}-{offset // above}"
                    offset %= above
                    found[level] = path
            found |= {**labels, **dict(self.labels)}
            yield Node(f"{flavor}-{number}", found, self.allocatable, taints)
