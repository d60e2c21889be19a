"""The requests of a pod as atoms: the smallest parts that are allocated independently of each other.

Constraints hold inside one claim. So a request that no constraint covers is independent, and a request for ``k`` devices is ``k`` requests
for one. A pod fits for each order and choice if its atoms, one after the other, do: kube-scheduler searches through all
choices for a pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from queuectl.devices.numa_devices import NUMA_CLASSES, numa_label
from queuectl.domain.devices import (
    MOST_SELECTOR_BYTES,
    ClaimSpec,
    DeviceConstraint,
    DeviceOption,
    DeviceRequest,
    PodDevices,
)

MOST_RESULTS: Final = 32
"""The largest number of devices of one claim (``AllocationResultsMaxSize``)."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One part of the requests of a pod.

    Attributes:
        claim: its requests, named by number, and the constraints on them.
        resource: the extended resource that it stands for. A node whose device plugin publishes the resource serves it from there.
        several: it is one of several devices of a request, which must differ.
        most: number of devices that its claim can have beside its other requests.
    """

    claim: ClaimSpec
    resource: str | None = None
    several: bool = False
    most: int = MOST_RESULTS

    @property
    def admin(self) -> bool:
        """Whether it has access for administration: it takes no device from others."""
        return any(option.admin for option in self.options)

    @property
    def single(self) -> bool:
        """Whether it is one device of one option, without constraints."""
        first = self.claim.requests[0]
        one = len(self.claim.requests) == len(first.options) == first.options[0].count == 1
        return one and not self.claim.constraints

    @property
    def options(self) -> Iterator[DeviceOption]:
        """Of all requests."""
        return (option for request in self.claim.requests for option in request.options)

    @property
    def label(self) -> str:
        """Its classes and constraints in short form: ``gpu.example.com``, ``2 gpu.example.com of one pcieRoot``."""
        requests = " + ".join(map(_label, self.claim.requests))
        for constraint in self.claim.constraints:
            name = constraint.attribute.rpartition("/")[2]
            requests += f" of different {name}" if constraint.distinct else f" of one {name}"
        return requests


def _label(request: DeviceRequest) -> str:
    return " or ".join(dict.fromkeys(map(_option_label, request.options)))


def _option_label(option: DeviceOption) -> str:
    if option.device_class in NUMA_CLASSES:
        return numa_label(option)
    number = {None: "all ", 1: ""}.get(option.count, f"{option.count} ")
    where = " and ".join(option.selectors)
    return f"{number}{option.device_class}{f' where {where}' if where else ''}"


@dataclass(frozen=True, slots=True)
class Atoms:
    """The requests of one pod. ``refusal``: why they are not supported; then ``counts`` is empty."""

    counts: Mapping[Atom, int]
    refusal: str | None = None


def unit(option: DeviceOption, resource: str | None = None) -> Atom:
    """One device of an option."""
    request = DeviceRequest("0", (replace(option, count=1),))
    several = option.count is not None and option.count > 1
    return Atom(ClaimSpec((request,)), resource, several)


def atoms_of(devices: PodDevices) -> Atoms:
    """The atoms of a pod, without those of claims that it shares."""
    options = [o for claim in devices.claims for r in claim.requests for o in r.options]
    admin = {option.admin for option in options}
    if len(admin) > 1:
        return Atoms({}, "requests for administration beside other requests for devices")
    size = sum(len(s.encode()) for s in {s for option in options for s in option.selectors})
    if size > MOST_SELECTOR_BYTES:
        return Atoms(
            {},
            f"selectors of {size} bytes in the claims of a pod, at most {MOST_SELECTOR_BYTES} are possible",
        )
    counts: Counter[Atom] = Counter()
    for claim in devices.claims:
        if admin == {True}:
            if claim.constraints:
                return Atoms({}, "constraints on requests for administration")
            counts[Atom(_numbered(claim.requests, ()))] += 1
            continue
        least = sum(_largest(request) for request in claim.requests)
        if least > MOST_RESULTS:
            return Atoms({}, f"{least} devices in one claim, at most {MOST_RESULTS} are possible")
        counts.update(_parts(claim))
    return Atoms(counts)


def _largest(request: DeviceRequest) -> int:
    return max(1 if option.count is None else option.count for option in request.options)


def _parts(claim: ClaimSpec) -> Iterator[Atom]:
    """The requests of a claim in groups that constraints connect; each other request alone."""
    total = sum(_largest(request) for request in claim.requests)
    for requests, constraints in _connected(claim):
        option = requests[0].options[0]
        single = len(requests) == 1 and len(requests[0].options) == 1
        if single and not constraints and option.count is not None:
            yield from [unit(option)] * option.count
        else:
            most = MOST_RESULTS - total + sum(_largest(request) for request in requests)
            yield Atom(_numbered(requests, constraints), most=most)


def _connected(
    claim: ClaimSpec,
) -> Iterator[tuple[tuple[DeviceRequest, ...], tuple[DeviceConstraint, ...]]]:
    left = list(range(len(claim.requests)))
    while left:
        group, constraints = {left[0]}, set[int]()
        grown = True
        while grown:
            grown = False
            for number, constraint in enumerate(claim.constraints):
                covered = {i for i, r in enumerate(claim.requests) if _covers(constraint, r)}
                if number not in constraints and covered & group:
                    constraints.add(number)
                    group |= covered
                    grown = True
        left = [number for number in left if number not in group]
        yield (
            tuple(claim.requests[number] for number in sorted(group)),
            tuple(claim.constraints[number] for number in sorted(constraints)),
        )


def _covers(constraint: DeviceConstraint, request: DeviceRequest) -> bool:
    names = {request.name, *(f"{request.name}/{name}" for name in request.subrequests)}
    return not constraint.requests or not names.isdisjoint(constraint.requests)


def _numbered(
    requests: tuple[DeviceRequest, ...], constraints: tuple[DeviceConstraint, ...]
) -> ClaimSpec:
    """The same with numbers as names, so that claims that differ only in names are equal."""
    names: dict[str, str] = {}
    for number, request in enumerate(requests):
        names[request.name] = str(number)
        names |= {
            f"{request.name}/{name}": f"{number}/{i}" for i, name in enumerate(request.subrequests)
        }
    return ClaimSpec(
        tuple(
            DeviceRequest(
                str(number), request.options, tuple(map(str, range(len(request.subrequests))))
            )
            for number, request in enumerate(requests)
        ),
        tuple(
            replace(c, requests=tuple(sorted(names[name] for name in c.requests if name in names)))
            for c in constraints
        ),
    )
