"""The rules of the API server for pods, apart from those for requests and claims.

The API server checks a pod when it is created, and the template of a Job, a Deployment or a StatefulSet. The templates of other kinds
are not checked before the start: their pods would be refused while the gang holds its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from queuectl.domain.fleet import Effect
from queuectl.objects.errors import MalformedError
from queuectl.objects.kubernetes.wire import TemplateSpec, WireToleration
from queuectl.objects.names import is_dns_label, is_label_key, is_label_value

_RESTARTS: Final = ("Always", "OnFailure", "Never")
_SPREADS: Final = ("DoNotSchedule", "ScheduleAnyway")
_TOLERATES: Final = ("Equal", "Exists", "Lt", "Gt")


def check_pod(spec: TemplateSpec) -> None:
    """Raise MalformedError, naming the field and the value, if the API server refuses the pods of a template."""
    for field, why in _wrong(spec):
        raise MalformedError(f"{field}: {why}")


def check_labels(labels: Mapping[str, str] | None) -> None:
    """Raise MalformedError if the API server refuses a key or a value."""
    for field, why in _labels(labels):
        raise MalformedError(f"{field.removeprefix('.')}: {why}")


def _wrong(spec: TemplateSpec) -> Iterator[tuple[str, str]]:
    """Field and reason of each error."""
    yield from _containers(spec)
    yield from _enumerated("restartPolicy", spec.restart_policy, _RESTARTS)
    for key, why in _labels(spec.node_selector):
        yield f"nodeSelector{key}", why
    for i, toleration in enumerate(spec.tolerations or ()):
        for field, why in _toleration(toleration):
            yield f"tolerations[{i}].{field}", why
    for i, spread in enumerate(spec.topology_spread_constraints or ()):
        field = f"topologySpreadConstraints[{i}].whenUnsatisfiable"
        yield from _enumerated(field, spread.when_unsatisfiable, _SPREADS)
    node = spec.affinity.node_affinity if spec.affinity else None
    if node is not None and node.required is not None and not node.required.node_selector_terms:
        rule = "requiredDuringSchedulingIgnoredDuringExecution"
        yield f"affinity.nodeAffinity.{rule}.nodeSelectorTerms", "needs at least one"


def _containers(spec: TemplateSpec) -> Iterator[tuple[str, str]]:
    places: dict[str, str] = {}
    for place, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    ):
        for i, one in enumerate(containers or ()):
            at = f"{place}[{i}]"
            yield from _enumerated(f"{at}.restartPolicy", one.restart_policy, _RESTARTS)
            if not one.name:  # the controllers of some kinds add it
                continue
            if not is_dns_label(one.name):
                yield f"{at}.name", f"{one.name!r} is not a name of at most 63 of a-z, 0-9 and -"
            elif one.name in places:
                yield f"{at}.name", f"{one.name!r} is also the name of {places[one.name]}"
            places[one.name] = at


def _labels(labels: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    for key, value in (labels or {}).items():
        if not is_label_key(key):
            yield f".{key}", "is not the key of a label"
        elif not is_label_value(value):
            yield f".{key}", f"{value!r} is not the value of a label"


def _toleration(toleration: WireToleration) -> Iterator[tuple[str, str]]:
    operator, taint_value = toleration.operator or "Equal", toleration.value or ""
    yield from _enumerated("operator", operator, _TOLERATES)
    yield from _enumerated("effect", toleration.effect or None, list(Effect))
    if toleration.key and not is_label_key(toleration.key):
        yield "key", f"{toleration.key!r} is not the key of a taint"
    if not toleration.key and operator != "Exists":
        yield "operator", "must be Exists without a key"
    if operator == "Exists" and taint_value:
        yield "value", f"{taint_value!r}: Exists takes none"
    if operator in ("Lt", "Gt") and not re.fullmatch("0|-?[1-9][0-9]{0,18}", taint_value):
        yield "value", f"{operator} needs a whole number"
    if not is_label_value(taint_value):
        yield "value", f"{taint_value!r} is not the value of a taint"
    if toleration.toleration_seconds is not None and toleration.effect != Effect.NO_EXECUTE:
        yield "effect", "must be NoExecute with tolerationSeconds"


def _enumerated(field: str, word: str | None, words: Iterable[str]) -> Iterator[tuple[str, str]]:
    if word is not None and word not in words:
        yield field, f"{word!r} is not one of {', '.join(words)}"
