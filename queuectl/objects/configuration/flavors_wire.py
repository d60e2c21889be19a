"""ResourceFlavors and Topologies, field by field, as in :mod:`queuectl.objects.configuration.wire`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec

from queuectl.domain.fleet import HOSTNAME, MOST_NODES
from queuectl.domain.mig import MigMode
from queuectl.objects.configuration.bounds import (
    LABEL_KEYS,
    NAMES,
    Amount,
    LabelKey,
    Rule,
    Text,
    has_text,
    keyed,
    states,
)
from queuectl.objects.configuration.wire import (
    Labels,
    ObjectHead,
    Strict,
    StrictTaint,
    StrictToleration,
)

MOST_LEVELS: Final = 16
"""The most levels of a Topology."""
NodeCount = Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
GpuIndex = Annotated[int, msgspec.Meta(ge=0, lt=32)]

# ---- ResourceFlavor

MIG_PROFILE: Final = r"(?:[1-7]c\.)?[1-7]g\.[1-9][0-9]*gb(?:[+-][a-z0-9.]+)?"
MOST_SLICES: Final = 7  # compute slices of the GPUs with the most


class MigEntry(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, omit_defaults=True):
    """Some GPUs of a node in one MIG configuration, as in the file of mig-parted."""

    devices: Literal["all"] | list[GpuIndex]
    mig_enabled: bool
    mig_devices: (
        Annotated[
            dict[str, Annotated[int, msgspec.Meta(ge=1, le=MOST_SLICES)]],
            states(
                Rule(
                    f"self.all(profile, profile.matches(r'^(?:{MIG_PROFILE})$'))",
                    "must have MIG profiles like 1g.10gb",
                ),
                Rule(
                    "self.map(profile, profile.matches(r'^[1-7]g') ? int(profile.substring(0, 1)) * self[profile] : 0)"
                    f".sum() <= {MOST_SLICES}",
                    f"a GPU has {MOST_SLICES} compute slices or fewer",
                ),
            ),
            msgspec.Meta(max_length=32),
        ]
        | None
    ) = None
    device_filter: str | list[str] | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.mig__dash__enabled || !has(self.mig__dash__devices) || size(self.mig__dash__devices) == 0",
            "must be empty with mig-enabled: false",
            "mig-devices",
        ),
    )


class NodeTemplateSpec(Strict):
    """The nodes that an autoscaler can make."""

    allocatable: Annotated[dict[str, Amount], msgspec.Meta(max_length=64)]
    maximum_nodes: NodeCount
    labels: Annotated[Labels, states(LABEL_KEYS)] | None = None
    taints: (
        Annotated[list[StrictTaint], keyed("key", "effect"), msgspec.Meta(max_length=64)] | None
    ) = None
    nodes_per_domain: (
        Annotated[
            dict[str, NodeCount],
            msgspec.Meta(max_length=MOST_LEVELS),
            states(
                LABEL_KEYS,
                Rule(f"!('{HOSTNAME}' in self)", f"{HOSTNAME} is the level of single nodes"),
            ),
        ]
        | None
    ) = None


class FlavorPolicy(Strict):
    """Fields particular to queuectl."""

    node_template: NodeTemplateSpec | None = None
    mig_configs: (
        Annotated[
            dict[
                str,
                Annotated[list[MigEntry], states(minItems=1), msgspec.Meta(max_length=32)],
            ],
            msgspec.Meta(max_length=64),
            states(NAMES),
        ]
        | None
    ) = None
    mig_reconfiguration: MigMode | None = None

    rules = (
        Rule(
            f"!({has_text('migReconfiguration', 'Execute')}) || (has(self.migConfigs) && size(self.migConfigs) > 0)",
            "Execute requires migConfigs",
            "migReconfiguration",
        ),
    )


MOST_ENTRIES: Final = 8  # node labels, taints, tolerations, as in Kueue


class ResourceFlavorSpec(Strict):
    node_labels: (
        Annotated[dict[str, Text], states(LABEL_KEYS, maxProperties=MOST_ENTRIES)] | None
    ) = None
    node_taints: (
        Annotated[list[StrictTaint], keyed("key", "effect"), states(maxItems=MOST_ENTRIES)] | None
    ) = None
    tolerations: Annotated[list[StrictToleration], states(maxItems=MOST_ENTRIES)] | None = None
    topology_name: Text | None = None
    policy: FlavorPolicy | None = None

    rules = (
        Rule(
            f"!has(self.policy) || !has(self.policy.nodeTemplate) || ({has_text('topologyName')})",
            "requires topologyName; without it, no nodes are chosen",
            "policy.nodeTemplate",
        ),
        Rule(
            "!has(self.policy) || !has(self.policy.migConfigs) || size(self.policy.migConfigs) == 0"
            " || (has(self.nodeLabels) && size(self.nodeLabels) > 0)",
            "requires nodeLabels, which name the nodes",
            "policy.migConfigs",
        ),
    )


class LevelSpec(Strict):
    node_label: LabelKey


class TopologySpec(Strict):
    levels: Annotated[
        list[LevelSpec],
        states(
            Rule(
                "self.all(level, self.exists_one(other, other.nodeLabel == level.nodeLabel))",
                "has a node label twice",
            ),
            Rule(
                f"!self.exists(level, level.nodeLabel == '{HOSTNAME}') || self[size(self) - 1].nodeLabel == '{HOSTNAME}'",
                f"{HOSTNAME} can only be the last level",
            ),
            minItems=1,
            maxItems=MOST_LEVELS,
        ),
    ]


class ResourceFlavorDocument(ObjectHead, kw_only=True):
    spec: ResourceFlavorSpec = msgspec.field(default_factory=ResourceFlavorSpec)


class TopologyDocument(ObjectHead, kw_only=True):
    spec: TopologySpec
