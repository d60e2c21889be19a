"""AppWrappers of ``workload.codeflare.dev``: one gang of the pods of all their components.

A component is the object that the operator creates when the AppWrapper is resumed, and deletes when it is suspended. queuectl reads it as a
job of its own kind, and writes its labels and its gate for each podset to ``podSetInfos``, from which the operator adds them to the pod
templates. Nothing of a component changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import msgspec

from queuectl.domain.jobs import JobRecord
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError, invalid
from queuectl.objects.kinds.common import SpecFields
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.description import (
    BATCH_JOB,
    JOB_SET,
    PYTORCH_JOB,
    RAY_CLUSTER,
    Description,
    Manager,
    StatusPhase,
    Unsupported,
    nested,
)
from queuectl.objects.kinds.job import BatchJob
from queuectl.objects.kinds.job_indexes import JobSpec, WireJob, pods_follow
from queuectl.objects.kinds.jobset import JOBSET, queues_pods
from queuectl.objects.kinds.places import entries, field
from queuectl.objects.kinds.ray import RAYCLUSTER
from queuectl.objects.kinds.requests import StatedModes
from queuectl.objects.kinds.training import PYTORCHJOB
from queuectl.objects.kubernetes.templates import check_groups, read_podset
from queuectl.objects.kubernetes.wire import (
    Gate,
    Template,
    TemplateMeta,
    TemplateSpec,
    Wire,
)

_COMPONENTS: Final = "spec.components"
_INFOS, _PODSETS = "podSetInfos", "podSets"
_POD: Final = ("v1", "Pod")
_WRAPPED: Final[dict[tuple[str, str], Any]] = {
    (f"{one.group}/{one.version}", one.kind): one
    for one in (BatchJob(), JOBSET, PYTORCHJOB, RAYCLUSTER)
}


class _PodSet(Wire):
    path: str = ""
    replicas: int | None = None


class _Info(Wire):
    labels: dict[str, str] | None = None
    scheduling_gates: list[Gate] | None = None


class _Entry(Wire):
    """``template``: the object of the component, for which the definition has no schema."""

    template: Any = None
    pod_sets: list[_PodSet] | None = None
    pod_set_infos: list[_Info] | None = None


@dataclass(frozen=True, slots=True)
class _Component:
    """A component with pods. ``templates``: the paths of its pod templates, as the operator writes them; ``job``: with its podsets."""

    index: int
    job: JobRecord
    templates: tuple[str, ...]


class AppWrapper(DescribedKind):
    """Adds the components. The names of the podsets end with the index of the component, if several have pods."""

    more: ClassVar[Mapping[str, object]] = {_COMPONENTS: list[_Entry] | None}

    def __init__(self, description: Description, with_pods: frozenset[str]) -> None:
        """``with_pods``: kinds whose pods would run outside the gang, in addition to those of which a component has containers."""
        super().__init__(description)
        self._list = _COMPONENTS
        self._with_pods = with_pods

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "main"}, **template}
        return {"components": [{"template": pod}]}

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The additions of the operator to the templates; none before the first start, because admission changes no template."""
        return [
            {
                "metadata": {"labels": info["labels"]},
                "spec": {"schedulingGates": info["schedulingGates"]},
            }
            for one in document["spec"]["components"]
            for info in one.get(_INFOS) or ()
        ]

    def written(self, document: Any) -> list[tuple[str, Template | None]]:
        """The labels and the gate that the operator adds to the pods."""
        templates = (
            Template(
                TemplateMeta(labels=info.labels),
                TemplateSpec(scheduling_gates=info.scheduling_gates),
            )
            for one in field(document, _COMPONENTS) or ()
            for info in one.pod_set_infos or ()
        )
        return [("", template) for template in templates]

    def _ask(self, document: Any, stated: StatedModes) -> SpecFields:
        self._check_fields(document)
        components = list(self._components(field(document, _COMPONENTS) or (), stated.kueue))
        if not components:
            raise RequestError(f"{_COMPONENTS}: no component has pods")
        names = {
            one.index: {
                podset.name: podset.name if len(components) == 1 else f"{podset.name}-{one.index}"
                for podset in one.job.podsets
            }
            for one in components
        }
        podsets = [
            replace(podset, name=names[one.index][podset.name])
            for one in components
            for podset in one.job.podsets
        ]
        check_groups(podsets)

        def named(part: Callable[[JobRecord], tuple[str, ...]]) -> tuple[str, ...]:
            return tuple(names[one.index][name] for one in components for name in part(one.job))

        def numbered(
            part: Callable[[JobRecord], tuple[tuple[str, int], ...]],
        ) -> tuple[tuple[str, int], ...]:
            return tuple(
                (names[one.index][name], n) for one in components for name, n in part(one.job)
            )

        return SpecFields(
            tuple(podsets),
            # After a failure, the operator creates all components again, with the pods that have ended.
            followed=True,
            ranks=numbered(lambda job: job.ranks),
            first_ranks=numbered(lambda job: job.first_ranks),
            kept_podsets=named(lambda job: job.kept_podsets),
            late=named(lambda job: job.late),
            unborn=named(lambda job: job.unborn),
            list_indexes=tuple(
                (names[one.index][podset.name], one.index)
                for one in components
                for podset in one.job.podsets
            ),
            missing=tuple(self._missing(document, ())),
        )

    def _components(self, components: Sequence[_Entry], kueue: bool) -> Iterator[_Component]:
        """The components with pods. Raises RequestError."""
        for index, one in enumerate(components):
            at = f"{_COMPONENTS}[{index}]"
            body = one.template
            if not isinstance(body, dict):
                raise RequestError(f"{at}.template: must be an object")
            declared = one.pod_sets or ()
            found = _component(index, body, at, kueue)
            if found is not None:
                _check_declared(declared, found, at)
                yield found
                continue
            kind = str(body.get("kind", ""))
            if declared or kind in self._with_pods or _has_containers(body):
                known = ", ".join(name for _, name in (_POD, *_WRAPPED))
                raise RequestError(
                    f"{at}.template: the pods of a {kind} are not supported in an AppWrapper, only those of {known}: "
                    "put the object itself in the queue",
                    unsupported=True,
                )

    def _patched(
        self, record: JobRecord, template: Callable[[str], dict[str, Any]]
    ) -> dict[str, Any]:
        infos: dict[str, list[dict[str, Any]]] = {}
        for name, index in record.list_indexes:
            labels = template(name)["metadata"]["labels"]
            info = {"labels": labels, "schedulingGates": [{"name": keys.GATE}]}
            infos.setdefault(str(index), []).append(info)
        return nested(_COMPONENTS, {index: {_INFOS: found} for index, found in infos.items()})


def _component(index: int, body: dict[str, Any], at: str, kueue: bool) -> _Component | None:
    """The component, if its kind is supported. Raises RequestError."""
    api, kind = str(body.get("apiVersion", "")), str(body.get("kind", ""))
    try:
        if (api, kind) == _POD:
            return _pod(index, body, at, kueue)
        if (api, kind) in _WRAPPED:
            return _job(index, body, at, kueue)
    except msgspec.ValidationError as error:
        raise invalid(error, f"{at}.template") from None
    return None


def _has_containers(body: dict[str, Any]) -> bool:
    """Whether an object of an unknown kind has the spec of a pod somewhere."""
    left: list[Any] = [body]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                return True
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return False


def _pod(index: int, body: dict[str, Any], at: str, kueue: bool) -> _Component:
    template = msgspec.convert(body, Template, strict=False)
    podset = read_podset("main", 1, template, f"{at}.template", kueue=kueue)
    name = template.spec.priority_class_name if template.spec is not None else None
    _check_class(name, at)
    return _Component(index, _record("Pod", (podset,)), ("template",))


def _job(index: int, body: dict[str, Any], at: str, kueue: bool) -> _Component:
    kind = _WRAPPED[(body["apiVersion"], body["kind"])]
    document = msgspec.convert(body, kind.wire, strict=False)
    job = kind.read(document, kueue=kueue)
    if job.error is not None:
        raise RequestError(f"{at}.template.{job.error}", unsupported=job.unsupported)
    if job.suspended:
        raise RequestError(
            f"{at}.template: is suspended: remove the field, because nothing resumes it"
        )
    if job.array is not None or any(one.min_count is not None for one in job.podsets):
        raise RequestError(
            f"{at}.template: all pods of an AppWrapper start together: remove the annotations of arrays, "
            "elastic jobs and partial admission",
            unsupported=True,
        )
    if _follow(document):
        raise RequestError(
            f"{at}.template: has more completions than pods at once: the AppWrapper ends when the first pods have succeeded, "
            "so set parallelism to completions",
            unsupported=True,
        )
    _check_class(job.pod_priority_class, at)
    if isinstance(kind, DescribedKind):
        places = entries(kind.description.podsets, document)
        paths = tuple(f"template.{one.template_path}" for one in places)
    else:
        paths = ("template.spec.template",)
    if len(paths) != len(job.podsets):
        raise RequestError(f"{at}.template: a podset has no pods: remove it")
    return _Component(index, job, paths)


def _follow(component: Any) -> bool:
    """Whether other pods follow the pods of a Job or a JobSet."""
    if isinstance(component, WireJob):
        spec = component.spec or JobSpec()
        return pods_follow(spec.parallelism, spec.completions)
    if isinstance(component, JOBSET.wire):
        return any(map(queues_pods, entries(JOBSET.description.podsets, component)))
    return False


def _check_class(name: str | None, at: str) -> None:
    """The operator adds no PriorityClass to a pod, so that of the user would count for kube-scheduler."""
    if name and name != keys.POD_PRIORITY_CLASS:
        raise RequestError(
            f"{at}.template: the PriorityClass {name!r} of a pod is not supported in an AppWrapper: use the label "
            f"{keys.PREFIX}{keys.PRIORITY_CLASS}",
            unsupported=True,
        )


def _check_declared(declared: Sequence[_PodSet], component: _Component, at: str) -> None:
    """The user states exactly the podsets of the kind. Raises RequestError."""
    stated = [(one.path, 1 if one.replicas is None else one.replicas) for one in declared]
    wanted = [
        (path, podset.count)
        for path, podset in zip(component.templates, component.job.podsets, strict=True)
    ]
    if stated and stated != wanted:
        listed = ", ".join(f"{path} with {count}" for path, count in wanted)
        raise RequestError(f"{at}.{_PODSETS}: are not those of the component: {listed}")


def _record(kind: str, podsets: tuple[PodSet, ...]) -> JobRecord:
    return JobRecord(
        kind=kind,
        namespace="",
        name="",
        uid="",
        version=0,
        created_at=0.0,
        queue=None,
        podsets=podsets,
    )


DESCRIPTION: Final = Description(
    kind="AppWrapper",
    group="workload.codeflare.dev",
    version="v1beta2",
    plural="appwrappers",
    suspend="spec.suspend",
    podsets=(),
    phase=StatusPhase(
        path="status.phase",
        succeeded=("Succeeded",),
        failed=("Failed",),
        suspended=("Suspending", "Suspended"),
    ),
    manager=Manager(path="spec.managedBy", name="workload.codeflare.dev/appwrapper-controller"),
    unsupported=(
        Unsupported(
            path="metadata.annotations",
            annotation="workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration",
            reason="the pods of an AppWrapper that has failed would run on outside its queue: remove it",
        ),
    ),
    finalizer="workload.codeflare.dev/finalizer",
    operator="appWrapperOperator",
    children=(BATCH_JOB, JOB_SET, PYTORCH_JOB, RAY_CLUSTER),
)
