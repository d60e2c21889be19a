"""SparkApplications of ``sparkoperator.k8s.io``, run by the Kubeflow Spark operator. The driver is a podset, and the executors are one.

The operator submits the application by ``spark-submit``, which creates the driver, and the driver creates the executors with an account of
its user. Both have the labels of ``spec.driver.labels`` and ``spec.executor.labels``. Admission gates them by these labels: with a gate in
a pod template, the operator would not apply the other fields of ``spec.driver`` and ``spec.executor`` to the pods.

The requests of a pod follow from properties of Spark, which the operator derives from the object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import nan
from typing import Any, ClassVar, Final

import msgspec

from queuectl.domain.words import shortened
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError, invalid
from queuectl.objects.kinds.common import SpecFields
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.description import (
    Description,
    PodLabels,
    PodSets,
    StatusPhase,
    Unsupported,
    nested,
)
from queuectl.objects.kinds.places import PodSetPlace, field
from queuectl.objects.kubernetes.wire import Template

_EXECUTOR: Final = "executor"
LABELS: Final = PodLabels(path="labels", priority_class="priorityClassName")
"""Of ``spec.driver`` and ``spec.executor``."""
_CONF, _TYPE, _MODE = "spec.sparkConf", "spec.type", "spec.mode"
_SELECTOR, _FACTOR = "spec.nodeSelector", "spec.memoryOverheadFactor"
_PLACED: Final = "the pods of a job in a queue are placed by queuectl: remove it"
_CHANGES: Final = "a number of executors that changes while the application runs is not supported"

_REFUSED: Final = {
    "spark.dynamicAllocation.enabled": ("false", _CHANGES),
    "spark.executor.instances": (None, "set spec.executor.instances instead"),
    "spark.kubernetes.allocation.pods.allocator": (
        "direct",
        "the driver must create the executors: remove it",
    ),
}
"""Properties of Spark, with the only value that is accepted and the reason."""

_BYTES: Final[Mapping[str, int]] = {unit: 1024**power for power, unit in enumerate("bkmgtp")}
_NOT_JAVA: Final = ("Python", "R")
_LEAST_OVERHEAD: Final = 384  # MiB
_LARGEST_FACTOR: Final = 1_000

_POD_FIELDS: Final = ("affinity", "tolerations", "hostNetwork", "initContainers")
"""Fields of ``spec.driver`` and ``spec.executor`` as in a PodSpec."""
_CONTAINERS: Final = ("initContainers", "sidecars")
_PROPERTIES: Final = {
    "cores": "spark.{}.cores",
    "memory": "spark.{}.memory",
    "memoryOverhead": "spark.{}.memoryOverhead",
    "coreRequest": "spark.kubernetes.{}.request.cores",
    "coreLimit": "spark.kubernetes.{}.limit.cores",
}
"""Other fields, and the properties of Spark that they set, for a podset."""


class _Gpu(msgspec.Struct, gc=False):
    name: str | None = None
    quantity: int | None = None


class SparkApplication(DescribedKind):
    """Adds the pod templates that the operator and Spark derive from the object."""

    more: ClassVar[Mapping[str, object]] = {
        _CONF: dict[str, str | int | float | bool] | None,
        _TYPE: str | None,
        _MODE: str | None,
        _SELECTOR: dict[str, str] | None,
        _FACTOR: str | None,
    }
    more_of_entries: ClassVar[Mapping[str, object]] = {
        **dict.fromkeys(_PROPERTIES, str | int | None),
        **dict.fromkeys(("labels", "annotations", "nodeSelector"), dict[str, str] | None),
        **dict.fromkeys(("tolerations", *_CONTAINERS), list[dict[str, Any]] | None),
        "affinity": dict[str, Any] | None,
        "hostNetwork": bool | None,
        "gpu": _Gpu | None,
        "priorityClassName": str | None,
    }

    def template_of(self, document: Any, entry: PodSetPlace) -> Template | None:
        own = f"{entry.path}.template"
        try:
            # The definition has no schema for a template.
            given = msgspec.convert(field(entry.content, "template"), Template | None)
        except msgspec.ValidationError as error:
            raise invalid(error, own) from None
        try:
            return msgspec.convert(_template(document, entry), Template)
        except msgspec.ValidationError as error:
            raise invalid(error, entry.path if given is None else own) from None

    def written(self, document: Any) -> list[tuple[str, Template | None]]:
        return [("", _marked(entry)) for entry in self._asking(document)]

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [_gated(_template(document, entry), entry) for entry in self._asking(document)]

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        # An executor has no own template in a dry run: the operator gives it one container.
        return {
            **self.description.probe["spec"],
            "driver": {"template": template},
            _EXECUTOR: {"instances": 1},
        }

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:
        if (mode := field(document, _MODE) or "cluster") != "cluster":
            raise RequestError(
                f"{_MODE}: {mode!r} is not supported: only in the mode 'cluster' the driver is a pod",
                unsupported=True,
            )
        for name, (accepted, reason) in _REFUSED.items():
            value = (field(document, _CONF) or {}).get(name, accepted)
            if value != accepted:
                raise RequestError(f"{_CONF}: {name}: {reason}", unsupported=True)
        # The driver creates the executors, and another one for each that ends.
        return replace(super().read_fields(document, fields), late=(_EXECUTOR,), followed=True)


def _marked(entry: PodSetPlace) -> Template:
    """The fields in which queuectl writes, as of a template. Admission gates each pod with these labels."""
    labels = field(entry.content, LABELS.path)
    priority_class = field(entry.content, LABELS.priority_class)
    spec = {"schedulingGates": [{"name": keys.GATE}], "priorityClassName": priority_class}
    return msgspec.convert({"metadata": {"labels": labels}, "spec": spec}, Template)


def _gated(template: dict[str, Any], entry: PodSetPlace) -> dict[str, Any]:
    """The template of the pods as they are after their admission."""
    if keys.KIND_LABEL not in template["metadata"]["labels"]:
        return template
    gate = {"schedulingGates": [{"name": keys.GATE}]}
    priority_class = {"priorityClassName": field(entry.content, LABELS.priority_class)}
    return template | {"spec": template["spec"] | gate | priority_class}


def _template(document: Any, entry: PodSetPlace) -> dict[str, Any]:
    """The pod template of the driver, or of executors."""
    own = field(entry.content, "template")
    given: Mapping[str, Any] = own or {}
    meta, spec = dict(given.get("metadata") or {}), dict(given.get("spec") or {})
    for name in ("labels", "annotations"):
        meta[name] = (meta.get(name) or {}) | (field(entry.content, name) or {})
    container = f"spark-kubernetes-{entry.podset}"
    containers = [dict(one) for one in spec.get("containers") or [{"name": container}]]
    at = next((n for n, one in enumerate(containers) if one.get("name") == container), 0)
    properties = _properties(document, entry)
    resources = _resources(document, entry, properties)
    if own is None:
        values = {name: field(entry.content, name) for name in _POD_FIELDS}
        spec |= {name: value for name, value in values.items() if value}
        containers += field(entry.content, "sidecars") or []
        name, quantity = (field(entry.content, f"gpu.{one}") for one in ("name", "quantity"))
        if name and quantity and quantity > 0:
            resources["limits"][name] = quantity
    present = containers[at].get("resources") or {}
    merged = {kind: (present.get(kind) or {}) | amounts for kind, amounts in resources.items()}
    containers[at] = containers[at] | {"resources": present | merged}
    spec["nodeSelector"] = {
        **(spec.get("nodeSelector") or {}),
        **(field(entry.content, "nodeSelector") or {} if own is None else {}),
        **dict(_selected(properties, "spark.kubernetes.node.selector.")),
        **dict(_selected(properties, f"spark.kubernetes.{entry.podset}.node.selector.")),
        **(field(document, _SELECTOR) or {}),
    }
    return {"metadata": meta, "spec": spec | {"containers": containers}}


def _selected(properties: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), value


def _properties(document: Any, entry: PodSetPlace) -> dict[str, str]:
    """The properties of Spark: those of ``sparkConf``, and those of the other fields, which precede them."""
    role, found = entry.podset, {k: str(v) for k, v in (field(document, _CONF) or {}).items()}
    for source, name in _PROPERTIES.items():
        value = field(entry.content, source)
        if value is not None:
            found[name.format(role)] = str(value)
    factor = field(document, _FACTOR)
    return found | ({"spark.kubernetes.memoryOverheadFactor": factor} if factor else {})


def _resources(
    document: Any, entry: PodSetPlace, properties: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The requests and limits that Spark writes to its container."""
    role = entry.podset
    cores = properties.get(f"spark.{role}.cores", "1")
    memory = f"{_memory(document, role, properties)}Mi"
    requests = {
        "cpu": properties.get(f"spark.kubernetes.{role}.request.cores", cores),
        "memory": memory,
    }
    limits = {"memory": memory}
    if limit := properties.get(f"spark.kubernetes.{role}.limit.cores"):
        limits["cpu"] = limit
    of_resource = f"spark.{role}.resource."
    for key, amount in _selected(properties, of_resource):
        name, _, part = key.partition(".")
        vendor = properties.get(f"{of_resource}{name}.vendor")
        if part == "amount" and vendor:
            limits[f"{vendor}/{name}"] = amount
    return {"requests": requests, "limits": limits}


def _memory(document: Any, role: str, properties: Mapping[str, str]) -> int:
    """MiB of the container: of its process, and in addition to that."""
    kind = field(document, _TYPE)

    def amount(name: str, default: int = 0, unit: str = "m") -> int:
        text = properties.get(name)
        return default if text is None else _mebibytes(text, name, unit)

    memory = amount(f"spark.{role}.memory", 1024)
    default = "0.4" if kind in _NOT_JAVA else "0.1"
    shared = properties.get("spark.kubernetes.memoryOverheadFactor", default)
    name = f"spark.{role}.memoryOverheadFactor"
    factor = _factor(properties.get(name, shared), name)
    least = amount(f"spark.{role}.minMemoryOverhead", _LEAST_OVERHEAD)
    overhead = amount(f"spark.{role}.memoryOverhead", max(int(factor * memory), least))
    if role == _EXECUTOR:
        overhead += amount("spark.executor.pyspark.memory") if kind == "Python" else 0
        if properties.get("spark.memory.offHeap.enabled") == "true":
            overhead += amount("spark.memory.offHeap.size", unit="b")
    return memory + overhead


def _mebibytes(text: str, name: str, unit: str) -> int:
    """An amount of memory as Spark writes it. ``unit``: of a number without one. Raises MalformedError."""
    found = re.fullmatch(r"([0-9]{1,18})([bkmgtp]?)b?", text.strip().lower())
    if found is None:
        raise MalformedError(
            f"{name}: {shortened(repr(text))} is not an amount of memory of up to 18 digits, such as 512m or 4g"
        )
    number, given = found.groups()
    return int(number) * _BYTES[given or unit] // _BYTES["m"]


def _factor(text: str, name: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = nan
    if not 0 <= factor <= _LARGEST_FACTOR:
        raise MalformedError(
            f"{name}: {shortened(repr(text))} is not a number from 0 to {_LARGEST_FACTOR}"
        )
    return factor


def _place(name: str, count: tuple[tuple[str, ...], ...]) -> PodSets:
    return PodSets(path=f"spec.{name}", name=name, count=count, labels=LABELS)


SPARKAPPLICATION: Final = SparkApplication(
    Description(
        kind="SparkApplication",
        group="sparkoperator.k8s.io",
        version="v1beta2",
        plural="sparkapplications",
        suspend="spec.suspend",
        podsets=(_place("driver", ()), _place(_EXECUTOR, (("instances",),))),
        # A change of the others also starts the application again, under the same admission.
        fixed=(_CONF, _TYPE, _MODE, _SELECTOR, _FACTOR, "spec.dynamicAllocation"),
        # After SUBMISSION_FAILED, the operator submits it again, or writes FAILED.
        phase=StatusPhase(
            path="status.applicationState.state",
            succeeded=("COMPLETED",),
            failed=("FAILED",),
            suspended=("SUSPENDED",),
        ),
        unsupported=(
            Unsupported(path="spec.dynamicAllocation.enabled", reason=_CHANGES),
            Unsupported(path="spec.batchScheduler", reason=_PLACED),
        ),
        probe=nested(
            "spec",
            {
                "type": "Scala",
                "sparkVersion": "4.0.0",
                "mainApplicationFile": "local:///queuectl-probe.jar",
            },
        ),
        container="spark-kubernetes-driver",
        operator="sparkOperator",
    )
)
