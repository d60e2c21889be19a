"""The devices that the pods of a job request: their resource claims, by the templates, claims and classes that the watch shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from queuectl.domain.devices import ClaimReference, ClaimSpec, PodDevices
from queuectl.domain.job_records import JobRecord
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import PodSet
from queuectl.state.devices import DeviceMirror


def names_claims(job: JobRecord) -> bool:
    """Whether a pod of the job has resource claims."""
    return any(podset.claims for podset in job.podsets)


def all_resolved(job: JobRecord) -> bool:
    """Whether the devices of all its claims are known."""
    return all(podset.shape.devices is not None for podset in job.podsets if podset.claims)


def claiming(job: JobRecord, known: DeviceMirror) -> JobRecord:
    """The job with the devices that its pods request; the same object if they name no claim.

    If a claim cannot be planned, the job is blocked with the reason.
    """
    if not names_claims(job):
        return job
    podsets, reasons = [], list[Reason]()
    for podset in job.podsets:
        found, why = _resolved(job.namespace, podset, known)
        podsets.append(found)
        reasons += why
    return replace(
        job, podsets=tuple(podsets), forbidden=job.forbidden or next(iter(reasons), None)
    )


def _resolved(
    namespace: str, podset: PodSet, known: DeviceMirror
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
    namespace: str, reference: ClaimReference, known: DeviceMirror
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
    what: str, spec: ClaimSpec | None, error: str | None, known: DeviceMirror
) -> Iterator[tuple[Code, str]]:
    if spec is None:
        yield Code.MISCONFIGURED, f"{what} does not exist"
    elif error is not None:
        yield Code.UNSUPPORTED, f"{what}: {error}"
    else:
        classes = {option.device_class for one in spec.requests for option in one.options}
        for name in sorted(classes - known.classes.keys()):
            yield Code.MISCONFIGURED, f"{what}: DeviceClass {name} does not exist"
