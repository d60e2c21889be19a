"""Kubernetes quantities as exact integers, and the vector of them a pod asks for.

Units: ``cpu`` in millicores; everything else in its base unit (bytes, devices, pods). Requests round up and capacities
round down when a quantity is finer than its unit, so rounding can never over-commit a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, DecimalException
from functools import lru_cache
from typing import Final

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
GPU: Final = "nvidia.com/gpu"

_SUFFIXES: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}

# The grammar of Kubernetes, with an exponent of at most two digits: larger numbers are not useful amounts.
_UNSIGNED: Final = (
    r"([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
)
_QUANTITY: Final = re.compile(rf"[+-]?{_UNSIGNED}")
NOT_NEGATIVE: Final = rf"[+]?{_UNSIGNED}"
"""Pattern of quantities without a minus, which JSON Schema reads too."""
LONGEST_QUANTITY: Final = 66
"""Characters of the longest text in this notation."""


class QuantityError(ValueError):
    """The text is not a Kubernetes quantity."""


def is_quantity(text: str) -> bool:
    """Whether the text is in the notation of Kubernetes."""
    return _QUANTITY.fullmatch(text) is not None


def parse_quantity(resource: str, text: str, *, round_up: bool) -> int:
    """Read one quantity.

    Args:
        resource: name of the resource; it decides the unit (see the module's docstring).
        text: the quantity as Kubernetes writes it: ``"500m"``, ``"8"``, ``"1.5Gi"``, ``"2e3"``.
        round_up: up for requests, down for capacities.

    Raises:
        QuantityError: naming the resource and the text.
    """
    if len(resource) + len(text) > _USUAL_LENGTH:
        return _parsed(resource, text, round_up)
    return _recent(resource, text, round_up)


def _parsed(resource: str, text: str, round_up: bool) -> int:
    value = exact_quantity(resource, text)
    if resource == CPU:
        value *= 1000
    return int(value.to_integral_value(ROUND_CEILING if round_up else ROUND_FLOOR))


_USUAL_LENGTH: Final = 128  # characters; the name of a resource in an object can have 1 MiB
_recent: Final = lru_cache(maxsize=4096)(_parsed)


def exact_quantity(resource: str, text: str) -> Decimal:
    """The quantity in whole units (cores, bytes, devices), as exact as it is written.

    Raises:
        QuantityError: naming the resource and the text.
    """
    number, suffix = _split(text.strip())
    try:
        value = Decimal(number) * _SUFFIXES[suffix]
    except (DecimalException, KeyError):  # an exponent can be too large for a product
        raise QuantityError(f"{resource}: {text!r} is not a quantity") from None
    if not value.is_finite():
        raise QuantityError(f"{resource}: {text!r} is not a quantity")
    return value


def _split(text: str) -> tuple[str, str]:
    for length in (2, 1):
        suffix = text[-length:]
        if len(text) > length and suffix in _SUFFIXES:
            return text[:-length], suffix
    return text, ""


def format_quantity(resource: str, amount: int) -> str:
    """Write a value the way people read it: ``1500`` millicores as ``1500m``, bytes with a binary suffix when exact."""
    if resource == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource in (MEMORY, "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            unit = int(_SUFFIXES[suffix])
            if amount and amount % unit == 0:
                return f"{amount // unit}{suffix}"
    return str(amount)


class Resources(Mapping[str, int]):
    """An immutable vector of resource amounts; a missing resource is 0. Zero entries are dropped, so equal is equal."""

    __slots__ = ("_amounts", "_hash")

    def __init__(self, amounts: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        pairs = amounts.items() if isinstance(amounts, Mapping) else amounts
        self._amounts: dict[str, int] = {name: value for name, value in pairs if value}
        self._hash: int | None = None

    def __getitem__(self, name: str) -> int:
        return self._amounts.get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._amounts

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._amounts.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Resources):
            return self._amounts == other._amounts
        return NotImplemented

    def __add__(self, other: Resources) -> Resources:
        total = dict(self._amounts)
        for name, value in other._amounts.items():
            total[name] = total.get(name, 0) + value
        return Resources(total)

    def __sub__(self, other: Resources) -> Resources:
        total = dict(self._amounts)
        for name, value in other._amounts.items():
            total[name] = total.get(name, 0) - value
        return Resources(total)

    def __mul__(self, factor: int) -> Resources:
        return Resources({name: value * factor for name, value in self._amounts.items()})

    def at_least(self, floor: Resources) -> Resources:
        """The larger amount of each resource."""
        if floor.fits(self):
            return self
        return Resources({name: max(self[name], floor[name]) for name in (*self, *floor)})

    def fits(self, free: Resources) -> bool:
        """Whether this much is available in ``free``."""
        return all(value <= free[name] for name, value in self._amounts.items())

    def __repr__(self) -> str:
        inner = ", ".join(f"{n}={format_quantity(n, v)}" for n, v in sorted(self._amounts.items()))
        return f"Resources({inner})"


NOTHING: Final = Resources()


def total(vectors: Iterable[Resources]) -> Resources:
    """Sum of many vectors, without building the intermediate ones."""
    amounts: dict[str, int] = {}
    for vector in vectors:
        for name, value in vector.items():
            amounts[name] = amounts.get(name, 0) + value
    return Resources(amounts)
