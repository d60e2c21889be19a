"""The pods that the API server makes of the template of a job, and those that it refuses.

The template does not contain the result. The plugins that change new pods run in this order: LimitRanger, RuntimeClass. What webhooks
add is known only when the pods of a start exist. A gang whose pods would be refused must not be resumed: it would hold its nodes
without running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from queuectl.domain import limitrange
from queuectl.domain.fleet import NodeRules, Toleration
from queuectl.domain.limitrange import Ranges, filled
from queuectl.domain.needs import Amounts, PodNeeds, incidental, limited, requested
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import PodSet


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """What a RuntimeClass adds to the pods that name it. ``selector``: of nodes."""

    name: str
    overhead: Amounts = ()
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """What changes the new pods of one namespace. ``runtime_classes``: by name."""

    ranges: Ranges = ()
    runtime_classes: Mapping[str, RuntimeClass] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdmissionObjects:
    """What changes the new pods of a cluster. ``ranges``: by namespace. ``runtime_classes``: by name."""

    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    runtime_classes: Mapping[str, RuntimeClass] = field(default_factory=dict)

    def of(self, namespace: str) -> Admission:
        """What changes the new pods of this namespace."""
        return Admission(self.ranges.get(namespace, ()), self.runtime_classes)


def created(podset: PodSet, around: Admission) -> PodSet:
    """The podset with the requests and the node rules of its pods, instead of earlier ones."""
    if podset.needs is None:
        return podset
    needs, rules = _pod(podset, podset.needs, around)
    asked, limits = requested(needs), limited(needs)
    others = incidental(needs) | {name for name in podset.seen if name not in asked}
    requests = asked.at_least(podset.seen)
    shape = replace(podset.shape, requests=requests, incidental=others, rules=rules)
    if (shape, limits) == (podset.shape, podset.limits):
        return podset
    return replace(podset, shape=shape, limits=limits)


def _pod(podset: PodSet, needs: PodNeeds, around: Admission) -> tuple[PodNeeds, NodeRules]:
    needs, rules = filled(needs, around.ranges), podset.rules
    runtime = around.runtime_classes.get(needs.runtime_class)
    if runtime is not None:
        needs = replace(needs, overhead=needs.overhead or runtime.overhead)
        rules = rules.joined(runtime.selector, runtime.tolerations)
    return needs, rules


def refusal(
    podsets: Iterable[PodSet], namespace: str, around: Admission, *, exist: bool = False
) -> Reason | None:
    """Why the API server refuses the pods of a podset; None if it takes all of them.

    ``exist``: the pods have been created. They keep the overhead of that time.
    """
    listed = list(podsets)
    for podset in listed:
        for name, why in _by_runtime_class(podset, around, exist=exist):
            where = f"{podset.path}.spec.{name}"
            details = {"namespace": namespace, "podSet": podset.name, "field": where}
            return Reason(Code.MISCONFIGURED, f"{where}: {why}", details)
    return limitrange.refusal(listed, namespace, around.ranges)


def _by_runtime_class(
    podset: PodSet, around: Admission, *, exist: bool
) -> Iterable[tuple[str, str]]:
    """Field and reason of each refusal by the plugin RuntimeClass."""
    needs = podset.needs or PodNeeds()
    name = needs.runtime_class
    runtime = around.runtime_classes.get(name)
    if name and runtime is None:
        yield "runtimeClassName", f"RuntimeClass {name} does not exist; its pods would be refused"
        return
    if needs.overhead and not exist:
        if runtime is None or not runtime.overhead:
            yield (
                "overhead",
                "no RuntimeClass of the pod has an overhead; its pods would be refused",
            )
        elif dict(needs.overhead) != dict(runtime.overhead):
            yield "overhead", f"differs from RuntimeClass {name}; its pods would be refused"
    own = dict(podset.rules.selector)
    for key, value in runtime.selector if runtime is not None else ():
        if own.get(key, value) != value:
            text = f"{own[key]!r} conflicts with {value!r} of RuntimeClass {name}"
            yield f"nodeSelector[{key}]", f"{text}; its pods would be refused"
