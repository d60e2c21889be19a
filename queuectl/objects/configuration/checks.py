"""Admission checks, and the rules of a ClusterQueue that name them."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.checks import CONTROLLERS, MOST_CHECKS, AdmissionCheck, CheckRule
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.warned import Warned
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_name


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
    )


def warn_admission_check(document: wire.AdmissionCheckDocument) -> Iterator[Warned]:
    """A controller that is not known here, and fields without effect."""
    spec = document.spec
    if spec.controller_name not in CONTROLLERS:
        text = f"{spec.controller_name} is not {' or '.join(CONTROLLERS)}: no gang of a queue with this check starts"
        yield Warned("spec.controllerName", text)
    elif spec.parameters is not None:
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
        raise RequestError("spec.admissionChecks: cannot be used beside admissionChecksStrategy")
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
