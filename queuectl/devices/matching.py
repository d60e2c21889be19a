"""The devices of a node that the class and the selectors of a request select.

kube-scheduler evaluates selectors on the devices of a node one after the other, until it has enough. An error of one evaluation
fails the pod. A request can therefore use a node only if no device of the node gives an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Final

from queuectl.devices.numa_devices import NUMA_CLASSES, NUMA_DRIVER, SERVES, serves
from queuectl.devices.selector_limits import (
    MOST_BYTES_OF_PLAN,
    MOST_OPERATIONS_OF_PLAN,
    MOST_SELECTORS_OF_PLAN,
    PARTS,
    Selectors,
)
from queuectl.devices.selectors import MOST_OPERATIONS, outcome, selector
from queuectl.domain.bounded import BoundedCache
from queuectl.domain.devices import DeviceClass, DeviceKind, DeviceOption, NodeDevices
from queuectl.domain.errors import BadInput, QueuectlError
from queuectl.domain.words import shortened

_MOST_KINDS: Final = 1 << 18
_BEYOND: Final = (
    "the different selectors of all requests of its namespace are more than a plan evaluates, and those of this request are among the most expensive ones. "
    f"A namespace can have at most {MOST_SELECTORS_OF_PLAN // PARTS} selectors with {MOST_BYTES_OF_PLAN // PARTS} bytes and {MOST_OPERATIONS_OF_PLAN // PARTS} operations for "
    f"one device, and less if more than {PARTS} namespaces need so many"
)


class NotMatched(QueuectlError):
    """No device of the node can be used for the request; the message states why."""


class Matching:
    """Which devices an option selects. Results are kept per class, selectors and kind of device: see :mod:`queuectl.devices.table`."""

    def __init__(self, classes: Mapping[str, DeviceClass]) -> None:
        """Over the DeviceClasses of the cluster, by name."""
        self.classes = classes
        self._known = BoundedCache[
            tuple[str, tuple[str, ...]], dict[int, tuple[DeviceKind, bool | str]]
        ]()
        self._attributes = BoundedCache[tuple[str, tuple[str, ...]], tuple[frozenset[str] | None]]()
        self._beyond: frozenset[Selectors] = frozenset()

    def without(self, beyond: frozenset[Selectors]) -> Matching:
        """The same for a plan that refuses these selectors."""
        limited = copy(self)  # with the same results
        limited._beyond = beyond
        return limited

    def __call__(self, option: DeviceOption, node: NodeDevices) -> tuple[int, ...]:
        """The positions of the selected devices. Taints and capacity do not count.

        Raises:
            NotMatched: a selector cannot be evaluated, or kube-scheduler can allocate a device that is left out.
        """
        if option.selectors in self._beyond:
            raise NotMatched(_BEYOND)
        if option.count is None and node.unsupported:
            raise NotMatched(f"a request for all devices cannot be planned: {node.unsupported[0]}")
        if any(self._selects(option, kind) for kind in node.left_out):
            raise NotMatched(
                f"the request selects a device that is left out: {node.unsupported[0]}"
            )
        for kind in node.evaluated:
            self._selects(option, kind)  # for its errors only
        known = self._known_of(option)
        selected = []
        for i, device in enumerate(node.devices):
            found = known.get(id(device.kind))
            if found[1] is True if found is not None else self._selects(option, device.kind):
                selected.append(i)
            elif found is not None and found[1] is not False:
                raise NotMatched(str(found[1]))
        return tuple(selected)

    def selects(self, option: DeviceOption, kind: DeviceKind) -> bool:
        """Whether an option selects devices of a kind; not if a selector cannot be evaluated."""
        try:
            return self._selects(option, kind)
        except NotMatched:
            return False

    def _known_of(self, option: DeviceOption) -> dict[int, tuple[DeviceKind, bool | str]]:
        """Results by identity: a kind is hashed slowly, and it is kept alive here."""
        key = (option.device_class, option.selectors)
        known = self._known.get(key)
        if known is None or len(known) > _MOST_KINDS:
            known = self._known.keep(key, {})
        return known

    def check(self, option: DeviceOption) -> str | None:
        """The reason for which no node can serve an option; None = its class exists and its selectors are supported."""
        if option.device_class in NUMA_CLASSES:
            return None
        chosen = self.classes.get(option.device_class)
        if chosen is None:
            return f"DeviceClass {option.device_class} does not exist"
        if option.selectors in self._beyond:
            return _BEYOND
        operations = 0
        for whose, number, source in _selectors(chosen, option):
            try:
                operations += selector(source).operations
            except BadInput as error:
                return f"{whose}: selectors[{number}]: {error}"
        if operations > MOST_OPERATIONS:
            text = f"an evaluation of all selectors can take {operations} operations"
            return f"request: {text}, and at most {MOST_OPERATIONS} are supported"
        return None

    def _selects(self, option: DeviceOption, kind: DeviceKind) -> bool:
        if option.selectors in self._beyond:
            raise NotMatched(_BEYOND)
        known = self._known_of(option)
        found = known.get(id(kind))
        if found is None:
            found = known[id(kind)] = kind, self._outcome(option, kind)
        if isinstance(found[1], str):
            raise NotMatched(found[1])
        return found[1]

    def _outcome(self, option: DeviceOption, kind: DeviceKind) -> bool | str:
        if option.device_class in NUMA_CLASSES or kind.driver == NUMA_DRIVER:
            return serves(kind, option)
        return self.check(option) or self._evaluated(option, kind)

    def attributes(self, option: DeviceOption) -> frozenset[str] | None:
        """The names of the attributes that the selectors read, without domains; None = they can read all."""
        if option.selectors in self._beyond:
            return frozenset()
        key = (option.device_class, option.selectors)
        known = self._attributes.get(key)
        if known is None:
            known = self._attributes.keep(key, (self._read(option),))
        return known[0]

    def _read(self, option: DeviceOption) -> frozenset[str] | None:
        if option.device_class in NUMA_CLASSES:
            return frozenset((SERVES,))
        names: set[str] = set()
        if self.check(option) is None:
            for _, _, source in _selectors(self.classes[option.device_class], option):
                read = selector(source).attributes
                if read is None:
                    return None
                names |= read
        return frozenset(names)

    def _evaluated(self, option: DeviceOption, kind: DeviceKind) -> bool | str:
        """In the order of kube-scheduler: the first selector that is not fulfilled ends the evaluation."""
        for whose, number, source in _selectors(self.classes[option.device_class], option):
            value = outcome(source, kind)
            if isinstance(value, str):
                driver = f"a device of driver {kind.driver}"
                return f"{whose}: selectors[{number}]: error for {driver}: {value}: {shortened(source)}"
            if not value:
                return False
        return True


def _selectors(chosen: DeviceClass, option: DeviceOption) -> Iterator[tuple[str, int, str]]:
    for whose, sources in (
        (f"DeviceClass {chosen.name}", chosen.selectors),
        ("request", option.selectors),
    ):
        for number, source in enumerate(sources):
            yield whose, number, source
