"""Admission checks, and the rules of a ClusterQueue that name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.domain.checks import (
    CONTROLLERS,
    MOST_CHECKS,
    PROVISIONING,
    AdmissionCheck,
    CheckRule,
)
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.groups import once, refuse_more
from queuectl.objects.configuration.settings import Warned
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_label_key, is_name

PROVISIONING_KIND: Final = "ProvisioningRequestConfig"
_GROUPS: Final = ("kueue.x-k8s.io", "queuectl.dev")
_MOST_PARAMETERS: Final = 100  # as in Kueue
_LONGEST_PARAMETER: Final = 255


def read_admission_check(document: wire.AdmissionCheckDocument) -> AdmissionCheck:
    """Raises RequestError naming field and value."""
    spec = document.spec
    if not spec.controller_name:
        raise RequestError("spec.controllerName: is empty")
    policy = spec.policy or wire.AdmissionCheckPolicy()
    return AdmissionCheck(
        document.metadata.name,
        spec.controller_name,
        float(policy.timeout_seconds) if policy.timeout_seconds is not None else None,
        _read_settings(spec),
    )


def _read_settings(spec: wire.AdmissionCheckSpec) -> str:
    """The name of the ProvisioningRequestConfig of a check that makes nodes; empty for all others, and without parameters."""
    named = spec.parameters
    if spec.controller_name != PROVISIONING or named is None:
        return ""
    if named.kind != PROVISIONING_KIND:
        raise RequestError(f"spec.parameters.kind: {named.kind!r} is not {PROVISIONING_KIND}")
    if named.api_group not in _GROUPS:
        raise RequestError(
            f"spec.parameters.apiGroup: {named.api_group!r} is not {' or '.join(_GROUPS)}"
        )
    if not is_name(named.name):
        raise RequestError(f"spec.parameters.name: {named.name!r} is not a name")
    return named.name


def read_provisioning_config(
    document: wire.ProvisioningRequestConfigDocument,
) -> ProvisioningConfig:
    """Raises RequestError naming field and value."""
    spec = document.spec
    if not is_name(spec.provisioning_class_name):
        raise RequestError(
            f"spec.provisioningClassName: {spec.provisioning_class_name!r} is not a name"
        )
    refuse_more(len(spec.parameters or ()), _MOST_PARAMETERS, "entries", "spec.parameters")
    for key, value in (spec.parameters or {}).items():
        if len(value) > _LONGEST_PARAMETER:
            raise RequestError(
                f"spec.parameters.{key}: is longer than {_LONGEST_PARAMETER} characters"
            )
    managed = spec.managed_resources or []
    refuse_more(len(managed), _MOST_PARAMETERS, "entries", "spec.managedResources")
    once(managed, "spec.managedResources: resource")
    selectors = (spec.pod_set_updates or wire.ProvisionedPodSets()).node_selector or []
    path = "spec.podSetUpdates.nodeSelector"
    refuse_more(len(selectors), MOST_CHECKS, "entries", path)
    once((selector.key for selector in selectors), f"{path}: key")
    for number, selector in enumerate(selectors):
        if not is_label_key(selector.key):
            raise RequestError(f"{path}[{number}].key: {selector.key!r} is not a node label key")
        if not selector.value_from_provisioning_class_detail:
            raise RequestError(f"{path}[{number}].valueFromProvisioningClassDetail: is empty")
    strategy = spec.retry_strategy or wire.RetryStrategy()
    config = ProvisioningConfig(
        name=document.metadata.name,
        class_name=spec.provisioning_class_name,
        parameters=tuple(sorted((spec.parameters or {}).items())),
        managed=frozenset(managed),
        selectors=tuple((s.key, s.value_from_provisioning_class_detail) for s in selectors),
        merge=spec.pod_set_merge_policy,
    )
    return strategy.applied_to(config)


def warn_admission_check(document: wire.AdmissionCheckDocument) -> Iterator[Warned]:
    """A controller that is not known here, and fields without effect."""
    spec = document.spec
    if spec.controller_name not in CONTROLLERS:
        text = f"{spec.controller_name} is not {' or '.join(CONTROLLERS)}: no gang of a queue with this check starts"
        yield Warned("spec.controllerName", text)
    elif spec.controller_name == PROVISIONING and spec.parameters is None:
        text = f"a check with {PROVISIONING} needs a {PROVISIONING_KIND}: no gang of a queue with this check starts"
        yield Warned("spec.parameters", text)
    elif spec.parameters is not None and spec.controller_name != PROVISIONING:
        yield Warned("spec.parameters")
    if spec.retry_delay_minutes is not None:
        yield Warned("spec.retryDelayMinutes")


def read_check_rules(spec: wire.ClusterQueueSpec) -> tuple[CheckRule, ...]:
    """The rules of both fields, by name.

    Raises:
        RequestError: both fields at once, a name twice, or too many of them.
    """
    strategy = spec.admission_checks_strategy or wire.AdmissionChecksStrategy()
    if spec.admission_checks and strategy.admission_checks:
        raise RequestError("spec.admissionChecks: cannot be combined with admissionChecksStrategy")
    listed = [wire.AdmissionCheckRule(name) for name in spec.admission_checks or ()]
    path = "spec.admissionChecks" if listed else "spec.admissionChecksStrategy.admissionChecks"
    rules = listed or strategy.admission_checks or []
    if len(rules) > MOST_CHECKS:
        raise RequestError(f"{path}: {len(rules)} are more than {MOST_CHECKS}")
    found: dict[str, CheckRule] = {}
    for number, rule in enumerate(rules):
        where = f"{path}[{number}]"
        if not is_name(rule.name):
            raise RequestError(f"{where}.name: {rule.name!r} is not the name of an AdmissionCheck")
        if rule.name in found:
            raise RequestError(f"{where}.name: {rule.name!r} is there twice")
        found[rule.name] = CheckRule(rule.name, frozenset(rule.on_flavors or ()))
    return tuple(found[name] for name in sorted(found))


def warn_check_rules(spec: wire.ClusterQueueSpec) -> Iterator[Warned]:
    """Rules for flavors that the ClusterQueue does not have."""
    strategy = spec.admission_checks_strategy or wire.AdmissionChecksStrategy()
    flavors = {flavor.name for group in spec.resource_groups or () for flavor in group.flavors}
    for number, rule in enumerate(strategy.admission_checks or ()):
        if unknown := [name for name in rule.on_flavors or () if name not in flavors]:
            path = f"spec.admissionChecksStrategy.admissionChecks[{number}].onFlavors"
            yield Warned(path, f"{', '.join(unknown)}: not a flavor of this ClusterQueue")
