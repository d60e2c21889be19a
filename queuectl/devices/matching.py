"""The devices of a node that the class and the selectors of a request select.

kube-scheduler evaluates selectors on the devices of a node one after the other, until it has enough. An error of one evaluation
fails the pod. A request can therefore use a node only if no device of the node gives an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from queuectl.devices.selectors import outcome, selector
from queuectl.domain.devices import DeviceClass, DeviceKind, DeviceOption, NodeDevices
from queuectl.domain.errors import BadInput, QueuectlError


class NotMatched(QueuectlError):
    """No device of the node can be used for the request; the message states why."""


class Matching:
    """Which devices an option selects. Results are kept per class, selectors and kind of device."""

    def __init__(self, classes: Mapping[str, DeviceClass]) -> None:
        """Over the DeviceClasses of the cluster, by name."""
        self.classes = classes
        self._known: dict[tuple[str, tuple[str, ...]], dict[DeviceKind, bool | str]] = {}

    def __call__(self, option: DeviceOption, node: NodeDevices) -> tuple[int, ...]:
        """The positions of the selected devices. Taints and capacity do not count.

        Raises:
            NotMatched: a selector cannot be evaluated, or kube-scheduler can allocate a device that is left out.
        """
        if option.count is None and node.unsupported:
            raise NotMatched(f"a request for all devices cannot be planned: {node.unsupported[0]}")
        if any(self._selects(option, kind) for kind in node.left_out):
            raise NotMatched(
                f"the request selects a device that is left out: {node.unsupported[0]}"
            )
        return tuple(
            [i for i, device in enumerate(node.devices) if self._selects(option, device.kind)]
        )

    def check(self, option: DeviceOption) -> str | None:
        """The reason for which no node can serve an option; None = its class exists and its selectors are supported."""
        chosen = self.classes.get(option.device_class)
        if chosen is None:
            return f"DeviceClass {option.device_class} does not exist"
        for whose, number, source in _selectors(chosen, option):
            try:
                selector(source)
            except BadInput as error:
                return f"{whose}: selectors[{number}]: {error}"
        return None

    def _selects(self, option: DeviceOption, kind: DeviceKind) -> bool:
        known = self._known.setdefault((option.device_class, option.selectors), {})
        found = known.get(kind)
        if found is None:
            found = known[kind] = self._evaluated(option, kind)
        if isinstance(found, str):
            raise NotMatched(found)
        return found

    def _evaluated(self, option: DeviceOption, kind: DeviceKind) -> bool | str:
        """In the order of kube-scheduler: the first selector that is not fulfilled ends the evaluation."""
        why = self.check(option)
        if why is not None:
            return why
        for whose, number, source in _selectors(self.classes[option.device_class], option):
            value = outcome(source, kind)
            if isinstance(value, str):
                driver = f"a device of driver {kind.driver}"
                return f"{whose}: selectors[{number}]: error for {driver}: {value}: {source}"
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
