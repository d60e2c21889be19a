"""The pods that the API server makes of the template of a job, and those that it refuses.

The template does not contain the result. The plugins that change new pods run in this order: LimitRanger, PodNodeSelector,
ExtendedResourceToleration, RuntimeClass. The second and the third are off by default, and the API shows no client whether they are on:
the configuration declares them. Additions of webhooks are known only when the pods of a start exist. A gang whose pods would be refused
must not be resumed: it would hold its nodes without running.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from queuectl.domain import limits
from queuectl.domain.fleet import Effect, NodeRules, Toleration
from queuectl.domain.limits import Ranges, filled
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.request_rules import (
    Amounts,
    PodNeeds,
    above_limits,
    incidental,
    invalid,
    limited,
    requested,
)
from queuectl.domain.rules import AdmissionPlugin
from queuectl.domain.workload import PodSet

NodeSelectors: TypeAlias = tuple[tuple[AdmissionPlugin, tuple[tuple[str, str], ...]], ...]
"""The labels of nodes that a namespace selects, for each plugin that reads them."""


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """The additions of a RuntimeClass to the pods that name it. ``selector``: of nodes."""

    name: str
    overhead: Amounts = ()
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class PodAdmission:
    """The changes of the new pods of one namespace.

    Attributes:
        ranges: its LimitRanges.
        runtime_classes: by name.
        selector: the labels of nodes that the namespace selects.
        tolerates: whether pods tolerate a taint with the name of an extended resource that they request.
    """

    ranges: Ranges = ()
    runtime_classes: Mapping[str, RuntimeClass] = field(default_factory=dict)
    selector: tuple[tuple[str, str], ...] = ()
    tolerates: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionObjects:
    """The changes of the new pods of a cluster.

    Attributes:
        ranges: by namespace.
        runtime_classes: by name.
        selectors: the labels of nodes that each namespace selects, for each plugin that reads them.
        plugins: that are declared to be on.
    """

    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    runtime_classes: Mapping[str, RuntimeClass] = field(default_factory=dict)
    selectors: Mapping[str, NodeSelectors] = field(default_factory=dict)
    plugins: frozenset[AdmissionPlugin] = frozenset()

    def of(self, namespace: str) -> PodAdmission:
        """The changes of the new pods of this namespace."""
        selected: dict[str, str] = {}
        for plugin, labels in self.selectors.get(namespace, ()):
            selected |= dict(labels) if plugin in self.plugins else {}
        return PodAdmission(
            self.ranges.get(namespace, ()),
            self.runtime_classes,
            tuple(sorted(selected.items())),
            AdmissionPlugin.EXTENDED_RESOURCE_TOLERATION in self.plugins,
        )


def created(podset: PodSet, around: PodAdmission) -> PodSet:
    """The podset with the requests and the node rules of its pods, instead of earlier ones."""
    if podset.needs is None:
        return podset
    needs, rules = _pod(podset, podset.needs, around)
    asked, limits, overhead = requested(needs), limited(needs), Resources(needs.overhead)
    others = incidental(needs) | {name for name in podset.larger_requests if name not in asked}
    requests = asked.at_least(podset.larger_requests)
    shape = replace(podset.shape, requests=requests, incidental=others, rules=rules)
    if (shape, limits, overhead) == (podset.shape, podset.limits, podset.overhead):
        return podset
    return replace(podset, shape=shape, limits=limits, overhead=overhead)


def _pod(podset: PodSet, needs: PodNeeds, around: PodAdmission) -> tuple[PodNeeds, NodeRules]:
    needs = filled(needs, around.ranges)
    tolerated = _extended(needs) if around.tolerates else ()
    rules = podset.rules.joined(around.selector, tolerated)
    runtime = around.runtime_classes.get(needs.runtime_class)
    if runtime is not None:
        needs = replace(needs, overhead=needs.overhead or runtime.overhead)
        rules = rules.joined(runtime.selector, runtime.tolerations)
    return needs, rules


def _extended(needs: PodNeeds) -> list[Toleration]:
    """The tolerations that the plugin ExtendedResourceToleration adds to a pod."""
    asked = {name for one in needs.all_containers for name in one.effective_requests}
    return [
        Toleration(name, "Exists", effect=Effect.NO_SCHEDULE)
        for name in sorted(asked)
        if "/" in name and "kubernetes.io/" not in name
    ]


def refusal(
    podsets: Iterable[PodSet],
    namespace: str,
    around: PodAdmission,
    *,
    exist: bool = False,
    accepted: bool = False,
) -> Reason | None:
    """Why the API server refuses the pods of a podset; None if it takes all of them.

    Args:
        podsets: of one gang.
        namespace: of the pods.
        around: what changes them.
        exist: they have been created. They keep the overhead of that time.
        accepted: the API server has checked the limits of the template.
    """
    listed = list(podsets)
    for podset in listed:
        by_namespace = _conflicts(podset.rules, around.selector, f"namespace {namespace}")
        for name, why in (*by_namespace, *_by_runtime_class(podset, around, exist=exist)):
            return _misconfigured(podset, namespace, name, f"{why}; its pods would be refused")
    wrong = wrong_requests(listed, namespace, around, accepted=exist or accepted)
    return wrong or limits.refusal(listed, namespace, around.ranges)


def wrong_requests(
    podsets: Iterable[PodSet], namespace: str, around: PodAdmission, *, accepted: bool = False
) -> Reason | None:
    """The first request that the API server refuses, whatever other objects say, or None. Arguments as in :func:`refusal`."""
    for podset in podsets:
        stated = podset.needs or PodNeeds()
        needs = filled(stated, around.ranges)
        for name, why in (*above_limits(stated), *invalid(needs, limits=not accepted)):
            return _misconfigured(podset, namespace, name, why)
    return None


def _misconfigured(podset: PodSet, namespace: str, name: str, why: str) -> Reason:
    where = f"{podset.path}.spec.{name}".removeprefix(".")
    details = {"namespace": namespace, "podSet": podset.name, "field": where}
    return Reason(Code.MISCONFIGURED, f"{where}: {why}", details)


def _by_runtime_class(
    podset: PodSet, around: PodAdmission, *, exist: bool
) -> Iterable[tuple[str, str]]:
    """Field and reason of each refusal by the plugin RuntimeClass."""
    needs = podset.needs or PodNeeds()
    name = needs.runtime_class
    runtime = around.runtime_classes.get(name)
    if name and runtime is None:
        yield "runtimeClassName", f"RuntimeClass {name} does not exist"
        return
    if needs.overhead and not exist:
        if runtime is None or not runtime.overhead:
            yield "overhead", "no RuntimeClass of the pod has an overhead"
        elif dict(needs.overhead) != dict(runtime.overhead):
            yield "overhead", f"differs from RuntimeClass {name}"
    if runtime is not None:
        rules = podset.rules.joined(around.selector, ())
        yield from _conflicts(rules, runtime.selector, f"RuntimeClass {name}")


def _conflicts(
    rules: NodeRules, selector: Iterable[tuple[str, str]], whose: str
) -> Iterator[tuple[str, str]]:
    """Field and reason of each label that a pod selects by another value."""
    own = dict(rules.selector)
    for key, value in selector:
        if own.get(key, value) != value:
            yield f"nodeSelector[{key}]", f"{own[key]!r} conflicts with {value!r} of {whose}"
