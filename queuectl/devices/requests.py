"""The requests of pods for devices: by claims, and by extended resources that a DeviceClass backs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary, WeakValueDictionary

from queuectl.devices.needs import Atom, atoms_of, unit
from queuectl.devices.numa_devices import NUMA_CLASSES
from queuectl.domain.devices import (
    IMPLICIT_RESOURCE,
    MOST_RESULTS,
    ClaimSpec,
    DeviceClass,
    DeviceOption,
    DeviceRequest,
    PodDevices,
)
from queuectl.domain.quantity import Resources
from queuectl.domain.workload import PodShape


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodRequest:
    """The request of one pod for devices. :class:`DeviceClasses` makes each request once, so it is compared by identity.

    Attributes:
        devices: its claims.
        extended: amounts of extended resources that a DeviceClass backs, sorted by name.
    """

    devices: PodDevices | None
    extended: tuple[tuple[str, int], ...] = ()

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of the claims that its pods share with others."""
        return self.devices.shared if self.devices is not None else ()


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    """The devices that one pod requests.

    Attributes:
        atoms: number of each.
        charges: resource to the amount that is charged in addition to the requests of the pod.
        uncharged: extended resources of the pod for which another resource is charged.
        refusal: why the request is not supported.
    """

    atoms: Mapping[Atom, int]
    charges: Mapping[str, int] = field(default_factory=dict)
    uncharged: frozenset[str] = frozenset()
    refusal: str | None = None


class DeviceClasses:
    """DeviceClasses by the resources that request them and that are charged for them."""

    def __init__(
        self, classes: Mapping[str, DeviceClass], mapped: tuple[tuple[str, str], ...]
    ) -> None:
        """Of the DeviceClasses by name.

        ``mapped``: DeviceClass and the resource that is charged for its devices, where the configuration names one.
        """
        self._mapped = dict(mapped)
        self._by_name = classes
        # Users make any number of requests: one is kept for as long as it is used.
        self._requests: WeakValueDictionary[
            tuple[PodDevices | None, tuple[tuple[str, int], ...]], PodRequest
        ] = WeakValueDictionary()
        self._asked: WeakKeyDictionary[PodRequest, RequestedDevices] = WeakKeyDictionary()
        self._last: tuple[frozenset[PodRequest], tuple[Atom, ...]] | None = None
        self.backing: dict[str, str] = {}
        newest = sorted(classes.values(), key=lambda c: (-c.created_at, c.name))
        for each in newest:
            if each.extended_resource is not None:
                self.backing.setdefault(each.extended_resource, each.name)
            self.backing.setdefault(f"{IMPLICIT_RESOURCE}{each.name}", each.name)

    @property
    def names(self) -> Iterable[str]:
        """Of all DeviceClasses."""
        return self._by_name.keys()

    @property
    def every_resource(self) -> frozenset[str]:
        """The resources that request devices, or are charged for them."""
        return frozenset(self.backing).union(self._mapped.values())

    def charged(self, device_class: str) -> str:
        """The resource that is charged for devices of a class."""
        known = self._by_name.get(device_class)
        own = known.extended_resource if known is not None else None
        return self._mapped.get(device_class) or own or f"{IMPLICIT_RESOURCE}{device_class}"

    def charges(self, atom: Atom) -> dict[str, int]:
        """Resource to the number of devices of an atom. A request for all devices counts as one device."""
        if atom.admin or not _charged(atom):
            return {}
        total: Counter[str] = Counter()
        for request in atom.claim.requests:
            largest: dict[str, int] = {}
            for option in request.options:
                name = self.charged(option.device_class)
                largest[name] = max(largest.get(name, 0), option.count or 1)
            total.update(largest)
        return dict(total)

    def request_of(self, shape: PodShape) -> PodRequest | None:
        """The request of a pod for devices; None if it has none."""
        extended = tuple(sorted((n, v) for n, v in shape.requests.items() if n in self.backing))
        if not extended and shape.devices is None:
            return None
        key = (shape.devices, extended)
        return self._requests.get(key) or self._requests.setdefault(key, PodRequest(*key))

    def requested(self, request: PodRequest) -> RequestedDevices:
        """The atoms and charges of a request."""
        known = self._asked.get(request)
        if known is None:
            known = self._asked[request] = self._read(request)
        return known

    def _read(self, request: PodRequest) -> RequestedDevices:
        devices, extended = request.devices, request.extended
        counts: Counter[Atom] = Counter()
        charges: Counter[str] = Counter()
        if devices is not None:
            if devices.shared:
                names = ", ".join(devices.shared)
                return RequestedDevices({}, refusal=f"its pods share a ResourceClaim ({names})")
            own = atoms_of(devices)
            if own.refusal is not None:
                return RequestedDevices({}, refusal=own.refusal)
            counts.update(own.counts)
            for atom, number in own.counts.items():
                for name, amount in self.charges(atom).items():
                    charges[name] += amount * number
        uncharged = set()
        # kube-scheduler makes one claim for all of them. A device plugin has no limit.
        most = MOST_RESULTS if sum(amount for _, amount in extended) <= MOST_RESULTS else 0
        for resource, amount in extended:
            device_class = self.backing[resource]
            counts[replace(unit(DeviceOption(device_class), resource), most=most)] += amount
            name = self.charged(device_class)
            if name != resource:
                charges[name] += amount
                uncharged.add(resource)
        return RequestedDevices(counts, charges, frozenset(uncharged))

    def resources(self, atom: Atom) -> Iterator[tuple[str, str]]:
        """Each resource that stands for devices of an atom, with the class of the devices."""
        for option in atom.options if _charged(atom) else ():
            yield self.charged(option.device_class), option.device_class
        if atom.resource is not None:
            yield atom.resource, self.backing[atom.resource]

    def atoms(self, requests: frozenset[PodRequest]) -> tuple[Atom, ...]:
        """The atoms of some requests, in a fixed order.

        One of several devices is an atom even if only one is requested, so that other numbers of devices change nothing.
        """
        if self._last is None or self._last[0] != requests:
            self._last = requests, self._atoms(requests)
        return self._last[1]

    def _atoms(self, requests: Iterable[PodRequest]) -> tuple[Atom, ...]:
        found: set[Atom] = set()
        for request in requests:
            found.update(self.requested(request).atoms)
        found |= {replace(a, several=not a.several) for a in found if a.single and not a.admin}
        return tuple(sorted(found, key=repr))


def _charged(atom: Atom) -> bool:
    """Whether quota counts it. NUMA nodes are not counted: the CPUs, memory and devices of the pod are."""
    return all(option.device_class not in NUMA_CLASSES for option in atom.options)


def lowered_shape(
    shape: PodShape, charges: RequestedDevices, rows: Mapping[str, int], backed: Mapping[str, str]
) -> PodShape:
    """A pod with its device rows and its charges as resources.

    Its claims then also have one for each extended resource in ``backed`` (resource to DeviceClass), as kube-scheduler makes it. The
    request of that claim has the resource as its name.
    """
    amounts = dict(shape.requests)
    for name, amount in (*charges.charges.items(), *rows.items()):
        amounts[name] = amounts.get(name, 0) + amount
    incidental = shape.incidental.union(charges.uncharged, rows)
    own = shape.devices or PodDevices()
    extended = tuple(
        ClaimSpec((DeviceRequest(name, (DeviceOption(device_class, count=shape.requests[name]),)),))
        for name, device_class in sorted(backed.items())
    )
    devices = replace(own, claims=(*own.claims, *extended))
    charged = Resources(charges.charges)
    return PodShape(Resources(amounts), shape.rules, incidental, devices, charged)
