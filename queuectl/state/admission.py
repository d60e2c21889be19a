"""The copy of the objects with which the API server changes new pods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from queuectl.domain.admission import AdmissionObjects, NodeSelectors
from queuectl.domain.limits import LimitRange
from queuectl.domain.records import LimitRangeRecord, NamespaceRecord, RuntimeClassRecord
from queuectl.domain.rules import AdmissionPlugin

_Content = TypeVar("_Content")


class AdmissionMirror:
    """Records by key. Their effect on new pods is derived once for any number of changes.

    Attributes:
        limit_ranges: by uid.
        runtime_classes: by name.
        objects: the effect of the records when they were settled last.
        changed: a record has changed since.
    """

    def __init__(self, plugins: frozenset[AdmissionPlugin]) -> None:
        """``plugins``: that are declared to be on."""
        self.limit_ranges: dict[str, LimitRangeRecord] = {}
        self.runtime_classes: dict[str, RuntimeClassRecord] = {}
        self.objects = AdmissionObjects(plugins=plugins)
        self._selectors: dict[str, NodeSelectors] = {}  # by namespace
        self.changed = False

    def put_range(self, record: LimitRangeRecord) -> None:
        """Keep a LimitRange, unless a newer one is known."""
        old = self.limit_ranges.get(record.uid)
        if old is None or record.version > old.version:
            self.limit_ranges[record.uid] = record
            self.changed |= old is None or old.limit_range != record.limit_range

    def put_class(self, record: RuntimeClassRecord) -> None:
        """Keep a RuntimeClass, unless a newer one is known."""
        old = self.runtime_classes.get(record.name)
        if old is None or record.version > old.version:
            self.runtime_classes[record.name] = record
            self.changed |= old is None or old.content != record.content

    def put_namespace(self, record: NamespaceRecord) -> None:
        """Keep the nodes that a namespace selects."""
        self._select(record.name, record.selectors)

    def drop_range(self, uid: str) -> None:
        """Forget a LimitRange."""
        self.changed |= self.limit_ranges.pop(uid, None) is not None

    def drop_class(self, name: str) -> None:
        """Forget a RuntimeClass."""
        self.changed |= self.runtime_classes.pop(name, None) is not None

    def drop_namespace(self, name: str) -> None:
        """Forget a namespace."""
        self._select(name, ())

    def declare(self, plugins: frozenset[AdmissionPlugin]) -> bool:
        """Take over the plugins that are declared to be on. Returns whether others were."""
        differs = plugins != self.objects.plugins
        self.objects = replace(self.objects, plugins=plugins)
        return differs

    def settle(self) -> tuple[set[str], set[str]]:
        """Derive the effect of the records now. Returns the namespaces and the RuntimeClasses whose new pods differ by it."""
        if not self.changed:
            return set(), set()
        self.changed, before = False, self.objects
        ranges = self._ranges()
        classes = {name: record.content for name, record in self.runtime_classes.items()}
        self.objects = AdmissionObjects(ranges, classes, dict(self._selectors), before.plugins)
        namespaces = _differing(before.ranges, ranges)
        namespaces |= _differing(before.selectors, self._selectors)
        return namespaces, _differing(before.runtime_classes, classes)

    def _select(self, namespace: str, selectors: NodeSelectors) -> None:
        if self._selectors.get(namespace, ()) == selectors:
            return
        self.changed = True
        if selectors:
            self._selectors[namespace] = selectors
        else:
            del self._selectors[namespace]

    def _ranges(self) -> Mapping[str, tuple[LimitRange, ...]]:
        """By namespace, in the order of their names."""
        found: dict[str, list[LimitRange]] = defaultdict(list)
        for record in self.limit_ranges.values():
            found[record.namespace].append(record.limit_range)
        return {
            namespace: tuple(sorted(ranges, key=lambda one: one.name))
            for namespace, ranges in found.items()
        }


def _differing(before: Mapping[str, _Content], now: Mapping[str, _Content]) -> set[str]:
    return {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
