"""The resource claims in the spec of a pod template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queuectl.domain.devices import ClaimReference
from queuectl.objects.errors import MalformedError
from queuectl.objects.kubernetes.wire import PodClaim, TemplateContainer, TemplateSpec


def read_pod_claims(spec: TemplateSpec) -> tuple[ClaimReference, ...]:
    """The claims that the spec names, in its order.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    claims = tuple(
        _claim(claim, f"resourceClaims[{i}]") for i, claim in enumerate(spec.resource_claims or ())
    )
    names = [claim.name for claim in claims]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise MalformedError(f"resourceClaims[{i}].name: {name!r} occurs twice")
    for path, name in _used(spec):
        if name not in names:
            raise MalformedError(f"{path}.name: {name!r} is not in resourceClaims")
    return claims


def _claim(claim: PodClaim, path: str) -> ClaimReference:
    if not claim.name:
        raise MalformedError(f"{path}.name: is required")
    template, named = claim.resource_claim_template_name, claim.resource_claim_name
    if bool(template) == bool(named):
        raise MalformedError(
            f"{path}: needs exactly one of resourceClaimName, resourceClaimTemplateName"
        )
    return ClaimReference(claim.name, template or None, named or None)


def _used(spec: TemplateSpec) -> Iterator[tuple[str, str]]:
    """Path and name of each claim that a container uses."""
    groups: tuple[tuple[str, Sequence[TemplateContainer] | None], ...] = (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    )
    for field, containers in groups:
        for i, container in enumerate(containers or ()):
            used = container.resources.claims if container.resources is not None else None
            for j, claim in enumerate(used or ()):
                yield f"{field}[{i}].resources.claims[{j}]", claim.name
