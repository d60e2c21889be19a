"""Random claims: counts, selectors, constraints, alternatives, taints and shared capacity."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from queuectl.localcluster.client import Document
from queuectl.localcluster.nodes import DRIVER, PCIE_ROOT
from tests.allocator.fleet import PARTITION, SHARED
from tests.system.claims import devices, request

_TOLERATES: Final = [{"operator": "Exists"}]


def _selector(expression: str) -> list[Document]:
    return [{"cel": {"expression": expression}}]


def _attribute(name: str) -> str:
    return f"device.attributes['{DRIVER}'].{name}"


def _some(random: Random) -> Document:
    return devices(request(count=random.randint(1, 4)))


def _of_a_class(random: Random) -> Document:
    return devices(request(count=random.randint(1, 2), of="h100"))


def _of_a_product(random: Random) -> Document:
    chosen = _selector(f"{_attribute('productName')} == '{random.choice(('A100', 'H100'))}'")
    return devices(request(count=random.randint(1, 3), selectors=chosen))


def _with_memory(random: Random) -> Document:
    memory = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('60Gi')) >= 0"
    return devices(request(count=random.randint(1, 2), selectors=_selector(memory)))


def _with_a_letter(random: Random) -> Document:
    letter = random.choice("abcdef")
    known = f"'{letter}' in device.attributes['{DRIVER}'] && {_attribute(letter)}"
    return devices(request(selectors=_selector(known)))


def _at_one_root(random: Random) -> Document:
    constraint = {"requests": ["gpu"], "matchAttribute": PCIE_ROOT}
    return devices(request(count=random.randint(2, 4)), constraints=[constraint])


def _of_two_kinds(random: Random) -> Document:
    constraint = {"distinctAttribute": f"{DRIVER}/odd"}
    parts = (request("one", random.randint(1, 2)), request("two"))
    return devices(*parts, constraints=[constraint] if random.random() < 0.5 else [])


def _alternatives(random: Random) -> Document:
    options = [
        {"name": "large", "deviceClassName": "h100", "count": random.randint(2, 4)},
        {"name": "small", "deviceClassName": DRIVER, "count": 1},
    ]
    return devices({"name": "gpu", "firstAvailable": options})


def _tolerating(random: Random) -> Document:
    return devices(request(count=random.randint(1, 3), tolerations=_TOLERATES))


def _part(random: Random) -> Document:
    size = random.choice((1, 2, 4))
    of_size = _selector(f"device.attributes['{PARTITION}'].size == {size}")
    return devices(request(of=PARTITION, selectors=of_size))


def _any_part(random: Random) -> Document:
    return devices(request(of=PARTITION))


def _share(random: Random) -> Document:
    consumed = {"requests": {"memory": f"{random.randint(1, 5)}Gi"}}
    return devices(request(of=SHARED, capacity=consumed))


def _all(random: Random) -> Document:
    return devices({"name": "gpu", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}})


KINDS: Final[dict[str, tuple[int, Callable[[Random], Document]]]] = {
    "count": (4, _some),
    "class": (2, _of_a_class),
    "product": (2, _of_a_product),
    "capacity": (2, _with_memory),
    "letter": (2, _with_a_letter),
    "matchAttribute": (3, _at_one_root),
    "distinctAttribute": (2, _of_two_kinds),
    "firstAvailable": (2, _alternatives),
    "toleration": (1, _tolerating),
    "partition": (3, _part),
    "any partition": (1, _any_part),
    "share": (3, _share),
    "all": (1, _all),
}
"""Of each kind of claim its weight and its maker."""


def draw(random: Random) -> tuple[str, Document]:
    """The kind and the spec of a claim."""
    weights = [weight for weight, _ in KINDS.values()]
    [kind] = random.choices(list(KINDS), weights)
    return kind, KINDS[kind][1](random)
