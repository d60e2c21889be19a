"""A job kind that follows from its :class:`~queuectl.objects.kinds.description.Description`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeAlias

from queuectl.domain.arrays import LARGEST
from queuectl.domain.jobs import ArrayStatus, JobOutcome, JobRecord
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import (
    NO_COUNTS,
    SpecFields,
    StatedKeys,
    attempt_frame,
    base_count,
    holds,
    notice,
    patch_frame,
    read_job,
    relabeled,
    start_frame,
    starting_template,
    template_patch,
    withdraws,
)
from queuectl.objects.kinds.description import (
    Description,
    PodSets,
    below,
    labels_pods,
    merged,
    nested,
)
from queuectl.objects.kinds.places import (
    CONDITIONS,
    PodSetPlace,
    check,
    entries,
    field,
    refuse,
    wire,
)
from queuectl.objects.kinds.requests import CachedRequests, StatedModes
from queuectl.objects.kubernetes.pods import read_count
from queuectl.objects.kubernetes.templates import check_groups, read_podset
from queuectl.objects.kubernetes.wire import Condition, Meta, Template

# ---- Patches
#
# A JSON merge patch replaces a list as a whole. A patch with :class:`ListPatch` is therefore sent as a JSON patch. Both have uid and
# resourceVersion in their metadata, and apply only to that version: the list that the patch addresses by index is the list that was read.

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

_TemplateOf: TypeAlias = Callable[[str], dict[str, Any]]
"""The patch of the pod template of a podset, by the name of the podset."""


class ListPatch(dict[str, Any]):
    """Changes of entries of a list, by index."""


class Absent(dict[str, Any]):
    """A map that the object does not have."""


def encoded(patch: Mapping[str, Any]) -> tuple[Any, str]:
    """The body of a patch, and its media type."""
    if not _has_items(patch):
        return patch, MERGE_PATCH
    return list(_operations(patch, "")), JSON_PATCH


def escaped(key: str) -> str:
    """A key as part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _has_items(patch: Mapping[str, Any]) -> bool:
    return isinstance(patch, ListPatch) or any(
        _has_items(value) for value in patch.values() if isinstance(value, Mapping)
    )


def _operations(patch: Mapping[str, Any], at: str) -> Iterator[dict[str, Any]]:
    for key, value in patch.items():
        path = f"{at}/{escaped(key)}"
        if value is None:
            yield {"op": "remove", "path": path}
        elif isinstance(value, Mapping) and not isinstance(value, Absent):
            yield from _operations(value, path)
        else:
            yield {"op": "add", "path": path, "value": value}


# ---- The kind

KEY: Final = f"metadata.annotations: {keys.ELASTIC_JOB}"


class DescribedKind:
    """See :class:`queuectl.objects.kinds.JobKind`."""

    more: ClassVar[Mapping[str, object]] = {}
    """Other fields that a subclass reads: the types by path."""
    more_of_entries: ClassVar[Mapping[str, object]] = {}
    """Other fields in an entry of a podset that a subclass reads."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.kind = description.kind
        self.group = description.group
        self.version = description.version
        self.plural = description.plural
        self.container = description.container
        self.refers = description.patches is not None
        self.wire = wire(description, self.more, self.more_of_entries)
        self._requests = CachedRequests(self._ask)
        self._list = next((one.path for one in description.podsets if one.key), None)

    def read(self, document: Any, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        one, written = self.description, self.written(document)
        succeeded, failed, drained = self.status(document)
        outcome = JobOutcome.FAILED if failed else None
        return read_job(
            self.kind,
            document.metadata,
            [template for _, template in written],
            suspended=bool(field(document, one.suspend)),
            drained=drained,
            outcome=JobOutcome.SUCCEEDED if succeeded else outcome,
            own_priority_class=field(document, one.priority_class) if one.priority_class else None,
            ask=lambda stated: self._request(document, written, stated),
            kueue=kueue,
            strict=strict,
        )

    def status(self, document: Any) -> tuple[bool, bool, bool]:
        """Whether it has succeeded, whether it has failed, and whether its controller stops its pods or has stopped them."""
        one = self.description
        if one.phase is not None:
            values, value = one.phase, field(document, one.phase.path)
            drained = not values.suspended or value in values.suspended
            return value in values.succeeded, value in values.failed, drained
        conditions: list[Condition] = field(document, CONDITIONS) or []
        types = one.conditions
        drained = not types.suspended or holds(conditions, types.suspended)
        return holds(conditions, types.succeeded), holds(conditions, types.failed), drained

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        documents = [dict(self.description.probe)]
        documents += [nested(required.path, True) for required in self.description.required]
        for where in self.description.podsets:
            if not where.template:
                documents.append(nested(where.path, template))
                continue
            counts = [nested(path, 1) for factor in where.count for path in factor]
            entry = merged([nested(where.template, template), *counts])
            if where.types:
                entry = {where.types[0]: entry}
            named = [entry | {where.key: "main"}] if where.key else entry
            documents.append(nested(where.path, named))
        spec: Mapping[str, Any] = field(merged(documents), "spec")
        return spec

    def is_suspended(self, document: Mapping[str, Any]) -> bool:
        return bool(field(document, self.description.suspend))

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        found: list[Any] = [one.template for one in entries(self.description.podsets, document)]
        return [template for template in found if template is not None]

    def written(self, document: Any) -> list[tuple[str, Template | None]]:
        """The templates in which queuectl writes, in podset order, with the podset; "" for one that is a copy."""
        return [(entry.podset, entry.template) for entry in self._asking(document)]

    def template_of(self, document: Any, entry: PodSetPlace) -> Template | None:  # noqa: ARG002 - for subclasses
        """The pod template of an entry. Raises RequestError."""
        return entry.template

    def complete(self, podsets: list[PodSet]) -> list[PodSet]:
        """The podsets, with what the controller of the kind adds to their pods."""
        return podsets

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:  # noqa: ARG002 - for subclasses
        """The request, with what only this kind has."""
        return fields

    def can_grow(self, document: Any, entry: PodSetPlace) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the pods of this podset can be added and evicted one by one. Raises RequestError if those of no podset can."""
        raise RequestError(f"{KEY}: a {self.kind} cannot be elastic", unsupported=True)

    def check_growth(self, document: Any, entry: PodSetPlace, base: int) -> None:
        """Raise RequestError if the job could not bear that. ``base``: the number of pods of this podset in its gang."""

    def stated_least(self, document: Any, entry: PodSetPlace) -> int | None:  # noqa: ARG002 - for subclasses
        """The minimum number of its pods in the fields of the kind; None without one."""
        return None

    def start_patch(
        self,
        record: JobRecord,
        attempt: int,
        status: str,
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> dict[str, Any]:
        assert not counts, f"no podset of a {self.kind} may start with fewer pods"
        patch = start_frame(record, status)
        if record.ungated and record.pod_priority_class is not None:
            own = {keys.ORIGINAL_PRIORITY_CLASS: record.pod_priority_class}
            patch["metadata"]["annotations"].update(own)
        templates = self._patched(record, self._starting(record, attempt))
        return self._addressed(record, patch, nested(self.description.suspend, False), templates)

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        patch = [attempt_frame(record, status), nested(self.description.suspend, True)]
        if withdraws(record, attempt):
            patch.append(self._patched(record, self._marked(record, attempt)))
        return self._addressed(record, *patch)

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        return patch_frame(record, status)

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        return relabeled(record, status, queue)

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        return notice(record, status, deadline)

    def _asking(self, document: Any) -> Iterator[PodSetPlace]:
        """The entries with pods. An entry of a list can have none."""
        for entry in entries(self.description.podsets, document):
            if entry.index is None or not entry.is_empty:
                yield entry

    def _patched(self, record: JobRecord, template: _TemplateOf) -> dict[str, Any]:
        names = {podset.name for podset in record.podsets}
        items, found = dict(record.list_indexes), []
        for where in self.description.podsets:
            places = {where.name: where.path} if where.name else {}
            places |= {key.lower(): f"{where.path}.{key}" for key in where.types}
            places |= {name: f"{where.path}.{n}" for name, n in items.items()} if where.key else {}
            found += [
                nested(*_written_at(where, place, template(name)))
                for name, place in places.items()
                if name in names
            ]
        return merged(found)

    def _marked(self, record: JobRecord, attempt: int) -> _TemplateOf:
        """Templates with the labels of their pods."""
        own = self._own_labels(record)
        return lambda podset: merged([template_patch(record, attempt, podset), own(podset)])

    def _starting(self, record: JobRecord, attempt: int) -> _TemplateOf:
        """Also with the gate and the PriorityClass that the admission policy would have put there, if it has not."""
        own, ungated = self._own_labels(record), dict(record.ungated)

        def starting(podset: str) -> dict[str, Any]:
            template = starting_template(record, attempt, podset, ungated.get(podset))
            if "spec" in template and not self.description.keeps_priority_class:
                template["spec"]["priorityClassName"] = keys.POD_PRIORITY_CLASS
            return merged([template, own(podset)])

        return starting

    def _own_labels(self, record: JobRecord) -> _TemplateOf:
        """Templates with the labels that only this kind needs."""
        named = self.description.children or labels_pods(self.description)
        kind = {keys.KIND_LABEL: self.kind} if named else {}
        ranks, first_ranks = dict(record.ranks), dict(record.first_ranks)

        def own(podset: str) -> dict[str, Any]:
            labels = dict(kind)
            if podset in ranks:
                labels[keys.RANKS_LABEL] = str(ranks[podset])
            if podset in first_ranks:
                labels[keys.FIRST_RANK_LABEL] = str(first_ranks[podset])
            return {"metadata": {"labels": labels}}

        return own

    def _addressed(self, record: JobRecord, *parts: dict[str, Any]) -> dict[str, Any]:
        """The parts of a patch as one. Of a list, the keys are indexes."""
        patch = merged(parts)
        if self._list is not None:
            patch = _replaced(patch, self._list.split("."), ListPatch)
            for pointer in record.missing:
                patch = _replaced(patch, pointer.split("/")[1:], Absent)
        return patch

    def _request(
        self, document: Any, written: Iterable[tuple[str, Template | None]], stated: StatedKeys
    ) -> SpecFields:
        templates = [(name, one) for name, one in written if name and one is not None]
        request = self._requests.read(document, templates, stated)
        self._check_fields(document)  # which can be in the metadata
        return request

    def _ask(self, document: Any, stated: StatedModes) -> SpecFields:
        description = self.description
        check(description.podsets, document)
        self._check_fields(document)
        if description.patches is not None:
            return self.read_fields(document, SpecFields())
        podsets, ranks = [], []
        asking = [(entry, entry.count()) for entry in self._asking(document)]
        for entry, count in asking:
            podsets.append(
                read_podset(
                    entry.podset,
                    count,
                    self.template_of(document, entry),
                    entry.template_path,
                    kueue=stated.kueue,
                )
            )
            if (size := entry.group()) is not None:
                ranks.append((entry.podset, size))
        check_groups(podsets)
        if not podsets:
            raise RequestError(f"{description.podsets[-1].path}: no entry has pods")
        replaces = description.replaces_finished
        followed = bool(replaces) and field(document, replaces) is not None
        fields = SpecFields(
            tuple(self.complete(podsets)),
            followed=followed,
            ranks=tuple(ranks),
            list_indexes=tuple((e.podset, e.index) for e, _ in asking if e.index is not None),
            missing=tuple(self._missing(document, asking)) if self._list is not None else (),
            elastic=stated.elastic,
            counts_old_pods=description.counts_old_pods,
        )
        return _elastic_fields(
            self,
            document,
            asking,
            self.read_fields(document, fields),
            suspended=bool(field(document, description.suspend)),
        )

    def _check_fields(self, document: Any) -> None:
        """Check the fields outside the podsets. Raises RequestError."""
        one = self.description
        manager = one.manager
        name = None if manager is None else field(document, manager.path)
        if manager is not None and name not in (None, manager.name):
            raise RequestError(
                f"{manager.path}: {name!r} runs this job elsewhere", unsupported=True
            )
        refuse(one.unsupported, document)
        for required in one.required:
            if not field(document, required.path):
                raise RequestError(f"{required.path}: {required.reason}", unsupported=True)

    def _missing(self, document: Any, asking: Iterable[tuple[PodSetPlace, int]]) -> Iterator[str]:
        """Maps that patches write to and the object does not have."""
        meta: Meta = document.metadata
        yield from (
            f"/metadata/{name}" for name in ("annotations", "labels") if getattr(meta, name) is None
        )
        for entry, _ in asking:
            place = entry.path.replace("[", ".").replace("]", "")
            pointer = "/" + below(place, entry.where.template).replace(".", "/")
            template = entry.template
            if template is None and not entry.where.template:
                yield pointer
            elif template is None or template.metadata is None:
                yield f"{pointer}/metadata"
            elif template.metadata.labels is None:
                yield f"{pointer}/metadata/labels"


def _written_at(where: PodSets, entry: str, template: dict[str, Any]) -> tuple[str, object]:
    """Where the changes of a pod template are written, and what of them."""
    if where.labels is None:
        return below(entry, where.template), template
    return below(entry, where.labels.path), template["metadata"]["labels"]


def _replaced(
    patch: dict[str, Any], path: Sequence[str], by: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The patch with another type of map at the path, if it has one there."""
    if not path:
        return by(patch)
    inner = patch.get(path[0])
    if not isinstance(inner, dict):
        return patch
    changed = type(patch)(patch)
    changed[path[0]] = _replaced(inner, path[1:], by)
    return changed


# ---- Elastic jobs: the pods of one podset above its minimum are separate gangs, and are added one by one


def _elastic_fields(
    kind: DescribedKind,
    document: Any,
    asking: Iterable[tuple[PodSetPlace, int]],
    fields: SpecFields,
    *,
    suspended: bool,
) -> SpecFields:
    """The request of a job, and that of its gang if the job is elastic.

    Args:
        kind: of the job.
        document: the job.
        asking: its podsets, with all their pods.
        fields: the request without the annotation that makes it elastic.
        suspended: whether it is suspended. While it runs, its gang has the number of pods with which it started.

    Raises:
        RequestError: it cannot be elastic.
    """
    if not fields.elastic:
        return fields
    noted = base_count(document.metadata)
    started = None if suspended else noted
    growing = [(e, count) for e, count in asking if kind.can_grow(document, e)]
    known = [(e, count, _least(kind, document, e, count)) for e, count in growing]
    stated = [(e, count, least) for e, count, least in known if least is not None]
    found = [one for one in stated if one[2] < one[1]] or stated[:1]
    if not found:
        names = " or ".join(f"{entry.template_path}.metadata.annotations" for entry, _ in growing)
        where = f": set {keys.PREFIX}{keys.MIN_COUNT} in {names}" if names else ""
        raise RequestError(
            f"{KEY}: no podset that can grow has a minimum number of pods{where}", unsupported=True
        )
    if len(found) > 1:
        names = " and ".join(entry.path for entry, *_ in found)
        raise RequestError(f"{KEY}: only one podset can grow, not {names}", unsupported=True)
    [(entry, count, least)] = found
    if count > LARGEST:
        raise RequestError(
            f"{KEY}: {entry.path}: {count} is more than {LARGEST} pods", unsupported=True
        )
    base = min(started or least, count)
    kind.check_growth(document, entry, base)
    array = ArrayStatus(count, count, base=base, podset=entry.podset, noted=noted is not None)
    return replace(fields, podsets=tuple(_of_gang(fields.podsets, array)), array=array)


def _of_gang(podsets: Iterable[PodSet], array: ArrayStatus) -> Iterator[PodSet]:
    for podset in podsets:
        if podset.name != array.podset:
            yield podset
            continue
        if podset.topology is not None and podset.topology.slices:
            raise RequestError(
                f"{KEY}: the pods of {podset.name} start one by one above its minimum: remove the topology of slices",
                unsupported=True,
            )
        yield replace(podset, count=array.base)


def _least(kind: DescribedKind, document: Any, entry: PodSetPlace, count: int) -> int | None:
    """The minimum number of pods of a podset, from the annotation of its template or else its own field; None without one."""
    meta = entry.template.metadata if entry.template is not None else None
    text = keys.either(meta.annotations if meta else None, keys.MIN_COUNT, kueue=False)
    stated = kind.stated_least(document, entry)
    if stated is not None and stated < 0:
        raise RequestError(f"{entry.path}: minReplicas: {stated} is less than 0")
    if text is None:
        return min(stated, count) if stated else None
    key = f"{entry.template_path}.metadata.annotations: {keys.PREFIX}{keys.MIN_COUNT}"
    least = read_count(text)
    if least is None or not 1 <= least <= count:
        raise RequestError(f"{key}: {text!r} is not a number from 1 to {count}")
    if stated is not None and least < stated:
        raise RequestError(f"{key}: {text!r} is less than {stated}, the minimum of {entry.path}")
    return least
