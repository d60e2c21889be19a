"""A job kind that follows from its :class:`~queuectl.objects.kinds.description.Description`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from queuectl.domain.records import JobRecord, Outcome
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import (
    NO_COUNTS,
    SpecFields,
    attempt_frame,
    holds,
    notice,
    patch_frame,
    read_job,
    relabelled,
    start_frame,
    starting_template,
    template_patch,
    withdraws,
)
from queuectl.objects.kinds.description import Description, alternatives, merged, nested
from queuectl.objects.kubernetes.templates import check_count, check_groups, read_podset
from queuectl.objects.kubernetes.wire import Condition, Meta, Template

_CONDITIONS: Final = "status.conditions"


class DescribedKind:
    """See :class:`queuectl.objects.kinds.JobKind`."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.kind = description.kind
        self.group = description.group
        self.version = description.version
        self.plural = description.plural
        self.container = description.container
        self.wire = _wire(description)
        self._names = description.podsets.names
        self._types = {podset: replica for replica, podset in self._names.items()}

    def read(self, document: Any, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        one = self.description
        conditions: list[Condition] = field(document, _CONDITIONS) or []
        ended = one.conditions
        outcome = Outcome.FAILED if holds(conditions, ended.failed) else None
        return read_job(
            self.kind,
            document.metadata,
            [template for _, template, _ in self._entries(document)],
            suspended=bool(field(document, one.suspend)),
            drained=holds(conditions, ended.suspended),
            outcome=Outcome.SUCCEEDED if holds(conditions, ended.succeeded) else outcome,
            own_priority_class=field(document, one.priority_class) if one.priority_class else None,
            ask=lambda: self._ask(document, kueue),
            kueue=kueue,
            strict=strict,
        )

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        where = self.description.podsets
        entry = merged([nested(where.template, template), nested(where.count, 1)])
        spec: Mapping[str, Any] = _below(nested(where.path, {where.types[0]: entry}), "spec")
        return spec

    def is_suspended(self, document: Mapping[str, Any]) -> bool:
        return bool(_below(document, self.description.suspend))

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        where = self.description.podsets
        entries = _below(document, where.path) or {}
        return [_below(entry, where.template) for entry in entries.values()]

    def complete(self, podsets: list[PodSet]) -> list[PodSet]:
        """The podsets, with what the controller of the kind adds to their pods."""
        return podsets

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
        templates = self._patched(record, lambda name: _starting(record, attempt, name))
        return merged([patch, nested(self.description.suspend, False), templates])

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        patch = [attempt_frame(record, status), nested(self.description.suspend, True)]
        if withdraws(record, attempt):
            patch.append(self._patched(record, lambda name: template_patch(record, attempt, name)))
        return merged(patch)

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        return patch_frame(record, status)

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        return relabelled(record, status, queue)

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        return notice(record, status, deadline)

    def pod_selector(self, name: str) -> str:
        return f"{self.description.selector}={name}"

    def _entries(self, document: Any) -> Iterator[tuple[str, Template | None, int | None]]:
        """Key, template and count of each podset, in podset order."""
        where = self.description.podsets
        entries = field(document, where.path) or {}
        for replica in self._names:
            if replica in entries:
                entry = entries[replica]
                yield replica, field(entry, where.template), field(entry, where.count)

    def _patched(
        self, record: JobRecord, template: Callable[[str], dict[str, Any]]
    ) -> dict[str, Any]:
        where = self.description.podsets
        names = [podset.name for podset in record.podsets]
        entries = {
            self._types[name]: nested(where.template, template(name))
            for name in names
            if name in self._types
        }
        return nested(where.path, entries)

    def _ask(self, document: Any, kueue: bool) -> SpecFields:
        where = self.description.podsets
        present = field(document, where.path) or {}
        for key in present:
            if key not in self._names:
                known = alternatives(where.types, "is not", "is neither")
                raise RequestError(f"{where.path}: {key!r} {known}")
        if not present:
            raise RequestError(
                f"{where.path}: {alternatives(where.types, 'has no', 'has neither')}"
            )
        self._refuse_unsupported(document)
        podsets = []
        for key, template, given in self._entries(document):
            path = f"{where.path}.{key}"
            count = check_count(1 if given is None else given, f"{path}.{where.count}")
            place = f"{path}.{where.template}"
            podsets.append(read_podset(self._names[key], count, template, place, kueue=kueue))
        check_groups(podsets)
        replaces = self.description.replaces_finished
        followed = bool(replaces) and field(document, replaces) is not None
        return SpecFields(tuple(self.complete(podsets)), followed=followed)

    def _refuse_unsupported(self, document: Any) -> None:
        manager = self.description.manager
        if manager is not None and (name := field(document, manager.path)) not in (
            None,
            manager.name,
        ):
            raise RequestError(
                f"{manager.path}: {name!r} runs this job elsewhere", unsupported=True
            )
        for one in self.description.unsupported:
            if field(document, one.path):
                raise RequestError(f"{one.path}: {one.reason}", unsupported=True)


def _starting(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """With the gate and the PriorityClass that the admission policy would have put there, if it has not."""
    template = starting_template(record, attempt, podset)
    if "spec" in template:
        template["spec"]["priorityClassName"] = keys.POD_PRIORITY_CLASS
    return template


def _below(document: Mapping[str, Any], path: str) -> Any:
    """The value in a document; None if it is absent."""
    value: Any = document
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


# ---- the struct of a kind


def field(document: Any, path: str) -> Any:
    """The value in a struct of :func:`_wire`; None if it is absent."""
    value = document
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return value


def _wire(one: Description) -> type[msgspec.Struct]:
    """A struct with the fields that the description names."""
    where = one.podsets
    of_entry = [nested(where.template, Template | None), nested(where.count, int | None)]
    entry = _struct("Entry", merged(of_entry))
    leaves: dict[str, object] = {one.replaces_finished: Any} if one.replaces_finished else {}
    leaves |= {path.path: Any for path in one.unsupported}
    leaves |= {
        one.suspend: bool | None,
        where.path: dict[str, entry | None] | None,  # type: ignore[valid-type]
        _CONDITIONS: list[Condition] | None,
    }
    if one.priority_class:
        leaves[one.priority_class] = str | None
    if one.manager is not None:
        leaves[one.manager.path] = str | None
    tree = merged(nested(path, leaf) for path, leaf in leaves.items())
    return _struct(one.kind, {"metadata": Meta, **tree})


def _struct(name: str, tree: Mapping[str, object]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            fields.append((key, _struct(key.title(), value) | None, None))
        elif value is Meta:
            fields.append((key, Meta, msgspec.field(default_factory=Meta)))
        else:
            fields.append((key, value, None))
    return msgspec.defstruct(name, fields, gc=False)
