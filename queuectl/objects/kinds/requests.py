"""The requests of jobs. Those of equal jobs, such as the runs of one user, are read once.

The request of a job depends on its spec, on the counts in its status, and on a few annotations. The other fields differ in each job: its
identity, its conditions with their times, and the labels that its controller and queuectl write into its templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from msgspec.structs import replace as replace_fields

from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields, StatedKeys, bounded
from queuectl.objects.kubernetes.cached import CachedReader
from queuectl.objects.kubernetes.templates import sorted_pairs
from queuectl.objects.kubernetes.wire import Meta, Template, TemplateMeta
from queuectl.objects.names import is_label_key, is_label_value

_ANNOTATIONS: Final = frozenset(
    prefix + suffix
    for prefix in (keys.PREFIX, keys.KUEUE_PREFIX)
    for suffix in (keys.MIN_PARALLELISM, keys.COMPLETIONS_FOLLOW)
) | {keys.ORIGINAL_PARALLELISM, keys.BASE_COUNT}


class StatedModes(NamedTuple):
    """The part of :class:`~queuectl.objects.kinds.common.StatedKeys` on which a request depends."""

    kueue: bool
    array: bool
    elastic: bool


class CachedRequests:
    """The requests of the jobs of one kind."""

    def __init__(self, ask: Callable[[Any, StatedModes], SpecFields]) -> None:
        """Make an empty cache.

        Args:
            ask: parses the podsets; can raise RequestError. Of the metadata, it may read :data:`_ANNOTATIONS`, and which maps
                exist. Of the labels of a template, it may read the attempt. It may not read conditions.
        """
        self._ask = ask
        self._cached = CachedReader[Any, SpecFields | None](self._valid)

    def read(
        self, document: Any, templates: Iterable[tuple[str, Template]], stated: StatedKeys
    ) -> SpecFields:
        """The request of a job. Raises RequestError.

        Args:
            document: the decoded job.
            templates: those with labels that are not part of the request, by podset.
            stated: the labels and annotations of the job.
        """
        modes = StatedModes(stated.kueue, stated.array, stated.elastic)
        metas = {name: one.metadata for name, one in templates if one.metadata is not None}
        labels = {name: meta.labels for name, meta in metas.items() if meta.labels}
        fields = self._without_labels(document, metas, modes)
        if fields is None or not all(map(_are_valid, labels.values())):
            return bounded(self._ask(document, modes))  # the error names its field
        if not labels:
            return fields
        podsets = (
            replace(one, labels=sorted_pairs(labels[one.name])) if one.name in labels else one
            for one in fields.podsets
        )
        return replace(fields, podsets=tuple(podsets))

    def _without_labels(
        self, document: Any, metas: Mapping[str, TemplateMeta], modes: StatedModes
    ) -> SpecFields | None:
        before = {name: meta.labels for name, meta in metas.items()}
        try:
            for meta in metas.values():
                meta.labels = _kept(meta.labels, _TEMPLATE_LABELS)
            return self._cached(_request_of(document), modes)
        finally:
            for name, labels in before.items():
                metas[name].labels = labels

    def _valid(self, document: Any, modes: StatedModes) -> SpecFields | None:
        """The request; None if it has an error."""
        try:
            return bounded(self._ask(document, modes))
        except RequestError:
            return None


_TEMPLATE_LABELS: Final = frozenset({keys.ATTEMPT_LABEL})


def _request_of(document: Any) -> Any:
    """The fields of a job on which its request depends."""
    meta, status = document.metadata, getattr(document, "status", None)
    kept = Meta(
        labels=None if meta.labels is None else {},
        annotations=_kept(meta.annotations, _ANNOTATIONS),
    )
    if status is None or getattr(status, "conditions", None) is None:
        return replace_fields(document, metadata=kept)
    return replace_fields(document, metadata=kept, status=replace_fields(status, conditions=None))


def _kept(mapping: Mapping[str, str] | None, names: frozenset[str]) -> dict[str, str] | None:
    if mapping is None:
        return None
    return {key: value for key, value in mapping.items() if key in names}


def _are_valid(labels: Mapping[str, str]) -> bool:
    return all(is_label_key(key) and is_label_value(value) for key, value in labels.items())
