"""ResourceSlices as drivers publish them. :mod:`queuectl.devices.pools` decides which of their devices a node can use."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.domain.devices import DeviceKind
from queuectl.domain.fleet import SelectorTerm


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The nodes that can use devices: one ``node``, else the nodes that match ``selector``, else each node."""

    node: str | None = None
    selector: SelectorTerm | None = None


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One device of a ResourceSlice.

    Attributes:
        consumes: (counter set, counter) to the amount, sorted.
        access: None = that of its ResourceSlice.
        unsupported: a field of the device for which no request can be planned with it; empty = none.
    """

    name: str
    kind: DeviceKind
    consumes: tuple[tuple[tuple[str, str], int], ...] = ()
    access: NodeAccess | None = None
    unsupported: str = ""


@dataclass(frozen=True, slots=True)
class PoolSlice:
    """One ResourceSlice.

    Attributes:
        slices: number of ResourceSlices of its generation of the pool.
        access: None = each device has its own (``perDeviceNodeSelection``).
        counters: (counter set, counter) to the amount, sorted.
        repeated: name of a counter set that occurs twice in it; empty = none.
    """

    name: str
    driver: str
    pool: str
    generation: int = 1
    slices: int = 1
    access: NodeAccess | None = None
    devices: tuple[PublishedDevice, ...] = ()
    counters: tuple[tuple[tuple[str, str], int], ...] = ()
    repeated: str = ""
