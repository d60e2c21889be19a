"""``resources.deviceClassMappings`` of a Configuration: the resources that are charged for devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuectl.objects.configuration import settings_wire as wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_label_key

_MOST_MAPPINGS: Final = 16
_MOST_CLASSES: Final = 8
_PATH: Final = "resources.deviceClassMappings"


def read_device_classes(given: Sequence[wire.DeviceClassMapping]) -> tuple[tuple[str, str], ...]:
    """(DeviceClass, resource), sorted, without the mappings of counters and capacities.

    Raises:
        RequestError: a name is invalid, or a class occurs twice.
    """
    if len(given) > _MOST_MAPPINGS:
        raise RequestError(f"{_PATH}: at most {_MOST_MAPPINGS} are allowed")
    once((mapping.name for mapping in given), f"{_PATH}: name")
    for i, mapping in enumerate(given):
        _check(mapping, f"{_PATH}[{i}]")
    pairs = [
        (name, mapping.name)
        for mapping in given
        if not mapping.sources
        for name in mapping.device_class_names or ()
    ]
    once((name for name, _ in pairs), f"{_PATH}: DeviceClass")
    return tuple(sorted(pairs))


def _check(mapping: wire.DeviceClassMapping, path: str) -> None:
    if not is_label_key(mapping.name):
        raise RequestError(f"{path}.name: {mapping.name!r} is not a resource name")
    classes = mapping.device_class_names or []
    if not 1 <= len(classes) <= _MOST_CLASSES:
        raise RequestError(
            f"{path}.deviceClassNames: 1 to {_MOST_CLASSES} are allowed, not {len(classes)}"
        )
    for name in classes:
        if not is_label_key(name):
            raise RequestError(
                f"{path}.deviceClassNames: {name!r} is not the name of a DeviceClass"
            )
