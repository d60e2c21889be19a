"""The placement requests of a pod template: its shape, its topology request, its claims, its RuntimeClass, and unsupported constraints.

A pin chooses the node before kube-scheduler. Constraints that kube-scheduler evaluates against *other pods* are therefore refused,
because their pods would fail as Unschedulable again and again: required pod (anti-)affinity, hard topology spread, host ports, a
preset nodeName. Resource claims are only named here; :mod:`queuectl.domain.devices` finds the devices.

Volumes are allowed. A template does not show whether the volume of a claim is tied to some nodes, and most training jobs mount a
shared file system that is not. If it is, kube-scheduler refuses the pin, the start of the gang fails, and the node is
excluded for the gang, so the number of attempts is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from typing import Final

import msgspec

from queuectl.domain.admission import RuntimeClass
from queuectl.domain.devices import SINGLE_NUMA_NODE, ClaimReference
from queuectl.domain.fleet import Effect, NodeRules, Requirement, SelectorTerm, Toleration
from queuectl.domain.gpus import SharedGpus, annotated_fraction, requested_fraction
from queuectl.domain.quantity import Resources, format_quantity, total
from queuectl.domain.records import RuntimeClassRecord
from queuectl.domain.request_rules import PodNeeds, limited
from queuectl.domain.workload import PodSet, PodShape, Slice, TopologyMode, TopologyRequest
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError, under
from queuectl.objects.kubernetes.cached import CachedReader
from queuectl.objects.kubernetes.node_affinity import check_size
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.pod_rules import check_labels, check_pod
from queuectl.objects.kubernetes.requests import (
    LARGEST,
    read_amounts,
    read_new_pod_needs,
)
from queuectl.objects.kubernetes.slices import annotated_slices, check_below
from queuectl.objects.kubernetes.wire import (
    Affinity,
    LabeledMeta,
    NodeAffinity,
    PodClaim,
    Quantity,
    SelectorRequirement,
    Template,
    TemplateContainer,
    TemplateSpec,
    Term,
    Wire,
    WireToleration,
)
from queuectl.objects.names import is_label_key, is_label_value

_EFFECTS: Final = frozenset(effect.value for effect in Effect)

# ---- PodSets

_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_BOOLEANS: Final = {"true": True, "false": False}
_LARGEST_COUNT: Final = 2**31 - 1
_LARGEST_TOTAL: Final = 2**60  # so that sums over some gangs have 64 bits
# The work for an event of a pod, and the model of a placement, grow with them.
_MOST_PODSETS: Final = 128


def read_podset(
    name: str, count: int, template: Template | None, path: str, *, kueue: bool = True
) -> PodSet:
    """One podset of a job.

    Args:
        name: of the podset.
        count: pods at once.
        template: its pod template.
        path: of the template inside the object, for messages.
        kueue: whether Kueue's keys count.

    Raises:
        RequestError: a sentence naming field and value.
    """
    template = template or Template()
    annotations = template.metadata.annotations if template.metadata else None
    labels = template.metadata.labels if template.metadata else None
    with under(f"{path}.metadata.labels", "."):
        check_labels(labels)
    with under(f"{path}.metadata.annotations"):
        topology, group = read_topology(annotations, count, kueue=kueue)
        sharing = _read_sharing(annotations)
        one_numa_node = read_numa_policy(annotations)
    spec = template.spec or _NO_SPEC
    request = _requests(spec)
    if request is None:
        with under(f"{path}.spec", "."):
            request = _read_request(spec)
    shape = request.shape
    podset = PodSet(
        name,
        count,
        shape,
        topology,
        group,
        limits=request.limits,
        overhead=Resources(request.needs.overhead),
        needs=request.needs,
        rules=shape.rules,
        path=path,
        claims=request.claims,
        shared_gpus=sharing,
        gpu_fraction=annotated_fraction(annotations, f"{path}.metadata.annotations")
        or requested_fraction(shape.requests, f"{path}.spec"),
        one_numa_node=one_numa_node,
        has_deadline=spec.active_deadline_seconds is not None,
        labels=sorted_pairs(labels),
        annotations=sorted_pairs(annotations),
    )
    if request.too_large:
        most = format_quantity(request.too_large, LARGEST)
        raise RequestError(
            f"{path}.spec: {request.too_large} is too large: each pod asks for {most} or more"
        )
    return podset


def too_much(podsets: Collection[PodSet]) -> str | None:
    """The error of a gang with more podsets than a gang can have, or whose pods ask for more of a resource than 64 bits can state."""
    if len(podsets) > _MOST_PODSETS:
        return f"podsets: {len(podsets):,} have pods; at most {_MOST_PODSETS} are allowed"
    for resource, amount in total(podset.requests for podset in podsets).items():
        if amount > _LARGEST_TOTAL:
            most, asked = (format_quantity(resource, n) for n in (_LARGEST_TOTAL, amount))
            return f"all pods together ask for {asked} {resource}; the largest amount is {most}"
    return None


def sorted_pairs(mapping: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """A map in the form that a record has, by key."""
    return tuple(sorted((mapping or {}).items()))


def check_count(count: int, path: str) -> int:
    """A podset's count, which must be positive.

    Raises:
        RequestError: otherwise.
    """
    if not 1 <= count <= _LARGEST_COUNT:
        raise RequestError(f"{path}: {count} is not a positive number of pods")
    return count


# ---- Topology


def read_topology(
    annotations: Mapping[str, str] | None, count: int, *, kueue: bool = True
) -> tuple[TopologyRequest | None, str | None]:
    """Topology request and podset group of one template's annotations, for a podset of ``count`` pods.

    Raises:
        RequestError: malformed or contradictory.
    """
    return topology_request(
        required=keys.either(annotations, keys.REQUIRED_TOPOLOGY, kueue=kueue),
        preferred=keys.either(annotations, keys.PREFERRED_TOPOLOGY, kueue=kueue),
        unconstrained=_boolean(annotations, keys.UNCONSTRAINED_TOPOLOGY, kueue=kueue),
        group=keys.either(annotations, keys.GROUP_NAME, kueue=kueue),
        names=(
            keys.REQUIRED_TOPOLOGY,
            keys.PREFERRED_TOPOLOGY,
            keys.UNCONSTRAINED_TOPOLOGY,
            keys.GROUP_NAME,
        ),
        slices=annotated_slices(annotations, count, kueue=kueue),
        balanced=_boolean(annotations, keys.BALANCED, kueue=False),
    )


def _read_sharing(annotations: Mapping[str, str] | None) -> SharedGpus | None:
    """The annotation about shared GPUs; None without it.

    Raises:
        RequestError: its value is unknown.
    """
    value = keys.either(annotations, keys.SHARED_GPUS, kueue=False)
    if value is not None and value not in set(SharedGpus):
        raise RequestError(f"{keys.SHARED_GPUS}: {value!r} is not {', '.join(SharedGpus)}")
    return SharedGpus(value) if value is not None else None


def read_numa_policy(annotations: Mapping[str, str] | None) -> bool:
    """Whether each pod must get all it requests from one NUMA node.

    Raises:
        RequestError: the annotation has another value than the policy for that.
    """
    value = keys.either(annotations, keys.NUMA_POLICY, kueue=False)
    if value not in (None, SINGLE_NUMA_NODE):
        raise RequestError(f'{keys.NUMA_POLICY}: {value!r} is not "{SINGLE_NUMA_NODE}"')
    return value is not None


def _boolean(annotations: Mapping[str, str] | None, suffix: str, *, kueue: bool) -> bool:
    value = keys.either(annotations, suffix, kueue=kueue)
    if value is not None and value not in _BOOLEANS:
        raise RequestError(f'{suffix}: {value!r} is not "true"')
    return _BOOLEANS[value or "false"]


def topology_request(
    *,
    required: str | None,
    preferred: str | None,
    unconstrained: bool,
    group: str | None,
    names: tuple[str, str, str, str],
    slices: tuple[Slice, ...] = (),
    balanced: bool = False,
) -> tuple[TopologyRequest | None, str | None]:
    """The requested mode, and the group; ``names`` are the names of the four fields in the document.

    Slices or an even spread without a mode request no domain for the podset.

    Raises:
        RequestError: two modes at once, a level that is not a label key, a group without a level.
    """
    asked = {names[0]: required, names[1]: preferred, names[2]: "true" if unconstrained else None}
    annotations = {name: value for name, value in asked.items() if value is not None}
    if len(annotations) > 1:
        listed = " and ".join(f"{name}={value!r}" for name, value in annotations.items())
        raise RequestError(f"{listed} contradict each other: keep one of them")
    for name, level in ((names[0], required), (names[1], preferred)):
        if level is not None and not is_label_key(level):
            raise RequestError(f"{name}: {level!r} is not a node label key")
        check_below(level, slices, name)
    mode = TopologyMode.UNCONSTRAINED
    if required is not None:
        mode = TopologyMode.REQUIRED
    elif preferred is not None:
        mode = TopologyMode.PREFERRED
    request = None
    if annotations or slices or balanced:
        request = TopologyRequest(mode, required or preferred, slices, balanced)
    if group is not None and not group:
        raise RequestError(f"{names[3]}: is empty")
    if group is not None and (request is None or request.level is None):
        raise RequestError(f"{names[3]}={group!r} also needs {names[0]} or {names[1]}")
    return request, group


def check_groups(podsets: Iterable[PodSet]) -> None:
    """Podsets of one group must ask for the same level in the same mode; slices are each podset's own.

    Raises:
        RequestError: naming the group and the two podsets.
    """
    first: dict[str, PodSet] = {}
    for podset in podsets:
        if podset.group is None:
            continue
        other = first.setdefault(podset.group, podset)
        if _words(other) != _words(podset):
            raise RequestError(
                f"{keys.GROUP_NAME}={podset.group!r}: podset {other.name} asks for {_words(other)}"
                f" but podset {podset.name} for {_words(podset)}"
            )


def _words(podset: PodSet) -> str:
    request = podset.topology
    return f"{request.mode.lower()} {request.level}" if request else "no topology"


# ---- Spec

_NO_SPEC: Final = TemplateSpec()


@dataclass(frozen=True, slots=True)
class _SpecRequest:
    """The part of a podset that follows from the spec of its template alone.

    ``too_large``: a resource of which no machine has as much; "" without one.
    """

    shape: PodShape
    needs: PodNeeds
    limits: Resources
    claims: tuple[ClaimReference, ...]
    too_large: str


def _read_request(spec: TemplateSpec) -> _SpecRequest:
    """Read a spec.

    Raises:
        RequestError: malformed, or not supported with a pin (``unsupported``).
    """
    check_pod(spec)
    _refuse_unsupported(spec)
    if spec.affinity and spec.affinity.node_affinity:
        check_size(spec.affinity.node_affinity)
    rules = NodeRules(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        affinity=read_node_affinity(spec.affinity.node_affinity if spec.affinity else None),
        tolerations=_read_rule_tolerations(spec.tolerations or ()),
    )
    needs, requests = read_new_pod_needs(spec)
    needs = replace(needs, runtime_class=spec.runtime_class_name or "")
    large = (resource for resource, amount in requests.items() if amount >= LARGEST)
    return _SpecRequest(
        PodShape(requests, rules),
        needs,
        limited(needs),
        _read_pod_claims(spec),
        too_large=next(large, ""),
    )


def _read_request_or_none(spec: TemplateSpec) -> _SpecRequest | None:
    """The request, None if it has an error: the error names the path of the template, which is not part of the spec."""
    try:
        return _read_request(spec)
    except RequestError:
        return None


_requests: Final = CachedReader[TemplateSpec, _SpecRequest | None](_read_request_or_none)


def _refuse_unsupported(spec: TemplateSpec) -> None:
    constraint = next(_unsupported(spec), None)
    if constraint is not None:
        raise RequestError(constraint, unsupported=True)


def _unsupported(spec: TemplateSpec) -> Iterator[str]:
    affinity = spec.affinity or Affinity()
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    if affinity.pod_affinity and affinity.pod_affinity.required:
        yield f"affinity.podAffinity.{rule}: required pod affinity is not supported"
    if affinity.pod_anti_affinity and affinity.pod_anti_affinity.required:
        yield f"affinity.podAntiAffinity.{rule}: required pod anti-affinity is not supported"
    for i, spread in enumerate(spec.topology_spread_constraints or ()):
        if (spread.when_unsatisfiable or "DoNotSchedule") == "DoNotSchedule":
            yield (
                f"topologySpreadConstraints[{i}]: DoNotSchedule over {spread.topology_key!r}"
                " is not supported"
            )
    if spec.node_name:
        yield f"nodeName: {spec.node_name!r} bypasses placement"
    if spec.scheduling_group:
        # kube-scheduler takes the priority of the pods from the group, which their user can give any.
        yield "schedulingGroup: a PodGroup of Kubernetes for pods in a queue is not supported"
    yield from _host_ports(spec)


def _host_ports(spec: TemplateSpec) -> Iterator[str]:
    groups = (("containers", spec.containers), ("initContainers", spec.init_containers))
    for field, containers in groups:
        for i, container in enumerate(containers or ()):
            for port in container.ports or ():
                taken = port.host_port or (port.container_port if spec.host_network else None)
                if taken:
                    yield f"{field}[{i}].ports: host port {taken} is not supported"


def read_node_affinity(node: NodeAffinity | None) -> tuple[SelectorTerm, ...] | None:
    """The terms that a pod requires; None if it requires none.

    Raises:
        MalformedError: see :func:`read_term`.
    """
    if node is None or node.required is None:
        return None
    path = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = node.required.node_selector_terms or ()
    return tuple(read_term(term, f"{path}[{i}]") for i, term in enumerate(terms))


def read_term(term: Term, path: str) -> SelectorTerm:
    """One term of a node selector.

    Raises:
        MalformedError: an operator is unknown, or its values are missing or not allowed.
    """
    labels = read_requirements(term.match_expressions or (), f"{path}.matchExpressions")
    fields = read_requirements(term.match_fields or (), f"{path}.matchFields", field=True)
    return SelectorTerm((*labels, *fields))


def read_requirements(
    expressions: Sequence[SelectorRequirement], path: str, *, field: bool = False
) -> tuple[Requirement, ...]:
    """Expressions of a node selector term or of a label selector.

    Raises:
        MalformedError: an operator is unknown, or its values are missing or not allowed.
    """
    read = []
    for i, expression in enumerate(expressions):
        operator, alternatives = expression.operator, tuple(expression.values or ())
        if operator not in _OPERATORS:
            listed = ", ".join(sorted(_OPERATORS))
            raise MalformedError(f"{path}[{i}].operator: {operator!r} is not one of {listed}")
        if operator in ("In", "NotIn") and not alternatives:
            raise MalformedError(f"{path}[{i}].values: {operator} needs at least one")
        if operator in ("Exists", "DoesNotExist") and alternatives:
            raise MalformedError(f"{path}[{i}].values: {operator} takes none")
        if operator in ("Gt", "Lt") and not (
            len(alternatives) == 1 and _is_integer(alternatives[0])
        ):
            raise MalformedError(f"{path}[{i}].values: {operator} needs one whole number")
        if field:
            _check_field(expression, f"{path}[{i}]")
        else:
            _check_label(expression, f"{path}[{i}]")
        read.append(Requirement(expression.key, operator, alternatives, field))
    return tuple(read)


def _check_label(expression: SelectorRequirement, path: str) -> None:
    """kube-scheduler finds no node for a term with a key or a value that no label can have, also for ``NotIn``."""
    if not is_label_key(expression.key):
        raise MalformedError(f"{path}.key: {expression.key!r} is not the key of a label")
    for i, alternative in enumerate(expression.values or ()):
        if not is_label_value(alternative):
            what = f"{alternative!r} is not the value of a label"
            raise MalformedError(f"{path}.values[{i}]: {what}")


def _check_field(expression: SelectorRequirement, path: str) -> None:
    if expression.key != "metadata.name":
        raise MalformedError(f"{path}.key: {expression.key!r} is not metadata.name")
    if expression.operator not in ("In", "NotIn") or len(expression.values or ()) != 1:
        raise MalformedError(f"{path}: a field needs the operator In or NotIn, and one value")


def _is_integer(text: str) -> bool:
    return bool(re.fullmatch(r"[+-]?[0-9]{1,18}", text))


def _read_rule_tolerations(tolerations: Iterable[WireToleration]) -> tuple[Toleration, ...]:
    """The tolerations that decide where a pod can run: sorted, so that equal shapes are equal. An unknown operator or effect tolerates nothing."""
    known = {
        Toleration(
            t.key or "",
            t.operator or "Equal",
            t.value or "",
            Effect(t.effect) if t.effect else None,
        )
        for t in tolerations
        if (t.operator or "Equal") in ("Equal", "Exists") and (t.effect or "NoExecute") in _EFFECTS
    }
    return tuple(sorted(known, key=lambda t: (t.key, t.operator, t.value, t.effect or "")))


# ---- Claims


def _read_pod_claims(spec: TemplateSpec) -> tuple[ClaimReference, ...]:
    """The claims that the spec names, in its order.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    claims = tuple(
        _claim(claim, f"resourceClaims[{i}]") for i, claim in enumerate(spec.resource_claims or ())
    )
    names = check_names((claim.name for claim in claims), "resourceClaims")
    for path, name in _used(spec):
        if name not in names:
            raise MalformedError(f"{path}.name: {name!r} is not in resourceClaims")
    return claims


def check_names(names: Iterable[str], path: str) -> set[str]:
    """These names. Raises MalformedError if one is empty or occurs twice. ``path``: of the list."""
    known = set[str]()
    for i, name in enumerate(names):
        if not name:
            raise MalformedError(f"{path}[{i}].name: is required")
        if name in known:
            raise MalformedError(f"{path}[{i}].name: {name!r} occurs twice")
        known.add(name)
    return known


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


# ---- RuntimeClasses

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
        _read_rule_tolerations(scheduling.tolerations or ()),
    )
    return RuntimeClassRecord(content.name, version_of(meta.resource_version), content)
