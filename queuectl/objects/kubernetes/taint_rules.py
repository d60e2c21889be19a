"""DeviceTaintRules to records."""

from __future__ import annotations

from typing import Final

from queuectl.domain.devices import DeviceTaintRule
from queuectl.domain.records import TaintRuleRecord
from queuectl.objects.errors import MalformedError
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.resource_slices import read_taint
from queuectl.objects.kubernetes.resource_wire import TaintSelector, WireTaintRule

KIND: Final = "DeviceTaintRule"
VERSION: Final = "resource.k8s.io/v1"
OLDER_VERSION: Final = "resource.k8s.io/v1beta2"
"""That of Kubernetes 1.36, behind the feature gate ``DRADeviceTaintRules``."""


def read_taint_rule(wire: WireTaintRule) -> TaintRuleRecord:
    """One DeviceTaintRule.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    return _read(wire, wire.spec.device_selector)


def read_older_taint_rule(wire: WireTaintRule) -> TaintRuleRecord:
    """One of ``OLDER_VERSION``. Without a selector, kube-scheduler 1.36 puts the taint on all devices, and 1.37 on none.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    return _read(wire, wire.spec.device_selector or TaintSelector())


def _read(wire: WireTaintRule, selector: TaintSelector | None) -> TaintRuleRecord:
    meta, taint = wire.metadata, wire.spec.taint
    if not taint.key:
        raise MalformedError("spec.taint.key: is required")
    content = None
    if selector is not None:
        content = DeviceTaintRule(
            read_taint(taint, meta.name), selector.driver, selector.pool, selector.device
        )
    return TaintRuleRecord(meta.name, version_of(meta.resource_version), content)
