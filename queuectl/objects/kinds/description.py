"""The description of a job kind. The reader, the patches, the admission policies and the rights of a kind follow from it.

Paths are fields of the object with dots between them. ``deploy/chart/kinds.yaml`` has the descriptions for Helm, which writes the
policies and the rights; ``make manifests`` writes that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

_FIELD: Final = "[A-Za-z_][A-Za-z0-9_]*"
_PATH: Final = rf"{_FIELD}(\.{_FIELD})*"
_NAME: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL: Final = "([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*"

# The templates of the chart write these strings into expressions and patches.
Path = Annotated[str, msgspec.Meta(pattern=f"^{_PATH}$")]
PathOrNone = Annotated[str, msgspec.Meta(pattern=f"^({_PATH})?$")]
FieldOrNone = Annotated[str, msgspec.Meta(pattern=f"^({_FIELD})?$")]
Name = Annotated[str, msgspec.Meta(pattern=f"^{_NAME}$", max_length=63)]
NameOrNone = Annotated[str, msgspec.Meta(pattern=f"^({_NAME})?$", max_length=63)]
# Without a dash, after which the names of policies have other words.
Plural = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9]*$", max_length=63)]
Label = Annotated[str, msgspec.Meta(pattern=f"^{_LABEL}$")]
LabelOrNone = Annotated[str, msgspec.Meta(pattern=f"^({_LABEL})?$")]
Kind = Annotated[str, msgspec.Meta(pattern="^[A-Z][A-Za-z0-9]*$", max_length=63)]
Group = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
GroupOrNone = Annotated[
    str, msgspec.Meta(pattern="^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)
]
Version = Annotated[str, msgspec.Meta(pattern="^v[0-9]+((alpha|beta)[0-9]+)?$")]
Text = Annotated[str, msgspec.Meta(pattern=r"^[^'\\\n]*$")]
Key = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$")]


class DescriptionPart(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base: camelCase names, unknown fields are errors."""


class Unsupported(DescriptionPart, frozen=True, kw_only=True):
    """A field that queuectl does not support, and the reason. ``annotation``: the key, if the field is a map of annotations."""

    path: Path
    reason: str
    annotation: str = ""


class Required(DescriptionPart, frozen=True, kw_only=True):
    """A field that must have a value in each job of a queue, and the reason."""

    path: Path
    reason: str


class Only(DescriptionPart, frozen=True, kw_only=True):
    """A field and its default value, with which a place has a podset."""

    path: Path
    value: Text


class Default(DescriptionPart, frozen=True, kw_only=True):
    """The pod template of a job that has none: one container.

    Attributes:
        container: its name.
        image: path of the pod template whose first container has the same image.
        requests, limits: of the container, as quantities.
    """

    container: Name
    image: Path
    requests: dict[str, str]
    limits: dict[str, str]


class PodLabels(DescriptionPart, frozen=True, kw_only=True):
    """The fields of an entry for the labels and the PriorityClass of its pods, of a kind whose pods are not all made of pod templates.

    Admission gates each pod with these labels when it is created.
    """

    path: Path
    priority_class: Path


class PodSets(DescriptionPart, frozen=True, kw_only=True):
    """A place of podsets: a map whose keys are replica types, a list whose entries have names, or a single entry.

    Exactly one of ``types``, ``key`` and ``name`` has a value. The name of a podset is in lower case.

    Attributes:
        path: of the map, the list or the entry.
        types: the keys of a map, in podset order.
        key: the field of an entry of a list with its name.
        name: of the podset of a single entry.
        template: path of the pod template in an entry; "" = the entry is the template.
        labels: where it has the labels of its pods; None = they are in its template, with the gate.
        added_labels: path in an entry of further labels of its pods, which replace those of the template; "" = none.
        count: the number of pods in an entry is the product of these factors. A factor is the least of the values of its
            paths. Its first path has the value 1 if it is absent; the others count only if they exist.
            Without factors, it is 1.
        least: path of a lower limit of the first factor, which the factor also is if its first path is absent; "" = none.
        ranks: if the labels of a pod have the index of a group of pods and an index inside it: paths of the number of indexes in
            a group. The first one with a value counts; without a value, it is 1.
        optional: the place can have no entry.
        only: when the place counts; None = always.
        default: the template that admission writes if the place has none; None = the place has no podset then.
        unsupported: fields of an entry that no job of a queue can have.
    """

    path: Path
    types: tuple[Key, ...] = ()
    key: FieldOrNone = ""
    name: NameOrNone = ""
    template: PathOrNone = "template"
    labels: PodLabels | None = None
    added_labels: PathOrNone = ""
    count: tuple[tuple[Path, ...], ...] = (("replicas",),)
    least: PathOrNone = ""
    ranks: tuple[Path, ...] = ()
    optional: bool = False
    only: Only | None = None
    default: Default | None = None
    unsupported: tuple[Unsupported, ...] = ()


class Conditions(DescriptionPart, frozen=True, kw_only=True):
    """Types of the status conditions. Each holds while its status is True; "" = it has none.

    Attributes:
        succeeded, failed: the job has ended.
        suspended: the controller of the kind stops the pods, or has stopped them. "" = it has no such condition, and a
            suspended job has stopped when its pods have ended.
    """

    succeeded: str = "Succeeded"
    failed: str = "Failed"
    suspended: Text = "Suspended"


class StatusPhase(DescriptionPart, frozen=True, kw_only=True):
    """A field of the status with the state of the job, for kinds without such conditions.

    Attributes:
        path: of the field.
        succeeded, failed: the values of a job that has ended.
        suspended: the values that mean what the condition ``suspended`` means; none = no value means that.
    """

    path: Path
    succeeded: tuple[str, ...]
    failed: tuple[str, ...] = ()
    suspended: tuple[Text, ...] = ()


class Manager(DescriptionPart, frozen=True, kw_only=True):
    """The field that names the controller of one job, and the controller whose jobs queuectl manages.

    It cannot change while the job runs: the controller stops no pods of a job that names another one.
    """

    path: Path
    name: str


class Patches(DescriptionPart, frozen=True, kw_only=True):
    """A list of changes of the pod templates, of a kind without templates: they are in the first child, which exists while the job is suspended.

    Each entry has an owner. That of queuectl has the labels and the gate of the pods, and a label by which admission recognizes the child.

    Attributes:
        path: of the list.
        owner: the field of an entry with the name of its owner.
        changes: path in an entry of the changes. They have the form of the child.
    """

    path: Path
    owner: FieldOrNone
    changes: Path


class ChildKind(DescriptionPart, frozen=True, kw_only=True):
    """A kind of objects that the controller of a job creates, and whose controller creates the pods."""

    kind: Kind
    group: Group
    version: Version
    plural: Plural


class Description(DescriptionPart, frozen=True, kw_only=True):
    """A job kind.

    Attributes:
        kind, group, version, plural: its names in the API.
        suspend: path of the Boolean by which it is suspended.
        podsets: the places of its podsets, in podset order; none if it has ``patches``, or if they are inside the components of an AppWrapper.
        patches: where it has changes of pod templates, if it has no templates itself; None for all others.
        fixed: fields, besides the podsets and that of ``manager``, that cannot change while the job runs.
        fixed_labels: labels of the object that cannot change while the job runs.
        conditions: its status conditions.
        phase: the field of its status that counts instead of conditions.
        index: label of its pods with their index in the podset, in addition to those that queuectl knows for all kinds; "" = none.
        probe: fields that an object must have, besides those of one podset, for the dry runs that check the policies.
        priority_class: path of a PriorityClass of the pods outside the templates; "" = none.
        manager: the field that names another controller for a job.
        unsupported: fields that no job of a queue can have.
        required: Boolean fields that must be true in each job of a queue.
        zero: numbers that are 0 or absent in each new job of a queue. Admission checks it, and a job that is older keeps its number.
        finalizer: that its controller sets on a job, and removes when the job is deleted; "" = none.
        replaces_finished: path of a field with which its controller can replace finished pods; "" = it never does.
        counts_old_pods: while failed pods of an earlier start exist, its controller counts them as failures of the job. A job starts
            again only after its pods are deleted.
        container: name of the first container in templates, for the check of the policies.
        operator: the value of the chart with the account of its controller.
        children: the kinds of objects between the job and its pods. The labels of such a pod name its job.
        keeps_priority_class: the PriorityClass of a template cannot change after the creation of the job.
    """

    kind: Kind
    group: Group
    version: Version
    plural: Plural
    suspend: Path
    podsets: tuple[PodSets, ...]
    patches: Patches | None = None
    fixed: tuple[Path, ...] = ()
    fixed_labels: tuple[Label, ...] = ()
    conditions: Conditions = Conditions()
    phase: StatusPhase | None = None
    index: LabelOrNone = ""
    probe: Mapping[str, Any] = {}
    priority_class: PathOrNone = ""
    manager: Manager | None = None
    unsupported: tuple[Unsupported, ...] = ()
    required: tuple[Required, ...] = ()
    zero: tuple[Required, ...] = ()
    finalizer: LabelOrNone = ""
    replaces_finished: PathOrNone = ""
    counts_old_pods: bool = False
    container: Name = "main"
    operator: str = "trainingOperator"
    children: tuple[ChildKind, ...] = ()
    keeps_priority_class: bool = False


class ServiceAccount(DescriptionPart, frozen=True, kw_only=True):
    """A ServiceAccount."""

    namespace: Name
    service_account: Name


class Declared(Description, frozen=True, kw_only=True):
    """A job kind of the configuration. ``controller``: the account that creates its pods, or objects whose controllers do."""

    controller: ServiceAccount


RAY_CLUSTER: Final = ChildKind(
    kind="RayCluster", group="ray.io", version="v1", plural="rayclusters"
)
JOB_SET: Final = ChildKind(
    kind="JobSet", group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets"
)
PYTORCH_JOB: Final = ChildKind(
    kind="PyTorchJob", group="kubeflow.org", version="v1", plural="pytorchjobs"
)
BATCH_JOB: Final = ChildKind(kind="Job", group="batch", version="v1", plural="jobs")


def labels_pods(description: Description) -> bool:
    """Whether admission gates its pods by their labels."""
    return any(where.labels is not None for where in description.podsets)


def alternatives(names: Sequence[str], no: str, neither: str) -> str:
    """``no`` one name, or ``neither`` of several names."""
    if len(names) == 1:
        return f"{no} {names[0]}"
    return f"{neither} {', '.join(names[:-1])} nor {names[-1]}"


def below(path: str, part: str) -> str:
    """The path of a part of the value at a path; "" = the value itself."""
    return f"{path}.{part}" if part else path


def nested(path: str, leaf: object) -> dict[str, object]:
    """The document with only this value."""
    first, _, rest = path.partition(".")
    return {first: nested(rest, leaf) if rest else leaf}


def merged(documents: Iterable[dict[str, object]]) -> dict[str, object]:
    """The documents as one, maps by key."""
    result: dict[str, object] = {}
    for document in documents:
        for key, value in document.items():
            present = result.get(key)
            both = isinstance(present, dict) and isinstance(value, dict)
            result[key] = merged([present, value]) if both else value  # type: ignore[list-item]
    return result
