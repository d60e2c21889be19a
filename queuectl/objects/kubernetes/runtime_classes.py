"""RuntimeClasses."""

from __future__ import annotations

from sys import intern
from typing import Final

import msgspec

from queuectl.domain.admission import RuntimeClass
from queuectl.domain.records import RuntimeClassRecord
from queuectl.objects.errors import under
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import read_amounts
from queuectl.objects.kubernetes.templates import read_rule_tolerations
from queuectl.objects.kubernetes.wire import LabeledMeta, Quantity, Wire, WireToleration

API_VERSION: Final = "node.k8s.io/v1"
KIND: Final = "RuntimeClass"


class Overhead(Wire):
    pod_fixed: dict[str, Quantity] | None = None


class Scheduling(Wire):
    node_selector: dict[str, str] | None = None
    tolerations: list[WireToleration] | None = None


class WireRuntimeClass(Wire):
    metadata: LabeledMeta = msgspec.field(default_factory=LabeledMeta)
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None


def read_runtime_class(wire: WireRuntimeClass) -> RuntimeClassRecord:
    """Project a RuntimeClass.

    Raises:
        RequestError: an amount is malformed; the API server refuses such objects.
    """
    meta, scheduling = wire.metadata, wire.scheduling or Scheduling()
    with under("overhead.podFixed"):
        overhead = read_amounts((wire.overhead or Overhead()).pod_fixed)
    content = RuntimeClass(
        intern(meta.name),
        overhead,
        tuple(sorted((scheduling.node_selector or {}).items())),
        read_rule_tolerations(scheduling.tolerations or ()),
    )
    return RuntimeClassRecord(content.name, version_of(meta.resource_version), content)
