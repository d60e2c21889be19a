"""Elastic jobs of described kinds: the pods of one podset above its least number are gangs of their own, and are added one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Protocol

from queuectl.domain.arrays import LARGEST
from queuectl.domain.jobs import ArrayStatus
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields, base_count
from queuectl.objects.kinds.places import PodSetPlace
from queuectl.objects.kubernetes.pods import read_count

KEY: Final = f"metadata.annotations: {keys.ELASTIC_JOB}"


class Growing(Protocol):
    """A kind whose jobs can be elastic."""

    def can_grow(self, document: Any, entry: PodSetPlace) -> bool:
        """Whether the pods of this podset can be added and evicted one by one. Raises RequestError if those of no podset can."""
        ...

    def check_growth(self, document: Any, entry: PodSetPlace, base: int) -> None:
        """Raise RequestError if the job could not bear that. ``base``: the number of pods of this podset in its gang."""
        ...

    def stated_least(self, document: Any, entry: PodSetPlace) -> int | None:
        """The least number of its pods in the fields of the kind; None without one."""
        ...


def elastic_fields(
    kind: Growing,
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
            f"{KEY}: no podset that can grow has a least number of pods{where}", unsupported=True
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
                f"{KEY}: the pods of {podset.name} start one by one above its least number: remove the topology of slices",
                unsupported=True,
            )
        yield replace(podset, count=array.base)


def _least(kind: Growing, document: Any, entry: PodSetPlace, count: int) -> int | None:
    """The least number of pods of a podset, from the annotation of its template or else its own field; None without one."""
    meta = entry.template.metadata if entry.template is not None else None
    text = keys.either(meta.annotations if meta else None, keys.MIN_COUNT, kueue=False)
    stated = kind.stated_least(document, entry)
    if text is None:
        return min(stated, count) if stated else None
    key = f"{entry.template_path}.metadata.annotations: {keys.PREFIX}{keys.MIN_COUNT}"
    least = read_count(text)
    if least is None or not 1 <= least <= count:
        raise RequestError(f"{key}: {text!r} is not a number from 1 to {count}")
    if stated is not None and least < stated:
        raise RequestError(
            f"{key}: {text!r} is less than {stated}, the least number of {entry.path}"
        )
    return least
