"""The devices that a pod requests: its resource claims, by the templates, claims and classes that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from queuectl.domain.devices import ClaimReference, ClaimSpec, DeviceClass, PodDevices
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import ClaimRecord, ClaimTemplateRecord
from queuectl.domain.workload import PodSet


class KnownClaims(Protocol):
    """The objects that claims of pods refer to."""

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """By name."""

    def template(self, namespace: str, name: str) -> ClaimTemplateRecord | None:
        """A ResourceClaimTemplate; None if it does not exist."""

    def named_claim(self, namespace: str, name: str) -> ClaimRecord | None:
        """A ResourceClaim that a user made; None if it does not exist."""


def resolved(
    namespace: str, podset: PodSet, known: KnownClaims
) -> tuple[PodSet, tuple[Reason, ...]]:
    """The podset with the devices that its claims request, or the reasons for which they cannot be planned.

    A podset without claims is the same object.
    """
    if not podset.claims:
        return podset, ()
    own, shared = [], []
    reasons: list[Reason] = []
    where = {"namespace": namespace, "podSet": podset.name}
    for reference in podset.claims:
        what, spec, error = _found(namespace, reference, known)
        reasons += [Reason(code, text, where) for code, text in _faults(what, spec, error, known)]
        if spec is None or not spec.requests:
            continue  # a claim without requests needs no device, and any number of pods can use it
        if reference.claim is not None:
            shared.append(reference.claim)
        else:
            own.append(spec)
    devices = None if reasons else PodDevices(tuple(own), tuple(shared))
    return replace(podset, shape=replace(podset.shape, devices=devices)), tuple(reasons)


def _found(
    namespace: str, reference: ClaimReference, known: KnownClaims
) -> tuple[str, ClaimSpec | None, str | None]:
    """The object that is named, its request, and its error."""
    if reference.claim is not None:
        what = f"ResourceClaim {namespace}/{reference.claim}"
        claim = known.named_claim(namespace, reference.claim)
        return (what, None, None) if claim is None else (what, claim.content.spec, claim.error)
    what = f"ResourceClaimTemplate {namespace}/{reference.template}"
    template = known.template(namespace, reference.template or "")
    return (what, None, None) if template is None else (what, template.spec, template.error)


def _faults(
    what: str, spec: ClaimSpec | None, error: str | None, known: KnownClaims
) -> Iterator[tuple[Code, str]]:
    if spec is None:
        yield Code.MISCONFIGURED, f"{what} does not exist"
    elif error is not None:
        yield Code.UNSUPPORTED, f"{what}: {error}"
    else:
        classes = {option.device_class for one in spec.requests for option in one.options}
        for name in sorted(classes - known.classes.keys()):
            yield Code.MISCONFIGURED, f"{what}: DeviceClass {name} does not exist"
